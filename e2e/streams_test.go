package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A repository that was imported is an image stream; another follows one of its tags. Whoever watches sees the tag move.
func TestImageStreams(t *testing.T) {
	s, r := harness.StartServer(t), registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 2)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	repository := r.Host + "/team/app"
	name := strings.ReplaceAll(strings.ReplaceAll(repository, ":", "_"), "/", "--")
	r.Push(t, "team/app:v1", imgs[0])
	s.Import(t, "--kubeconfig", s.Kubeconfig, repository+":v1")
	harness.Eventually(t, func() error {
		if got := s.Kubectl(t, "get", "is,pods"); !strings.Contains(got, name) {
			return fmt.Errorf("there is no stream %s: %s", name, got)
		}
		return nil
	})
	wantContains(t, "get is", s.Kubectl(t, "get", "is"), "NAME", "IMAGE REPOSITORY", "TAGS", "UPDATED", repository, "v1", " ago")
	wantContains(t, "get all", s.Kubectl(t, "get", "all"), "imagestream.image.openshift.io/"+name)
	wantContains(t, "explain", s.Kubectl(t, "explain", "imagestream.spec.tags.from"), "KIND:", "ImageStream")

	s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":"app","namespace":"default"},
		"spec":{"tags":[{"name":"prod","from":{"kind":"DockerImage","name":"%s:v1"}},{"name":"latest","from":{"kind":"ImageStreamTag","name":"prod"}}]}}`, repository), "create", "-f", "-")
	head := `jsonpath={range .status.tags[*]}{.tag}={.items[0].image} {end}`
	if got, want := s.Kubectl(t, "get", "is", "app", "-o", head), fmt.Sprintf("latest=%s prod=%s ", digest(0), digest(0)); got != want {
		t.Errorf("it leads to %s, want %s", got, want)
	}
	// kubectl cannot use a template with a range twice.
	watch := harness.Start(t, s.KubectlCommand(t, "get", "is", "app", "--watch", "-o", `jsonpath={.status.tags[*].items[0].image}{"\n"}`))
	watch.Stdout.AwaitMatch(t, regexp.MustCompile(digest(0)+" "+digest(0)))
	r.Push(t, "team/app:v1", imgs[1])
	s.Import(t, "--kubeconfig", s.Kubeconfig, repository+":v1")
	watch.Stdout.AwaitMatch(t, regexp.MustCompile(digest(1)+" "+digest(1)))

	s.Kubectl(t, "patch", "is", "app", "--type=merge", "-p", `{"spec":{"tags":[{"name":"prod","from":{"kind":"DockerImage","name":"`+repository+"@"+digest(0)+`"}}]}}`)
	if got, want := s.Kubectl(t, "get", "is", "app", "-o", `jsonpath={.metadata.generation} {.status.tags[?(@.tag=="prod")].items[*].image}`), fmt.Sprintf("2 %s %s %s", digest(0), digest(1), digest(0)); got != want {
		t.Errorf("after the patch: %s, want %s", got, want)
	}
	s.Kubectl(t, "delete", "is", "app")
	if got := s.Kubectl(t, "get", "is", "-o", "name"); strings.TrimSpace(got) != "imagestream.image.openshift.io/"+name {
		t.Errorf("after the deletion there are %s", got)
	}
}
