package imageapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// ownRegistry is that of the streams of newMappings.
const ownRegistry = "registry.internal:5000"

func newMappings(t testing.TB, authorizer imageapi.Authorizer) *tagStorages {
	t.Helper()
	return newTagStoragesOf(t, imageapi.Options{Authorizer: authorizer, Registry: ownRegistry})
}

// pushed is the mapping that OpenShift's registry sends of a push to a stream of the namespace team. Images differ by n.
func pushed(t testing.TB, stream, tag string, n int) *imagev1.ImageStreamMapping {
	t.Helper()
	image := ociImage(t)
	if n > 0 { // one without a manifest, of any digest
		image = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(n)}}
	}
	image.Annotations = map[string]string{imagev1.ManagedByOpenShiftAnnotation: "true", imagev1.ImageManifestBlobStoredAnnotation: "true"}
	image.DockerImageReference = ownRegistry + "/team/" + stream + "@" + image.Name
	return &imagev1.ImageStreamMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: stream}, Image: *image, Tag: tag}
}

func (s *tagStorages) mapped(mapping *imagev1.ImageStreamMapping, dryRun ...string) error {
	obj, err := s.all["imagestreammappings"].(rest.Creater).Create(inNamespace("team", s.asUser), mapping.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return err
	}
	if status, ok := obj.(*metav1.Status); !ok || status.Status != metav1.StatusSuccess {
		return fmt.Errorf("answered with %+v", obj)
	}
	return nil
}

func (s *tagStorages) mustMap(mapping *imagev1.ImageStreamMapping) {
	s.t.Helper()
	if err := s.mapped(mapping); err != nil {
		s.t.Fatal(err)
	}
}

// known is by what an image is known, with commas.
func (s *tagStorages) known(name string) string {
	s.t.Helper()
	obj, err := s.images.Get(requestContext(), name, &metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var texts []string
	for _, ref := range annotation.Known(obj.(*imagev1.Image).Annotations) {
		texts = append(texts, strings.TrimPrefix(ref.String(), ownRegistry+"/team/"))
	}
	return strings.Join(texts, ",")
}

// A registry makes a stream that is not there when the error says so in OpenShift's words, and maps again.
func TestMappingOfAStreamThatIsNotThere(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	mapping := pushed(t, "app", "v1", 0)
	err := s.mapped(mapping)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != 404 || status.Status().Details.Kind != "imagestreammappings" || status.Status().Details.Name != "app" {
		t.Fatalf("without a stream: %+v", err)
	}
	if _, err := s.images.Get(requestContext(), mapping.Image.Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the image was stored nevertheless: %v", err)
	}
	made := s.mustCreateStream(stream("app", ""))
	if made.Status.DockerImageRepository != ownRegistry+"/team/app" {
		t.Errorf("the stream is of %q", made.Status.DockerImageRepository)
	}
	s.mustMap(mapping)
	tag, err := s.streamTag("team", "app:v1")
	if err != nil || tag.Image.Name != mapping.Image.Name || len(tag.Image.DockerImageLayers) == 0 || tag.Image.DockerImageReference != mapping.Image.DockerImageReference {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
}

// A stream of the own registry shows how that is called from elsewhere. A stream of another registry does not.
func TestPublicRepositories(t *testing.T) {
	t.Parallel()
	s := newTagStoragesOf(t, imageapi.Options{Registry: ownRegistry, PublicRegistry: "images.example.com"})
	for name, want := range map[string]string{"app": "images.example.com/team/app", "other": ""} {
		from := ""
		if want == "" {
			from = repository
		}
		s.mustCreateStream(stream(name, from))
		if got := s.stream(name).Status.PublicDockerImageRepository; got != want {
			t.Errorf("%s is known from elsewhere as %q, want %q", name, got, want)
		}
	}
	if got := newMappings(t, nil).mustCreateStream(stream("app", "")).Status.PublicDockerImageRepository; got != "" {
		t.Errorf("without another name it is known from elsewhere as %q", got)
	}
}

// Where the tag leads moves with each push, what follows it moves along, what has left an image is taken off it, and a push
// of the same again is no news.
func TestMappingsMoveTags(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", "", "prod", "ImageStreamTag/v1"))
	for _, n := range []int{1, 2, 2, 1} {
		s.mustMap(pushed(t, "app", "v1", n))
	}
	s.mustMap(pushed(t, "app", "", 2))
	got := s.stream("app")
	for tag, want := range map[string]string{"v1": "1 2 1", "prod": "1 2 1", "latest": "2"} {
		if h := history(got, tag); h != want {
			t.Errorf("%s led to %q, want %q", tag, h, want)
		}
	}
	if one, two := s.known(digestOf(1)), s.known(digestOf(2)); one != "app:v1" || two != "app:latest" {
		t.Errorf("the images are known by %s and by %s", one, two)
	}
	if err := s.remove("team", "app:v1", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.stream("app"); history(got, "v1") != "" || history(got, "latest") != "2" {
		t.Errorf("after the deletion of v1 it is %+v", got.Status)
	}
	if known := s.known(digestOf(1)); known != "" {
		t.Errorf("after the deletion of v1 its image is known by %s", known)
	}
}

// Signatures do not come with a push, and a dry run changes nothing.
func TestMappingsBringNoSignatures(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	mapping := pushed(t, "app", "v1", 0)
	mapping.Image.Signatures = []imagev1.ImageSignature{signature(mapping.Image.Name, "one", "atomic", "anything")}
	if err := s.mapped(mapping, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if _, err := s.images.Get(requestContext(), mapping.Image.Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) || history(s.stream("app"), "v1") != "" {
		t.Errorf("a dry run made the image (%v) or the tag", err)
	}
	s.mustMap(mapping)
	obj, err := s.images.Get(requestContext(), mapping.Image.Name, &metav1.GetOptions{})
	if err != nil || len(obj.(*imagev1.Image).Signatures) != 0 {
		t.Errorf("stored is %+v, %v", obj, err)
	}
}

// What is pushed to a second stream is of that one, too, with what an index lists: a registry may give out its layers.
func TestMappingOfAnImageOfAnotherStream(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("one", ""))
	s.mustCreateStream(stream("two", ""))
	child := pushed(t, "one", "child", 0)
	s.mustMap(child)
	index := pushed(t, "one", "v1", 7)
	index.Image.DockerImageManifests = []imagev1.ImageManifest{{Digest: child.Image.Name, MediaType: "application/vnd.oci.image.manifest.v1+json", Architecture: "amd64", OS: "linux"}}
	s.mustMap(index)
	index.Name, index.Image.DockerImageReference = "two", ownRegistry+"/team/two@"+index.Image.Name
	s.mustMap(index)
	obj, err := s.all["imagestreams/layers"].(rest.Getter).Get(inNamespace("team", "alice"), "two", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	layers := obj.(*imagev1.ImageStreamLayers)
	if images := layers.Images[child.Image.Name]; images.ImageMissing || len(images.Layers) == 0 || layers.Images[index.Image.Name].ImageMissing {
		t.Errorf("the layers are %+v", layers.Images)
	}
}

// Twelve pushes to one stream at once, three of each of four tags: none is refused, and no history loses one.
func TestParallelMappings(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	var wait sync.WaitGroup
	for n := range 12 {
		wait.Go(func() {
			if err := s.mapped(pushed(t, "app", fmt.Sprint("v", n%4), n+1)); err != nil {
				t.Errorf("push %d: %v", n, err)
			}
		})
	}
	wait.Wait()
	got := s.stream("app")
	for n := range 4 {
		tag := fmt.Sprint("v", n)
		items := strings.Fields(history(got, tag))
		if len(items) != 3 {
			t.Errorf("%s led to %v", tag, items)
			continue
		}
		now := got.Status.Tags[n].Items[0].Image
		for i := n + 1; i <= 12; i += 4 {
			if has := strings.Contains(s.known(digestOf(i)), ":"+tag); has != (digestOf(i) == now) {
				t.Errorf("%s leads to %s, and %s is known by %s", tag, now, digestOf(i), s.known(digestOf(i)))
			}
		}
	}
}

// A push moves a tag that follows itself in the registry: oc import-image of the whole stream, or of its latest, writes such tags
// into spec, since that names the stream's repository.
func TestMappingOfATagThatFollowsItself(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	own := ownRegistry + "/team/app"
	s.mustCreateStream(stream("app", "", "latest", "DockerImage/"+own, "v1", "DockerImage/"+own+":v1", "next", "DockerImage/"+own+":v1"))
	s.mustMap(pushed(t, "app", "latest", 1))
	s.mustMap(pushed(t, "app", "v1", 2))
	s.mustMap(pushed(t, "app", "v1", 3))
	got := s.stream("app")
	for tag, want := range map[string]string{"latest": "1", "v1": "3 2", "next": "3 2"} {
		if h := history(got, tag); h != want {
			t.Errorf("%s led to %q, want %q", tag, h, want)
		}
	}
	if err := s.mapped(pushed(t, "app", "next", 4)); !apierrors.IsInvalid(err) {
		t.Errorf("a push to a tag that follows another: %v", err)
	}
}

// Mappings that say what the registry cannot know, or what the stream says otherwise, are refused.
func TestMappingsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", "", "fixed", "DockerImage/"+repository+":v1"))
	s.mustCreateStream(stream("other", repository))
	for name, c := range map[string]struct {
		change func(*imagev1.ImageStreamMapping)
		want   string
	}{
		"another registry": {func(m *imagev1.ImageStreamMapping) {
			m.Image.DockerImageReference = "docker.io/team/app@" + m.Image.Name
		}, "must be in the stream's repository, " + ownRegistry + "/team/app"},
		"another repository": {func(m *imagev1.ImageStreamMapping) {
			m.Image.DockerImageReference = ownRegistry + "/secret/app@" + m.Image.Name
		}, "must be in the stream's repository"},
		"a stream of others":   {func(m *imagev1.ImageStreamMapping) { m.Name = "other" }, "leave out its spec.dockerImageRepository"},
		"a tag that follows":   {func(m *imagev1.ImageStreamMapping) { m.Tag = "fixed" }, "the stream says that fixed follows"},
		"no tag":               {func(m *imagev1.ImageStreamMapping) { m.Tag = "a b" }, "must be a tag"},
		"no digest":            {func(m *imagev1.ImageStreamMapping) { m.Image.Name = "app" }, "must be the digest"},
		"another one's digest": {func(m *imagev1.ImageStreamMapping) { m.Image.Name = digestOf(3) }, "is named by its digest"},
		"no name":              {func(m *imagev1.ImageStreamMapping) { m.Name = "" }, "name or generateName is required"},
	} {
		mapping := pushed(t, "app", "v1", 0)
		c.change(mapping)
		if err := s.mapped(mapping); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	none := newTagStorages(t)
	none.mustCreateStream(stream("app", ""))
	if err := none.mapped(pushed(t, "app", "v1", 0)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "streams.registry") {
		t.Errorf("of no registry: %v", err)
	}
}

// denyImages lets everybody do everything but one thing with images.
type denyImages string

func (d denyImages) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetResource() == "images" && what.GetVerb() == string(d) && what.GetNamespace() == "" {
		return authorizer.DecisionDeny, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Whoever may map, and knows the digest of an image that he may not read, does not get it into his stream; nor does he
// make images that he may not make.
func TestAttackMappingOfAnImageOfOthers(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"get", "create"} {
		s := newMappings(t, denyImages(verb))
		name := s.stored(ownRegistry + "/secret/app")
		s.mustCreateStream(stream("app", ""))
		mapping := pushed(t, "app", "v1", 0)
		mapping.Image.DockerImageManifest, mapping.Image.DockerImageConfig = "", ""
		if verb == "create" {
			mapping.Image.Name = digestOf(4)
			mapping.Image.DockerImageReference = ownRegistry + "/team/app@" + digestOf(4)
		} else if mapping.Image.Name != name {
			t.Fatalf("%s is not %s", mapping.Image.Name, name)
		}
		if err := s.mapped(mapping); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may not "+verb+" images") {
			t.Errorf("%s: %v", verb, err)
		}
		if got := history(s.stream("app"), "v1"); got != "" {
			t.Errorf("%s: the tag leads to %s", verb, got)
		}
	}
}

// A stream that is deleted takes with it what was pushed to it: whoever makes one of its name later does not get that.
func TestAttackStreamOfADeletedName(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	s.mustMap(pushed(t, "app", "v1", 1))
	ctx := inNamespace("team", "alice")
	if _, _, err := s.streams.Delete(ctx, "app", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if got := history(s.stream("app"), "v1"); got != "1" {
		t.Errorf("a dry run took the tag: %q", got)
	}
	if _, _, err := s.streams.Delete(ctx, "app", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if made := s.mustCreateStream(stream("app", "")); len(made.Status.Tags) != 0 {
		t.Errorf("the new stream has %+v", made.Status.Tags)
	}
	if known := s.known(digestOf(1)); known != "" {
		t.Errorf("the image is known by %s", known)
	}
}

// A stream of the registry keeps its repository when it is written by who leaves it out, follows another if that is said, and
// a stream from before there was a registry gets it with the first push.
func TestStreamsOfTheRegistry(t *testing.T) {
	t.Parallel()
	s := newMappings(t, allow{"default/registry.example.com--team--app"}) // who may follow that repository and no other
	made := s.mustCreateStream(stream("app", ""))
	made.Spec.DockerImageRepository, made.Labels = "", map[string]string{"a": "b"}
	updated, err := s.updateStream(s.streams, made)
	if err != nil || updated.Spec.DockerImageRepository != ownRegistry+"/team/app" || updated.Generation != 1 {
		t.Fatalf("written without it: %+v, %v", updated, err)
	}
	if _, err := s.createStream("team", stream("other", ownRegistry+"/secret/app")); !apierrors.IsInvalid(err) {
		t.Errorf("of another namespace: %v", err)
	}
	if _, err := s.createStream("team", stream("again", ownRegistry+"/team/again")); err != nil {
		t.Errorf("with its own repository written out: %v", err)
	}
	updated.Spec.DockerImageRepository = repository
	if updated, err = s.updateStream(s.streams, updated); err != nil || updated.Spec.DockerImageRepository != repository {
		t.Errorf("another repository: %+v, %v", updated, err)
	}
	if _, err := s.createStream("team", stream("a___b", "")); err != nil {
		t.Errorf("a name that no repository has: %v", err)
	}
}

// The registry asks for the pull secrets of a stream; there are none.
func TestStreamSecrets(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	secrets := s.all["imagestreams/secrets"].(rest.Getter)
	if obj, err := secrets.Get(inNamespace("team", "alice"), "app", &metav1.GetOptions{}); err != nil || len(obj.(*imagev1.SecretList).Items) != 0 {
		t.Errorf("it has %+v, %v", obj, err)
	}
	if _, err := secrets.Get(inNamespace("team", "alice"), "none", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of no stream: %v", err)
	}
}

// A tag that three pushers move a thousand times keeps its history in order, each push an item on top of those before, and
// the stream shows the last.
func TestHistoryOfMappingsUnderThreeWriters(t *testing.T) {
	t.Parallel()
	const pushes, writers = 1000, 3
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	s.mustMap(pushed(t, "app", "v1", 1))
	watcher, err := s.tags.(rest.Watcher).Watch(inNamespace(tags.Namespace, s.asUser), &internalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	// A watch may begin after it was opened, and shows first what there is then: the pushes wait for that.
	first, ok := (<-watcher.ResultChan()).Object.(*imagev1.ImageTag)
	if !ok || len(first.Status.Items) != 1 {
		t.Fatalf("the watch begins with %+v", first)
	}
	before := first.Status.Items
	var all sync.WaitGroup
	defer all.Wait()             // also after a failure: a push needs the test's database
	ahead := make(chan bool, 10) // pushes that the watch was not told of: a watch that falls behind is ended
	failed := make(chan bool)
	defer close(failed)
	for w := range writers {
		all.Go(func() {
			for n := 2 + w; n < 2+pushes; n += writers {
				select {
				case ahead <- true:
				case <-failed:
					return
				}
				if err := s.mapped(pushed(t, "app", "v1", n)); err != nil {
					t.Errorf("push %d: %v", n, err)
				}
			}
		})
	}
	seen := map[string]bool{}
	for patience := time.After(5 * time.Minute); len(seen) < pushes; {
		select {
		case event, ok := <-watcher.ResultChan():
			tag, is := event.Object.(*imagev1.ImageTag)
			if !ok || !is {
				t.Fatalf("told %s %+v after %d pushes", event.Type, event.Object, len(seen))
			}
			<-ahead
			items := tag.Status.Items
			seen[items[0].Image] = true
			if rest := before[:min(len(before), tags.MaxItems-1)]; !slices.Equal(items[1:], rest) {
				t.Fatalf("there is %v below the newest, before there was %v", items[1:], before)
			}
			for i := 1; i < len(items); i++ {
				if items[i-1].Created.Before(&items[i].Created) || items[i-1].Generation < items[i].Generation {
					t.Fatalf("%+v comes after %+v", items[i-1], items[i])
				}
			}
			before = items
		case <-patience:
			t.Fatalf("%d pushes were told of", len(seen))
		}
	}
	all.Wait()
	if got := s.stream("app").Status.Tags; len(got) != 1 || got[0].Items[0] != before[0] {
		t.Errorf("the stream shows %+v, the last push is %+v", got, before[0])
	}
}
