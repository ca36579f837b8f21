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

// A repository that was imported is an image stream; another follows one of its tags. Whoever
// watches sees the tag move.
func TestImageStreams(t *testing.T) {
	t.Parallel()
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
	tagsOfStreams(t, s, repository, name, digest)
	s.Kubectl(t, "delete", "is", "app")
	if got := s.Kubectl(t, "get", "is", "-o", "name"); strings.TrimSpace(got) != "imagestream.image.openshift.io/"+name {
		t.Errorf("after the deletion there are %s", got)
	}
}

// tagsOfStreams works with the tags of streams one by one, as kubectl and scripts do. The tag prod
// of the stream app leads to the first image, v1 of the repository's own stream to the second.
func tagsOfStreams(t *testing.T, s *harness.Server, repository, auto string, digest func(int) string) {
	t.Helper()
	wantContains(t, "get istag", s.Kubectl(t, "get", "istag", "-o", "wide", "--chunk-size=1"),
		"NAME", "IMAGE REFERENCE", "UPDATED", "IMAGE NAME", "app:latest", "app:prod", auto+":v1", repository+"@"+digest(1), " ago")
	if got := s.Kubectl(t, "get", "all"); strings.Contains(got, digest(0)[len("sha256:"):][:12]) || strings.Contains(got, "imagestreamtag.") {
		t.Errorf("get all has images or tags: %s", got)
	}
	wantContains(t, "get img", s.Kubectl(t, "get", "img", "-o", "name"), digest(0), digest(1))
	wantContains(t, "explain", s.Kubectl(t, "explain", "imagestreamtag.tag.from"), "KIND:", "ImageStreamTag")
	leads := func(tag string, i int) {
		t.Helper()
		if got, want := s.Kubectl(t, "get", "istag", tag, "-o", `jsonpath={.image.metadata.name} {.image.dockerImageMetadata.kind} {.image.dockerImageManifest}`), digest(i)+" DockerImage "; got != want {
			t.Errorf("%s has %q, want %q", tag, got, want)
		}
	}
	leads("app:prod", 0)
	leads(auto+":v1", 1)

	if got, want := s.Kubectl(t, "get", "isimage", "app@"+digest(0)[:19], "-o", "name"), "imagestreamimage.image.openshift.io/app@"+digest(0); strings.TrimSpace(got) != want {
		t.Errorf("by the beginning of its digest it is %s, want %s", got, want)
	}
	wantContains(t, "layers", s.Kubectl(t, "get", "--raw", "/apis/image.openshift.io/v1/namespaces/default/imagestreams/app/layers"), `"`+digest(0)+`":{`, `"config":"sha256:`)

	tag := func(name, from string) string {
		return fmt.Sprintf(`{"apiVersion":"image.openshift.io/v1","kind":"ImageStreamTag","metadata":{"name":%q,"namespace":"default"},"tag":{"from":{"kind":"ImageStreamTag","name":%q}}}`, name, from)
	}
	s.KubectlStdin(t, tag("made:v1", "app:prod"), "create", "-f", "-")
	leads("made:v1", 0)
	again := s.KubectlCommand(t, "create", "-f", "-")
	again.Stdin = tag("made:v1", "app:prod")
	if r := harness.Run(t, again); r.Code == 0 || !strings.Contains(r.Stderr, "AlreadyExists") {
		t.Errorf("made again: %s", r.Stderr)
	}
	path := "/apis/image.openshift.io/v1/namespaces/default/imagestreamtags/"
	s.KubectlStdin(t, tag("put:v1", auto+":v1"), "replace", "--raw", path+"put:v1", "-f", "-")
	leads("put:v1", 1)
	for range 2 {
		s.KubectlStdin(t, tag("applied:v1", "app:prod"), "apply", "-f", "-")
		s.KubectlStdin(t, tag("applied:v2", "app:prod"), "apply", "--server-side", "-f", "-")
	}
	leads("applied:v1", 0)
	s.KubectlStdin(t, tag("applied:v1", auto+":v1"), "apply", "-f", "-")
	leads("applied:v1", 1)
	s.Kubectl(t, "annotate", "istag", "applied:v1", "who=me")
	s.Kubectl(t, "patch", "istag", "applied:v2", "--type=merge", "-p", `{"tag":{"from":{"name":"`+auto+`:v1"}}}`)
	leads("applied:v2", 1)
	if got, want := s.Kubectl(t, "get", "is", "applied", "-o", `jsonpath={.spec.tags[0].annotations.who} {.status.tags[?(@.tag=="v2")].items[*].image}`), fmt.Sprintf("me %s %s", digest(1), digest(0)); got != want {
		t.Errorf("the stream has %q, want %q", got, want)
	}
	s.Kubectl(t, "delete", "istag", "applied:v1", "applied:v2", auto+":v1")
	if got := s.Kubectl(t, "get", "istag", "-o", "name"); strings.Contains(got, "applied:") || strings.Contains(got, auto) || !strings.Contains(got, "made:v1") {
		t.Errorf("after the deletion there are %s", got)
	}
	s.Kubectl(t, "delete", "is", "applied", "made", "put")
}
