package imageapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// artifactFiles are manifests of what is not an image, and what each is.
var artifactFiles = map[string]string{
	"cosign-sig.json":           "application/vnd.dev.cosign.simplesigning.v1+json",
	"buildkit-attestation.json": "application/vnd.in-toto+json",
	"sigstore-bundle.json":      "application/vnd.dev.sigstore.bundle.v0.3+json",
	"notation-sig.json":         "application/vnd.cncf.notary.signature",
	"helm-chart.json":           "application/vnd.cncf.helm.config.v1+json",
}

// selected is what a list or a watch asks for.
func selected(selector string) *internalversion.ListOptions {
	return &internalversion.ListOptions{LabelSelector: labels.Everything(), FieldSelector: fields.ParseSelectorOrDie(selector)}
}

// namesOf are the images of a list.
func (s storages) namesOf(t *testing.T, selector string) (names []string) {
	t.Helper()
	obj, err := s.images.List(requestContext(), selected(selector))
	if err != nil {
		t.Fatalf("%s: %v", selector, err)
	}
	list := obj.(*imagev1.ImageList)
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// What is not an image is stored, marked and found by name; lists have it if they ask, and those
// alone.
func TestArtifactsAreNoImages(t *testing.T) {
	t.Parallel()
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	var artifacts []string
	for file, kind := range artifactFiles {
		artifact := s.mustCreate(t, bareImage(t, file, ""))
		artifacts = append(artifacts, artifact.Name)
		if got := s.get(t, artifact.Name); got.Annotations[annotation.ArtifactType] != kind || len(got.DockerImageLayers) == 0 || len(got.DockerImageMetadata.Raw) == 0 || got.Annotations[annotation.Platform] != "" {
			t.Errorf("%s is stored as %+v", file, got)
		}
		if _, err := s.create(bareImage(t, file, "")); !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s was created twice: %v", file, err)
		}
		if _, err := s.create(&imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: artifact.Name}, DockerImageReference: "registry.example.com/acme/web"}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s was created again as an image: %v", file, err)
		}
	}
	slices.Sort(artifacts)
	some := artifacts[0]
	for selector, want := range map[string][]string{
		"":                                    {image.Name},
		"artifact=false":                      {image.Name},
		"artifact!=true":                      {image.Name},
		"artifact=true":                       artifacts,
		"artifact!=false":                     artifacts,
		"metadata.name=" + some:               nil,
		"artifact=true,metadata.name=" + some: {some},
		"digest=" + some[:20]:                 nil,
		"artifact=true,digest=" + some[:20]:   {some},
		"references=registry.example.com/acme/web":               {image.Name},
		"artifact=true,references=registry.example.com/acme/web": artifacts,
	} {
		if got := s.namesOf(t, selector); !slices.Equal(got, want) {
			t.Errorf("%q selects %v, want %v", selector, got, want)
		}
	}
	for _, selector := range []string{"artifact=true,signatures.verified=Unsigned", "artifact=true,artifact=false", "artifact=true,lists=" + some} {
		if _, err := s.images.List(requestContext(), selected(selector)); !apierrors.IsBadRequest(err) {
			t.Errorf("%q: %v", selector, err)
		}
	}
	page := selected("artifact=true")
	page.Limit = 2
	obj, err := s.images.List(requestContext(), page)
	if err != nil {
		t.Fatal(err)
	}
	if list := obj.(*imagev1.ImageList); len(list.Items) != 2 || list.Continue == "" || list.ResourceVersion == "" {
		t.Errorf("a page of artifacts is %d of %+v", len(list.Items), list.ListMeta)
	}

	// Both, for who deletes what no list has.
	both := append(s.namesOf(t, ""), artifacts...)
	for _, limit := range []int64{0, 1, 2, 3, int64(len(both)), 500} {
		options, got := selected("artifact=any"), []string(nil)
		options.Limit = limit
		for more := true; more; more = options.Continue != "" {
			obj, err := s.images.List(requestContext(), options)
			if err != nil {
				t.Fatal(err)
			}
			list := obj.(*imagev1.ImageList)
			for i := range list.Items {
				got = append(got, list.Items[i].Name)
			}
			if limit > 0 && int64(len(list.Items)) > limit {
				t.Errorf("a page of %d has %d", limit, len(list.Items))
			}
			options.Continue = list.Continue
		}
		if !slices.Equal(got, both) {
			t.Errorf("in pages of %d there are %v, want %v", limit, got, both)
		}
	}
	for _, selector := range []string{"artifact=any,mediaType=x", "artifact!=any"} {
		if _, err := s.images.List(requestContext(), selected(selector)); !apierrors.IsBadRequest(err) {
			t.Errorf("%q: %v", selector, err)
		}
	}
	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selected("artifact=any")); !apierrors.IsBadRequest(err) {
		t.Errorf("a deletion of both: %v", err)
	}

	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selected("")); err != nil {
		t.Fatal(err)
	}
	if got := s.namesOf(t, "artifact=true"); !slices.Equal(got, artifacts) {
		t.Errorf("all images are deleted, and artifacts are %v", got)
	}
	if _, _, err := s.images.Delete(requestContext(), some, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.images.Get(requestContext(), some, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its deletion: %v", err)
	}
	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selected("artifact=true")); err != nil {
		t.Fatal(err)
	}
	if got := s.namesOf(t, "artifact=true"); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
}

// A watch is told of artifacts, or of images, and of no other.
func TestWatchesOfArtifacts(t *testing.T) {
	t.Parallel()
	s := newStorages(t, nil)
	// without it a watch begins with what there is when it gets to run
	begin := s.mustCreate(t, plainImage()).ResourceVersion
	watches := map[string]watch.Interface{}
	for _, selector := range []string{"", "artifact=true"} {
		options := selected(selector)
		options.ResourceVersion = begin
		w, err := s.images.Watch(requestContext(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches[selector] = w
	}
	artifact := s.mustCreate(t, bareImage(t, "cosign-sig.json", ""))
	artifact.Labels = map[string]string{"a": "b"}
	if _, err := s.update(artifact); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.images.Delete(requestContext(), artifact.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	image := s.mustCreate(t, ociImage(t))
	last := s.mustCreate(t, bareImage(t, "helm-chart.json", ""))
	next := func(selector string) string {
		for event := range watches[selector].ResultChan() {
			m, ok := event.Object.(metav1.Object)
			if event.Type == watch.Bookmark || !ok {
				continue
			}
			return string(event.Type) + " " + m.GetName()
		}
		return "the end"
	}
	if got := next(""); got != "ADDED "+image.Name {
		t.Errorf("a watch of images is told %s", got)
	}
	for _, want := range []string{"ADDED " + artifact.Name, "MODIFIED " + artifact.Name, "DELETED " + artifact.Name, "ADDED " + last.Name} {
		if got := next("artifact=true"); got != want {
			t.Errorf("a watch of artifacts is told %s, want %s", got, want)
		}
	}
}

// The mark is the server's: nobody makes an artifact of an image, nor an image of an artifact.
func TestNobodyMarksArtifacts(t *testing.T) {
	t.Parallel()
	s := newStorages(t, nil)
	marked := ociImage(t)
	marked.Annotations = map[string]string{annotation.ArtifactType: "a lie"}
	image := s.mustCreate(t, marked)
	if image.Annotations[annotation.ArtifactType] != "" {
		t.Errorf("an image is created with %v", image.Annotations)
	}
	image.Annotations[annotation.ArtifactType] = "a lie"
	if image, err := s.update(image); err != nil || image.Annotations[annotation.ArtifactType] != "" {
		t.Errorf("an image becomes %+v, %v", image, err)
	}
	artifact := s.mustCreate(t, bareImage(t, "helm-chart.json", ""))
	kind := artifact.Annotations[annotation.ArtifactType]
	delete(artifact.Annotations, annotation.ArtifactType)
	artifact.Labels = map[string]string{"a": "b"}
	artifact, err := s.update(artifact)
	if err != nil || artifact.Annotations[annotation.ArtifactType] != kind || artifact.Labels["a"] != "b" {
		t.Errorf("an artifact becomes %+v, %v", artifact, err)
	}
	artifact.Annotations[annotation.ArtifactType] = "a lie"
	if _, err := s.update(artifact); !apierrors.IsInvalid(err) {
		t.Errorf("an artifact is called something else: %v", err)
	}
	artifact.Annotations[annotation.ArtifactType] = kind
	artifact.Signatures = []imagev1.ImageSignature{signature(artifact.Name, "one", "atomic", "anything")}
	if _, err := s.update(artifact); !apierrors.IsInvalid(err) {
		t.Errorf("an artifact has a signature: %v", err)
	}

	// Without its manifest nobody knows what it is. It does not become an artifact among images
	// later.
	without := bareImage(t, "cosign-sig.json", "")
	raw := without.DockerImageManifest
	without.DockerImageManifest = ""
	stub := s.mustCreate(t, without)
	stub.DockerImageManifest = raw
	if _, err := s.update(stub); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "not an image") {
		t.Errorf("an image gets the manifest of an artifact: %v", err)
	}
	if _, err := s.create(stub); !apierrors.IsAlreadyExists(err) {
		t.Errorf("it is created beside: %v", err)
	}
}

// An artifact that a pod mounts as a volume is kept.
func TestArtifactsThatPodsMountAreKept(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	artifact := s.mustCreate(t, bareImage(t, "helm-chart.json", ""))
	p.use(artifact.Name)
	_, _, err := s.images.Delete(requestContext(), artifact.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "uses it") {
		t.Errorf("it is deleted: %v", err)
	}
	p.use()
	if _, _, err := s.images.Delete(requestContext(), artifact.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// Applying what is not there yet makes it where it belongs.
func TestArtifactsAreApplied(t *testing.T) {
	t.Parallel()
	s := newStorages(t, nil)
	apply := func(image *imagev1.Image) (created bool) {
		t.Helper()
		transform := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			applied := image.DeepCopy()
			applied.ResourceVersion, applied.UID = old.(*imagev1.Image).ResourceVersion, old.(*imagev1.Image).UID
			return applied, nil
		})
		_, created, err := s.images.Update(requestContext(), image.Name, transform, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
	artifact, image := bareImage(t, "helm-chart.json", ""), ociImage(t)
	for _, want := range []bool{true, false} {
		if apply(artifact) != want || apply(image) != want {
			t.Errorf("created is not %v", want)
		}
	}
	if images, artifacts := s.namesOf(t, ""), s.namesOf(t, "artifact=true"); !slices.Equal(images, []string{image.Name}) || !slices.Equal(artifacts, []string{artifact.Name}) {
		t.Errorf("images are %v, artifacts %v", images, artifacts)
	}
}

// A signature that is pushed as a tag is found by the tag, and by the blobs that a registry may
// give out.
func TestMappingsOfArtifacts(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	image := pushed(t, "app", "v1", 0)
	s.mustMap(image)
	sig := pushed(t, "app", strings.Replace(image.Image.Name, ":", "-", 1)+".sig", 0)
	artifact := bareImage(t, "cosign-sig.json", "")
	sig.Image.Name, sig.Image.DockerImageManifest, sig.Image.DockerImageConfig = artifact.Name, artifact.DockerImageManifest, "\x00no text"
	sig.Image.DockerImageReference = ownRegistry + "/team/app@" + artifact.Name
	s.mustMap(sig)
	s.mustMap(sig)
	tag, err := s.streamTag("team", "app:"+sig.Tag)
	if err != nil || tag.Image.Name != artifact.Name || len(tag.Image.DockerImageLayers) == 0 {
		t.Errorf("the tag is %+v, %v", tag, err)
	}
	if known := s.known(artifact.Name); known != "app:"+sig.Tag {
		t.Errorf("the signature is known by %s", known)
	}
	obj, err := s.all.Layers.Get(inNamespace("team", s.asUser), "app", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	layers := obj.(*imagev1.ImageStreamLayers)
	if got := layers.Images[artifact.Name]; got.Config == nil || len(got.Layers) != 1 || got.ImageMissing {
		t.Errorf("the blobs of the signature are %+v", got)
	}
	list, err := s.images.(rest.Lister).List(requestContext(), nil)
	if err != nil || len(list.(*imagev1.ImageList).Items) != 1 {
		t.Errorf("images are %+v, %v", list, err)
	}
	remove := func() error {
		_, _, err := s.images.(rest.GracefulDeleter).Delete(requestContext(), artifact.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		return err
	}
	if err := remove(); !apierrors.IsConflict(err) {
		t.Errorf("the signature is deleted while its tag leads to it: %v", err)
	}
	if err := s.remove("team", "app:"+sig.Tag, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if known := s.known(artifact.Name); known != "" {
		t.Errorf("after the deletion of its tag the signature is known by %s", known)
	}
	if err := remove(); err != nil {
		t.Errorf("after the deletion of its tag: %v", err)
	}
}

// A list of both that takes longer than revisions are kept goes on where it was, also among the
// artifacts.
func TestListWithArtifactsGoesOnAfterItHasExpired(t *testing.T) {
	d := dbtest.Open(t)
	s := newStoragesOn(t, d, imageapi.Options{})
	for file := range artifactFiles {
		if _, err := s.create(bareImage(t, file, "")); err != nil {
			t.Fatal(err)
		}
	}
	expired := 0
	var got []string
	err := pages.Each(t.Context(), metav1.ListOptions{Limit: 1}, func(_ context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
		options := selected("artifact=any")
		options.Limit, options.Continue = o.Limit, o.Continue
		obj, err := s.images.List(requestContext(), options)
		if err != nil {
			expired++
			return nil, err
		}
		return obj.(*imagev1.ImageList), nil
	}, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			got = append(got, list.Items[i].Name)
		}
		if expired > len(artifactFiles) {
			return errors.New("it goes on for ever")
		}
		if _, err := s.create(&imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: manifest.Digest(fmt.Append(nil, len(got)))}, DockerImageReference: "registry.example.com/acme/web"}); err != nil {
			return err
		}
		return d.Compact(t.Context(), d.Revision())
	})
	if slices.Sort(got); err != nil || len(got) != len(artifactFiles) || len(slices.Compact(got)) != len(artifactFiles) || expired == 0 {
		t.Errorf("after %d expiries there are %v: %v", expired, got, err)
	}
}
