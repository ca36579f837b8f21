package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// selected are the names of the Images that a field selector selects.
func selected(t testing.TB, s *harness.Server, selector string) []string {
	t.Helper()
	names := lines(s.Kubectl(t, "get", "images", "-o", "name", "--field-selector", selector))
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], "image.image.openshift.io/")
	}
	return names
}

// signed is the signatures of an Image, each with its verdict and signer, as an
// administrator writes them where no policy covers the image.
func signed(image string, verdicts ...[2]string) string {
	var list []string
	for i, v := range verdicts {
		issuer := ""
		if v[1] != "" {
			issuer = fmt.Sprintf(`"issuedBy":{"commonName":%q},`, v[1])
		}
		list = append(list, fmt.Sprintf(`{"metadata":{"name":"%[1]s@%[2]d"},"type":"atomic","content":%[3]q,%[5]s`+
			`"conditions":[{"type":"Trusted","status":%[4]q},{"type":"ForImage","status":%[4]q}]}`,
			image, i, base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "content %d", i)), v[0], issuer))
	}
	return `{"signatures":[` + strings.Join(list, ",") + `]}`
}

// Who signed what is a column and a selector, and both follow the verdict.
func TestAskingForVerdicts(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	verdicts := map[string]string{
		"trusted":   signed("trusted", [2]string{"True", "ann@example.com"}, [2]string{"False", "eve@example.com"}, [2]string{"True", "bob@example.com"}),
		"untrusted": signed("untrusted", [2]string{"False", "eve@example.com"}),
		"undecided": signed("undecided", [2]string{"Unknown", ""}),
		"unsigned":  `{}`,
	}
	for name, patch := range verdicts {
		s.KubectlStdin(t, plainImage(name), "create", "-f", "-")
		s.Kubectl(t, "patch", "image", name, "--type=merge", "-p", patch)
	}
	for selector, want := range map[string][]string{
		"signatures.verified=True":                                {"trusted"},
		"signatures.verified=False":                               {"untrusted"},
		"signatures.verified=Unknown":                             {"undecided"},
		"signatures.verified=NoPolicy":                            {"unsigned"},
		"signatures.verified!=True":                               {"undecided", "unsigned", "untrusted"},
		"signatures.signer=ann@example.com":                       {"trusted"},
		"signatures.signer=bob@example.com":                       {"trusted"},
		"signatures.signer=eve@example.com":                       nil, // is not trusted
		"signatures.signer!=bob@example.com":                      {"undecided", "unsigned", "untrusted"},
		"signatures.signer=ann@example.com,metadata.name=trusted": {"trusted"},
	} {
		if got := selected(t, s, selector); !slices.Equal(got, want) {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
	for name, want := range map[string][2]string{
		"trusted": {"True", "ann@example.com,bob@example.com"}, "untrusted": {"False", "<none>"},
		"undecided": {"Unknown:NotJudged", "<none>"}, "unsigned": {"NoPolicy", "<none>"},
	} {
		rows := lines(s.Kubectl(t, "get", "image", name, "-o", "wide"))
		cell := cells(rows[0], rows[1])
		if got := [2]string{cell["VERDICT"], cell["SIGNER"]}; got != want {
			t.Errorf("%s: VERDICT, SIGNER = %q, want %q", name, got, want)
		}
	}
	if got := s.TryKubectl(t, "get", "images", "--field-selector", "signatures.verified=yes"); got.Code == 0 {
		t.Error("signatures.verified=yes was accepted")
	} else {
		wantContains(t, "the message", got.Stderr, "False, Unsigned, Unknown, Excepted, NoPolicy, ByIndex or True")
	}

	s.Kubectl(t, "patch", "image", "trusted", "--type=merge", "-p", signed("trusted", [2]string{"False", "ann@example.com"}))
	if got := selected(t, s, "signatures.signer=ann@example.com"); len(got) != 0 {
		t.Errorf("no longer trusted, and still selected: %q", got)
	}
	if got := selected(t, s, "signatures.verified=False"); !slices.Equal(got, []string{"trusted", "untrusted"}) {
		t.Errorf("signatures.verified=False selects %q", got)
	}

	// Signatures have no key that a strategic merge patch could merge by.
	code, body := answer(t, restClient(t, s.Config(t)).Patch("application/strategic-merge-patch+json").
		AbsPath(imagesPath, "trusted").Body([]byte(signed("trusted", [2]string{"True", "x"}))))
	if code != http.StatusUnprocessableEntity || !strings.Contains(body, "--type=merge") {
		t.Errorf("a strategic merge patch: %d: %s", code, body)
	}
}

// Which images pods use is a column and a selector, true while pods come and go.
func TestAskingForUse(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	digest := "sha256:" + strings.Repeat("a", 64)
	s.KubectlStdin(t, plainImage("named"), "create", "-f", "-")
	s.KubectlStdin(t, plainImage("idle"), "create", "-f", "-")
	s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"image.openshift.io/v1","kind":"Image","metadata":{"name":%[1]q},"dockerImageReference":"registry.example.com/team/run@%[1]s"}`, digest), "create", "-f", "-")
	run := func(pod, image, imageID string) {
		t.Helper()
		s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":%q}]}}`, pod, image), "create", "-f", "-")
		if imageID != "" {
			s.Kubectl(t, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
				`{"status":{"containerStatuses":[{"name":"c","image":%q,"imageID":%q,"ready":true,"restartCount":0}]}}`, image, imageID))
		}
	}
	// One pod names its image by tag; two run another one, whatever their tag says by now.
	run("named", "registry.example.com/team/named:1", "")
	run("run-1", "registry.example.com/team/idle:1", "registry.example.com/team/run@"+digest)
	run("run-2", "registry.example.com/team/other:1", "registry.example.com/team/run@"+digest)

	want := func(selector string, names ...string) {
		t.Helper()
		harness.Eventually(t, func() error {
			if got := selected(t, s, selector); !slices.Equal(got, names) {
				return fmt.Errorf("%s selects %q, want %q", selector, got, names)
			}
			return nil
		})
	}
	want("used=true", "named", digest)
	want("used=false", "idle")
	want("used!=false,metadata.name!=named", digest)
	for name, pods := range map[string]string{"named": "1", "idle": "0", digest: "2"} {
		rows := lines(s.Kubectl(t, "get", "image", name, "-o", "wide"))
		if got := cells(rows[0], rows[1])["PODS"]; got != pods {
			t.Errorf("%s: PODS = %q, want %s", name, got, pods)
		}
	}

	s.Kubectl(t, "delete", "pod", "run-1", "run-2", "--force", "--grace-period=0")
	want("used=true", "named")
	want("used=false", "idle", digest)
	s.Kubectl(t, "delete", "images", "--field-selector", "used=false")
	if got := imageNames(t, s); !slices.Equal(got, []string{"named"}) {
		t.Errorf("after those not used were deleted there are %q", got)
	}

	for _, selector := range []string{"used=maybe", "used="} {
		if got := s.TryKubectl(t, "get", "images", "--field-selector", selector); got.Code == 0 {
			t.Errorf("%s was accepted", selector)
		} else {
			wantContains(t, "the message", got.Stderr, "true, false")
		}
	}
	if got := s.TryKubectl(t, "get", "images", "--field-selector", "used=true", "--watch-only"); got.Code == 0 {
		t.Error("a watch by use was accepted")
	} else {
		wantContains(t, "the message", got.Stderr, "cannot be watched")
	}
	s.Kubectl(t, "delete", "pod", "named", "--force", "--grace-period=0")
}

// The reviews that the document on images shows can be created with kubectl, which asks for
// CustomResourceDefinitions before it creates an object that cannot be patched, also by who may do
// nothing but ask.
func TestReviewsAreCreated(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	s.Kubectl(t, "create", "clusterrolebinding", "asker", "--clusterrole=tidewaiter:image-viewer", "--user=asker")
	text, err := os.ReadFile("../docs/reference/images.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?ms)^kubectl create -o yaml -f - <<'END'\n(.*?)^END$`).FindAllStringSubmatch(string(text), -1)
	if len(shown) != 2 {
		t.Fatalf("the document shows %d reviews", len(shown))
	}
	for i, want := range []string{"state: Absent", "examined:"} {
		for _, as := range [][]string{nil, {"--as=asker"}} {
			if got := s.KubectlStdin(t, shown[i][1], append([]string{"create", "-o", "yaml", "-f", "-"}, as...)...); !strings.Contains(got, want) {
				t.Errorf("%v is answered\n%s\nwant %q", as, got, want)
			}
		}
	}
}

// Images that share a layer in a registry are found by it, those that are built on another by that,
// and what loses the layer is what impact says.
func TestAskingForLayers(t *testing.T) {
	t.Parallel()
	r, s := registry.Start(t, registry.Distribution), harness.StartServer(t)
	base := images.Numbered(t, 1)[0]
	// so it is known by the digest and the layers
	on := images.On(t, base, "elsewhere.example.com/base:1")
	digests := map[string]string{}
	for name, image := range map[string]v1.Image{"base": base, "other": images.HelloWorld(t), "on": on} {
		digests[name] = images.Digest(t, image).String()
		s.Import(t, r.Push(t, "team/"+name+":v1", image))
	}
	layers, err := base.Layers()
	must(t, err)
	shared, err := layers[0].Digest()
	must(t, err)
	want := []string{digests["base"], digests["on"]}
	slices.Sort(want)
	if got := selected(t, s, "layer="+shared.String()); !slices.Equal(got, want) {
		t.Errorf("the layer is in %q, want %q", got, want)
	}
	if got := selected(t, s, "base="+r.Host+"/team/base:v1"); !slices.Equal(got, []string{digests["on"]}) {
		t.Errorf("on the base is built %q, want %s", got, digests["on"])
	}
	got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"impact", "--kubeconfig", s.Kubeconfig, "--layer", shared.String(), "-o", "wide"}})
	for name, is := range map[string]bool{"base": true, "on": true, "other": false} {
		if strings.Contains(got.Stdout, "/team/"+name) != is {
			t.Errorf("the layer of %s: %s%s", name, got.Stdout, got.Stderr)
		}
	}
	got = harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"impact", "--kubeconfig", s.Kubeconfig, "--base", r.Host + "/team/base:v1", "-o", "wide"}})
	for name, is := range map[string]bool{"base": false, "on": true, "other": false} {
		if strings.Contains(got.Stdout, " "+r.Host+"/team/"+name+":v1 ") != is {
			t.Errorf("on the base, %s: %s%s", name, got.Stdout, got.Stderr)
		}
	}
}
