package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A signed image counts as that where it is signed, also if it was promoted to where nobody signed
// it. A running server's images can be judged by other policies than its own, which changes nothing
// there.
func TestVerifyAllCounts(t *testing.T) {
	t.Parallel()
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}
	host, dir := h.registry.Host, t.TempDir()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	document := func(repository string, key *signaturestest.Key) string {
		return signaturestest.Document(repository, `["`+host+"/"+repository+`"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inForce := file("in-force.yaml", document("prod", ours)+document("strict", theirs)+document("multi", ours))
	tried := file("tried.yaml", document("prod", theirs)+document("free", ours)+document("multi", ours))
	data := filepath.Join(dir, "data")
	h.Config = serveWith(t, server.Options{DataDir: data, Policy: inForce}, listen(t))
	var err error
	if h.images, err = imageclient.New(h.Config); err != nil {
		t.Fatal(err)
	}
	push := func(tag string) string {
		return pushed(t, h.registry, tag, `{"os":"linux","architecture":"amd64","config":{"Labels":{"tag":"`+tag+`"}}}`, nil)
	}
	signed := push("prod/app:v1")
	h.bring("prod/app", signed, h.sign(ours, "prod/app", signed, 0))
	h.importTag("prod/app:v1")
	stored := h.get(signed)
	for _, tag := range []string{"strict/app:v1", "free/app:v1"} { // promoted, and copied
		h.registry.PushManifest(tag, stored.DockerImageManifestMediaType, stored.Name, []byte(stored.DockerImageManifest))
		h.importTag(tag)
	}
	push("free/plain:v1")
	h.importTag("free/plain:v1")
	push("multi/app:amd64") // an index is signed, and its platform is not
	h.importTag("multi/app:amd64")
	child := h.get(push("multi/app:amd64"))
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}}]}`,
		child.Name, len(child.DockerImageManifest))
	digest := manifest.Digest([]byte(index))
	h.registry.PushManifest("multi/app:v1", "application/vnd.oci.image.index.v1+json", digest, []byte(index))
	h.bring("multi/app", digest, h.sign(ours, "multi/app", digest, 0))
	h.importTag("multi/app:v1")

	own := "4 images, 6 verdicts in their repositories: 2 True, 1 ByIndex, 0 False, 0 Unknown, 1 Unsigned, 2 NoPolicy; 0 verdicts changed\n"
	for range 2 {
		if code, stdout, stderr := tidewaiter(t, "verify", "--all", "--data-dir", data); code != exitUntrusted || stdout != own || !strings.Contains(stderr, "1 Unsigned") {
			t.Errorf("exit code %d, %q, want %q: %s", code, stdout, own, stderr)
		}
		others := "4 images, 6 verdicts in their repositories: 1 True, 1 ByIndex, 1 False, 0 Unknown, 2 Unsigned, 1 NoPolicy; 2 images have a different verdict on the server\n"
		if code, stdout, stderr := tidewaiter(t, "verify", "--all", "--policy", tried, "--data-dir", data); code != exitUntrusted || stdout != others {
			t.Errorf("by other policies: exit code %d, %q, want %q: %s", code, stdout, others, stderr)
		}
	}
	for _, c := range []struct {
		failOn, says string
		code         int
	}{
		{"none", "", cli.ExitOK},
		{"False", "", cli.ExitOK},
		{"unsigned,nopolicy", "1 Unsigned, 2 NoPolicy", exitUntrusted},
		{"Signed", `"Signed" is not a verdict`, cli.ExitUsage},
		{"", "--fail-on is given without a value", cli.ExitUsage},
	} {
		if code, _, stderr := tidewaiter(t, "verify", "--all", "--fail-on", c.failOn, "--data-dir", data); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("--fail-on %s: exit code %d, %q", c.failOn, code, stderr)
		}
	}
	if code, _, stderr := tidewaiter(t, "verify", "--fail-on", "False", "a.example.com/b:c"); code != cli.ExitUsage || !strings.Contains(stderr, "--fail-on is for --all") {
		t.Errorf("--fail-on for one reference: exit code %d, %q", code, stderr)
	}
	var p progressAt
	_, stdout, _ := tidewaiter(t, "verify", "--all", "--data-dir", data, "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || p.Verdicts["True"] != 2 || p.Verified["True"] != 1 || p.Verified["Unsigned"] != 1 {
		t.Errorf("-o json is %s, %v", stdout, err)
	}
	if code, _, stderr := tidewaiter(t, "verify", "--all", "--policy", filepath.Join(dir, "none"), "--data-dir", data); code == cli.ExitOK {
		t.Errorf("with a policy that is not there it succeeds: %s", stderr)
	}
}

// The hint leads to the images that failed: those of the server, or of the directory that was
// judged. By policies that the server does not have, it knows no such images.
func TestVerifyAllSaysWhichImages(t *testing.T) {
	failed := map[string]int64{"Unsigned": 2}
	for want, c := range map[string]struct {
		o     verifyOptions
		sweep int64
	}{
		"kubectl get images --field-selector signatures.verified=Unsigned; --fail-on none exits 0":                                                {verifyOptions{}, 1},
		"tidewaiter serve --data-dir auditor, and there kubectl get images --field-selector signatures.verified=Unsigned; --fail-on none exits 0": {verifyOptions{policy: "p.yaml", clientOptions: clientOptions{dataDir: "auditor"}}, 1},
		"tidewaiter verify --policy p.yaml REF says why; --fail-on none exits 0":                                                                  {verifyOptions{policy: "p.yaml"}, 0},
	} {
		c.o.failOn = []string{"False", "Unsigned"}
		exit, ok := errors.AsType[*cli.Exit](c.o.failure(reverify.Progress{Sweep: c.sweep, Verdicts: failed}))
		if !ok {
			t.Fatal("the command did not fail")
		}
		if _, hint := cli.Explain("verify", exit.Err); hint != want {
			t.Errorf("the hint is %q, want %q", hint, want)
		}
	}
}
