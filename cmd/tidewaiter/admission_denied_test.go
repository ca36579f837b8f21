package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/cmd/internal/demo"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// A registry that denies to HEAD what it gives to GET has the image of a pod that nobody knows yet:
// a signed one is admitted, and an unsigned one is refused as Unsigned, not as one that is away.
func TestAdmissionWhereHeadsAreDenied(t *testing.T) {
	t.Parallel()
	signer, err := demo.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			digests := map[string]string{}
			for _, reference := range []string{"team/signed:tag", "team/signed:digest", "team/plain:tag", "team/plain:digest"} {
				image, err := sample.New(sample.Spec{Name: reference})
				if err != nil {
					t.Fatal(err)
				}
				digests[reference] = registry.Push(reference, image)
			}
			of, err := name.NewRepository(registry.Host + "/team/signed")
			if err != nil {
				t.Fatal(err)
			}
			for reference, digest := range digests {
				if !strings.HasPrefix(reference, "team/signed") {
					continue
				}
				hash, err := v1.NewHash(digest)
				if err == nil {
					err = signer.Sign(of, hash, hash)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			file, err := signer.WritePolicy(dir, registry.Host)
			if err != nil {
				t.Fatal(err)
			}
			ask := serveAdmission(t, dir, file)
			registry.Inject("HEAD ", 0, registrytest.Status(status, "MANIFEST_UNKNOWN"))
			for image, want := range map[string]string{
				"team/signed:tag": "", "team/signed@" + digests["team/signed:digest"]: "",
				"team/plain:tag": "Unsigned", "team/plain@" + digests["team/plain:digest"]: "Unsigned",
				"team/gone:tag": "could not be imported",
			} {
				got, said := ask(registry.Host+"/"+image), ""
				if got.Result != nil {
					said = got.Result.Message
				}
				if got.Allowed != (want == "") || !strings.Contains(said, want) {
					t.Errorf("%s: allowed %v, %q; want %q", image, got.Allowed, said, want)
				}
			}
			if registry.Count("HEAD ") == 0 {
				t.Error("no HEAD was denied")
			}
		})
	}
}
