package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// A registry that denies to HEAD what it gives to GET has the image of a pod that nobody knows yet:
// a signed one is admitted, and an unsigned one is refused as Unsigned, not as one that is away.
func TestAdmissionWhereHeadsAreDenied(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			registry := newUnderPolicy(t)
			digests := map[string]string{}
			for _, reference := range []string{"team/signed:tag", "team/signed:digest", "team/plain:tag", "team/plain:digest"} {
				digests[reference] = registry.push(reference, reference, strings.HasPrefix(reference, "team/signed"))
			}
			ask := serveAdmission(t, registry.dir, registry.policy)
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
