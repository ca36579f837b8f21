package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A guarded tag of a stream leads to what cosign has signed: it waits for a policy, then for a
// signature, and moves by itself. What oc tag asks for is refused while it is not signed.
func TestGuardedTags(t *testing.T) {
	t.Parallel()
	r, s, c := registry.Start(t, registry.Distribution), harness.StartServer(t), newCosign(t)
	c.key("release", "p256")
	all := images.Numbered(t, 3)
	digest := func(i int) string { return images.Digest(t, all[i]).String() }
	repository := r.Host + "/team/app"
	push := func(i int, tag string) {
		t.Helper()
		r.Push(t, "team/app:"+tag, all[i])
		s.Import(t, repository+":"+tag)
	}
	push(0, "v1")
	c.sign("legacy", "release", repository+"@"+digest(0))
	s.Import(t, repository+":v1")
	s.Kubectl(t, "create", "namespace", "team")
	s.KubectlStdin(t, fmt.Sprintf(`
apiVersion: image.openshift.io/v1
kind: ImageStream
metadata: {name: app, namespace: team}
spec:
  tags:
  - name: prod
    annotations: {tidewaiter.dev/promotion: verified}
    from: {kind: DockerImage, name: "%s:v1"}
  - {name: live, from: {kind: ImageStreamTag, name: prod}}
`, repository), "create", "-f", "-")
	leads := func(image, why string) {
		t.Helper()
		harness.Eventually(t, func() error {
			got := s.Kubectl(t, "get", "is", "app", "-n", "team", "-o", `jsonpath={range .status.tags[*]}{.tag} {.items[0].image} {.conditions[?(@.type=="ImportSuccess")].message}{"\n"}{end}`)
			for _, want := range []string{"prod " + image + " " + why, "live " + image + " "} {
				if image != "" && !strings.Contains("\n"+got, "\n"+want) || !strings.Contains(got, why) {
					return fmt.Errorf("want %q in\n%s", want, got)
				}
			}
			return nil
		})
	}
	waits := "the tag moves only to what a policy verifies (tidewaiter.dev/promotion): "
	leads("", waits+"no policy covers "+repository+"@"+digest(0))
	s.KubectlStdin(t, c.keysPolicy("release", repository, "release"), "create", "-f", "-")
	leads(digest(0), "\n")

	push(1, "v1")
	leads(digest(0), waits+repository+"@"+digest(1)+" is Unsigned: ")
	wantContains(t, "describe is", s.Kubectl(t, "describe", "is", "app", "-n", "team"), "NotVerified", "app:prod waits: "+waits, "Promoted")

	push(2, "next")
	own := streamCaller{restClient(t, s.Config(t))}
	tag := func(image string) (int, map[string]any) {
		t.Helper()
		return own.send(t, "PUT", "namespaces/team/imagestreamtags/app:prod", nil, map[string]any{"kind": "ImageStreamTag", "apiVersion": "image.openshift.io/v1",
			"metadata": map[string]any{"name": "app:prod", "namespace": "team"}, "tag": map[string]any{"from": map[string]any{"kind": "DockerImage", "name": repository + "@" + image}}})
	}
	if code, answer := tag(digest(2)); code != http.StatusUnprocessableEntity || !strings.Contains(fmt.Sprint(answer["message"]), "@"+digest(2)+" is Unsigned") {
		t.Errorf("oc tag is answered with %d %v", code, answer["message"])
	}
	c.sign("bundle", "release", repository+"@"+digest(1))
	s.Import(t, repository+":v1")
	leads(digest(1), "\n")
	c.sign("bundle", "release", repository+"@"+digest(2))
	s.Import(t, repository+":next")
	harness.Eventually(t, func() error {
		if code, answer := tag(digest(2)); code != http.StatusOK {
			return fmt.Errorf("oc tag is answered with %d %v", code, answer["message"])
		}
		return nil
	})
	leads(digest(2), "\n")
	if got := s.Kubectl(t, "get", "istag", "app:prod", "-n", "team", "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/promotion}`); got != "verified" {
		t.Errorf("oc tag leaves the guard %q", got)
	}
}
