package imageapi_test

import (
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// ownRegistry is that of the streams of newMappings.
const ownRegistry = "registry.internal:5000"

func newMappings(t testing.TB, may authorizer.UnconditionalAuthorizer) *tagStorages {
	t.Helper()
	return newTagStoragesOf(t, imageapi.Options{Authorizer: may, Registry: ownRegistry})
}

// pushed is the mapping that OpenShift's registry sends of a push to a stream of the namespace
// team. Images differ by n.
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
	obj, err := s.all.Mappings.Create(inNamespace("team", s.asUser), mapping.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
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

// A registry makes a stream that is not there when the error says so in OpenShift's words, and maps
// again.
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

// Each stream shows its place in the registry of the streams, and how that is called from
// elsewhere, whatever it follows: oc registry login sends its token to the host of the first stream
// that it finds. Without a registry a stream names none.
func TestAttackCredentialsForWhatAStreamFollows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ registry, public, internal, external string }{
		{ownRegistry, "images.example.com", ownRegistry + "/team/", "images.example.com/team/"},
		{ownRegistry, "", ownRegistry + "/team/", ""},
		{},
	} {
		s := newTagStoragesOf(t, imageapi.Options{Registry: c.registry, PublicRegistry: c.public})
		for name, follows := range map[string]string{"app": "", "other": repository} {
			s.mustCreateStream(stream(name, follows))
			internal, external := "", ""
			if c.internal != "" {
				internal = c.internal + name
			}
			if c.external != "" {
				external = c.external + name
			}
			if got := s.stream(name).Status; got.DockerImageRepository != internal || got.PublicDockerImageRepository != external {
				t.Errorf("with the registry %q and %q a stream that follows %q names %q and %q", c.registry, c.public, follows, got.DockerImageRepository, got.PublicDockerImageRepository)
			}
			field := fields.OneTermEqualSelector("status.dockerImageRepository", internal)
			list, err := s.streams.List(inNamespace("team", s.asUser), &internalversion.ListOptions{FieldSelector: field})
			if err != nil || !slices.ContainsFunc(list.(*imagev1.ImageStreamList).Items, func(one imagev1.ImageStream) bool { return one.Name == name }) {
				t.Errorf("%s selects %+v, %v", field, list, err)
			}
		}
	}
}

// A tag whose image is to be pulled from the registry of the streams says so, whichever way it is
// read. Without such a registry it says where its image is.
func TestLocalReferences(t *testing.T) {
	t.Parallel()
	for registry, want := range map[string]string{ownRegistry: ownRegistry + "/team/app@", "": repository + "@"} {
		s := newTagStoragesOf(t, imageapi.Options{Registry: registry})
		name := s.stored(repository)
		local := istag("app:v1", "DockerImage/"+repository+"@"+name)
		local.Tag.ReferencePolicy.Type = imagev1.LocalTagReferencePolicy
		made, _, err := s.put(local)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.put(istag("app:v2", "DockerImage/"+repository+"@"+name)); err != nil {
			t.Fatal(err)
		}
		read, err := s.streamTag("team", "app:v1")
		if err != nil {
			t.Fatal(err)
		}
		source, err := s.streamTag("team", "app:v2")
		if err != nil {
			t.Fatal(err)
		}
		obj, err := s.all.Tags.Get(inNamespace("team", s.asUser), "app:v1", &metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.streamTags().List(inNamespace("team", s.asUser), &internalversion.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		listed := list.(*imagev1.ImageStreamTagList).Items
		for what, c := range map[string]struct {
			image *imagev1.Image
			want  string
		}{
			"the answer": {&made.Image, want}, "the tag": {&read.Image, want}, "the imagetag": {obj.(*imagev1.ImageTag).Image, want}, "the list": {&listed[0].Image, want},
			"the tag of the other policy": {&source.Image, repository + "@"}, "that in the list": {&listed[1].Image, repository + "@"},
		} {
			if got := c.image.DockerImageReference; got != c.want+name {
				t.Errorf("with the registry %q %s has %q, want %q", registry, what, got, c.want+name)
			}
		}
		if len(read.Image.DockerImageLayers) == 0 {
			t.Error("the tag does not have its image")
		}
	}
}

// Where the tag leads moves with each push, what follows it moves along, what has left an image is
// taken off it, and a push of the same again is not news.
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

// postImage is what OpenShift's registry sends of a push by digest to a stream of the namespace
// team.
func (s *tagStorages) postImage(stream string, image imagev1.Image) error {
	image.DockerImageReference = ownRegistry + "/team/" + stream + "@" + image.Name
	_, err := s.images.(rest.Creater).Create(requestContext(), image.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	return err
}

// indexOf is an index of images for linux/amd64.
func indexOf(t *testing.T, images ...imagev1.Image) *imagev1.Image {
	t.Helper()
	var entries []any
	for _, image := range images {
		entries = append(entries, map[string]any{"mediaType": manifest.MediaTypeOCIManifest, "digest": image.Name, "size": len(image.DockerImageManifest), "platform": map[string]any{"os": "linux", "architecture": "amd64"}})
	}
	raw, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifest.MediaTypeOCIIndex, "manifests": entries})
	if err != nil {
		t.Fatal(err)
	}
	return ofManifest(t, string(raw))
}

// What is pushed to a second stream is of that one, too, with what an index lists, as far as that
// was pushed: a registry may give out its layers. The registry takes an index that lists anything,
// and says of an image that is there only that it was pushed again.
func TestAttackIndexThatIsPushedListsAnImageOfAnotherStream(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("one", ""))
	s.mustCreateStream(stream("app", ""))
	child := pushed(t, "one", "child", 0)
	s.mustMap(child)
	index := mappingOf("v1", indexOf(t, child.Image))
	s.mustMap(index)
	expect := func(when string, known bool) {
		t.Helper()
		layers := s.layers("app")
		if _, named := layers.Images[child.Image.Name]; named != known || known && len(layers.Images[child.Image.Name].Layers) == 0 || layers.Images[index.Image.Name].ImageMissing {
			t.Errorf("%s: the layers are %+v", when, layers.Images)
		}
		if _, has := layers.Blobs[child.Image.Name]; has != known {
			t.Errorf("%s: the manifest is a blob: %t", when, has)
		}
		if _, err := s.streamImage("app@" + child.Image.Name); known != (err == nil) {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("an index", false)
	if obj, err := s.images.Get(requestContext(), index.Image.Name, &metav1.GetOptions{}); err != nil {
		t.Error(err)
	} else if m, err := manifest.Metadata(obj.(*imagev1.Image)); err != nil || !m.Created.IsZero() {
		t.Errorf("the index has the date of the image, %v, %v", m.Created, err)
	}
	s.mustMap(index)
	expect("an index again", false)
	for what, edit := range map[string]func(*imagev1.Image){
		"nothing but a digest":     func(image *imagev1.Image) { image.DockerImageManifest, image.DockerImageConfig = "", "" },
		"a manifest and no config": func(image *imagev1.Image) { image.DockerImageConfig = "" },
		"another config":           func(image *imagev1.Image) { image.DockerImageConfig += " " },
		"another manifest":         func(image *imagev1.Image) { image.DockerImageManifest += " " },
	} {
		mapping := pushed(t, "app", "child", 0)
		edit(&mapping.Image)
		if err := s.mapped(mapping); !apierrors.IsInvalid(err) {
			t.Errorf("a mapping with %s: %v", what, err)
		}
		image := child.Image.DeepCopy()
		edit(image)
		if err := s.postImage("app", *image); err == nil {
			t.Errorf("%s was posted", what)
		}
		expect(what, false)
	}
	if err := s.postImage("app", child.Image); !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	expect("all of it", true)
}

// The registry gives out whatever the layers of a stream name, if it has it of any repository. What
// another registry serves may list layers of others, so no blob of it is named.
func TestAttackLayersOfAnImageElsewhere(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	child := s.stored(repository)
	index := s.index(repository, child, digestOf(5))
	s.knownAs(repository, "v1", index)
	s.mustCreateStream(stream("app", repository))
	got := s.layers("app")
	if len(got.Blobs) != 0 || len(got.Images) != 2 || len(got.Images[child].Layers) != 0 || got.Images[child].Config != nil || len(got.Images[index].Manifests) != 2 {
		t.Errorf("the layers are %+v", got)
	}
}

// Twelve pushes to one stream at once, three of each of four tags: none is refused, and no history
// loses one.
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

// A push moves a tag that follows itself in the registry: oc import-image of the whole stream, or
// of its latest, writes such tags into spec, since that names the stream's repository.
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

// A tag that was pushed to, and that a user leads back to an image of its history, leads there in
// the registry as well. What it led to before is needed by nothing, a push moves the tag again, and
// who deletes it is rid of it.
func TestRollbackOfAPushedTag(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	s.mustMap(pushed(t, "app", "v1", 1))
	s.mustMap(pushed(t, "app", "v1", 2))
	back := func(to int) {
		t.Helper()
		if tag, _, err := s.put(istag("app:v1", "ImageStreamImage/app@"+digestOf(to))); err != nil || tag.Image.Name != digestOf(to) {
			t.Fatalf("led back: %+v, %v", tag, err)
		}
	}
	leads := func(want, known, needed string) {
		t.Helper()
		ref, err := reference.Parse(ownRegistry + "/team/app:v1")
		if err != nil {
			t.Fatal(err)
		}
		obj, err := s.tags.Get(inNamespace(tags.Namespace, s.asUser), tags.Name(ref), &metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		of := &imagev1.ImageStream{Status: imagev1.ImageStreamStatus{Tags: []imagev1.NamedTagEventList{*obj.(*imagev1.ImageTag).Status}}}
		if got := history(s.stream("app"), "v1"); got != want || history(of, "v1") != want {
			t.Fatalf("the stream's tag led to %s, the registry's to %s, want %s", got, history(of, "v1"), want)
		}
		n := strings.Fields(want)[0]
		s.wantNeeded("", "team/app="+needed)
		if got := s.known("sha256:" + strings.Repeat("0", 64-len(n)) + n); got != known {
			t.Errorf("the image is known by %s, want %s", got, known)
		}
	}
	back(1)
	leads("1 2 1", "app:v1", "1")
	s.mustMap(pushed(t, "app", "v1", 2)) // the same as before, in the same second
	leads("2 1 2 1", "app:v1", "1,2")    // with 1 begins what the stream itself has: it stays
	s.mustMap(pushed(t, "app", "v1", 3))
	leads("3 2 1 2 1", "app:v1", "1,3")
	if tag, err := s.streamTag("team", "app:v1"); err != nil || tag.Image.Name != digestOf(3) || tag.Generation < *tag.Tag.Generation {
		t.Errorf("after a push the tag is %+v, %v", tag, err)
	}
	back(2)
	leads("2 3 2 1 2 1", "app:v1", "2")
	shorter, err := s.updateStream(s.streamStatus, leaveOut(s.stream("app"), 1, 3))
	if err != nil || history(shorter, "v1") != "2 2 2" {
		t.Fatalf("shortened it is %v, %v", shorter, err)
	}
	for _, n := range []int{1, 3} {
		if err := deleteImage(s.images, digestOf(n)); err != nil {
			t.Errorf("the image that the tag has left stays: %v", err)
		}
	}
	if err := s.remove("team", "app:v1", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.stream("app"); len(got.Status.Tags) != 0 {
		t.Errorf("after the deletion the stream has %+v", got.Status.Tags)
	}
	s.wantNeeded("", "")
}

// A dry run of a rollback moves nothing, and a user who names a digest of others in the own
// repository does not have it known there.
func TestAttackRollbackToAnImageOfOthers(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	name := s.stored(ownRegistry + "/secret/app")
	s.mustCreateStream(stream("app", ""))
	s.mustMap(pushed(t, "app", "v1", 1))
	evil := istag("app:v1", "DockerImage/"+ownRegistry+"/team/app@"+name)
	if _, _, err := s.streamTags().Update(inNamespace("team", s.asUser), evil.Name, rest.DefaultUpdatedObjectInfo(evil.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if known := s.known(digestOf(1)); known != "app:v1" || history(s.stream("app"), "v1") != "1" {
		t.Errorf("after a dry run the image is known by %s", known)
	}
	tag, _, err := s.put(evil)
	if err != nil || tag.Image.DockerImageMetadata.Raw != nil || len(tag.Image.DockerImageLayers) != 0 {
		t.Errorf("it shows %+v, %v", tag, err)
	}
	if known := s.known(name); strings.Contains(known, "app:v1") {
		t.Errorf("the image of others is known by %s", known)
	}
}

// What a tag leads to in the registry stays, also where the stream says that the tag follows
// another: nothing in the registry moves with that.
func TestCoveredTagsKeepTheirImages(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	for n, tag := range []string{"v1", "v1", "v2", "v2"} {
		s.mustMap(pushed(t, "app", tag, n+1))
	}
	if _, _, err := s.put(istag("app:v1", "ImageStreamTag/app:v2")); err != nil {
		t.Fatal(err)
	}
	app := s.stream("app")
	if got := history(app, "v1"); got != "4 2 1" {
		t.Fatalf("v1 led to %s", got)
	}
	s.wantNeeded("", "team/app=2,4")
	if got, err := s.updateStream(s.streamStatus, leaveOut(app, 1, 2, 3)); err != nil || history(got, "v1") != "4 2" || history(got, "v2") != "4" {
		t.Errorf("shortened it is %v, %v", got, err)
	}
	if err := s.remove("team", "app:v1", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := history(s.stream("app"), "v1"); got != "" {
		t.Errorf("after the deletion v1 leads to %s", got)
	}
	s.wantNeeded("", "team/app=4")
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
		"a stream of others":   {func(m *imagev1.ImageStreamMapping) { m.Name = "other" }, "remove its spec.dockerImageRepository"},
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

// Whoever may map, and knows the digest of an image that they may not read, does not get it into
// their stream; nor do they make images that they may not make.
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

// A stream that is deleted takes with it what was pushed to it: whoever makes one of its name later
// does not get that.
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

// A stream of the registry keeps its repository when it is written by who leaves it out, follows
// another if that is said, and a stream from before there was a registry gets it with the first
// push.
func TestStreamsOfTheRegistry(t *testing.T) {
	t.Parallel()
	// who may follow that repository and no other
	s := newMappings(t, allow{"default/registry.example.com--team--app"})
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
	secrets := s.all.Secrets
	if obj, err := secrets.Get(inNamespace("team", "alice"), "app", &metav1.GetOptions{}); err != nil || len(obj.(*imagev1.SecretList).Items) != 0 {
		t.Errorf("it has %+v, %v", obj, err)
	}
	if _, err := secrets.Get(inNamespace("team", "alice"), "none", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of no stream: %v", err)
	}
}

// A tag that three pushers move a thousand times keeps its history in order, each push an item on
// top of those before, and the stream shows the last.
func TestHistoryOfMappingsUnderThreeWriters(t *testing.T) {
	t.Parallel()
	const writers = 3
	pushes := 1000
	if testing.Short() {
		pushes = 2 * tags.MaxItems // the race detector takes ten times as long
	}
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	s.mustMap(pushed(t, "app", "v1", 1))
	watcher, err := s.tags.(rest.Watcher).Watch(inNamespace(tags.Namespace, s.asUser), &internalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	// A watch may begin after it was opened, and shows first what there is then: the pushes wait
	// for that.
	first, ok := (<-watcher.ResultChan()).Object.(*imagev1.ImageTag)
	if !ok || len(first.Status.Items) != 1 {
		t.Fatalf("the watch begins with %+v", first)
	}
	before := first.Status.Items
	var all sync.WaitGroup
	defer all.Wait() // also after a failure: a push needs the test's database
	// pushes that the watch was not told of: a watch that falls behind is ended
	ahead := make(chan bool, 10)
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
