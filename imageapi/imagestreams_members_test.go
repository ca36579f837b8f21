package imageapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

func (s *tagStorages) streamImage(name string) (*imagev1.ImageStreamImage, error) {
	obj, err := s.all.StreamImages.Get(inNamespace("team", s.asUser), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStreamImage), nil
}

func (s *tagStorages) layers(stream string) *imagev1.ImageStreamLayers {
	s.t.Helper()
	obj, err := s.all.Layers.Get(inNamespace("team", s.asUser), stream, &metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return obj.(*imagev1.ImageStreamLayers)
}

// index makes an index of a repository that lists digests, and returns its name.
func (s *tagStorages) index(repository string, digests ...string) string {
	s.t.Helper()
	var list []string
	for _, digest := range digests {
		list = append(list, fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":100,"platform":{"architecture":"amd64","os":"linux"}}`, digest))
	}
	raw := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + strings.Join(list, ",") + "]}"
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: manifest.Digest([]byte(raw))}, DockerImageManifest: raw}
	image.DockerImageReference = repository + "@" + image.Name
	if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return image.Name
}

// An image of a stream's history, or of an index there, is got by as much of its digest as names it
// alone.
func TestStreamImagesAreFoundByPrefix(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	child := s.stored(repository)
	index := s.index(repository, child, digestOf(5))
	s.knownAs(repository, "v1", digestOf(1))
	s.knownAs(repository, "v2", digestOf(12))
	s.knownAs(repository, "all", index)
	app := stream("app", repository)
	app.Annotations = map[string]string{"who": "me"}
	s.mustCreateStream(app)
	s.mustCreateStream(stream("other", ""))
	for _, digest := range []string{index, child} {
		for _, id := range []string{digest, digest[:15], strings.TrimPrefix(digest, "sha256:")[:8]} {
			got, err := s.streamImage("app@" + id)
			if err != nil {
				t.Errorf("%s: %v", id, err)
				continue
			}
			if got.Name != "app@"+digest || got.Image.Name != digest || got.Image.DockerImageReference != repository+"@"+digest || got.Image.DockerImageManifest != "" || got.Image.DockerImageConfig != "" ||
				len(got.Image.DockerImageMetadata.Raw) == 0 || got.Annotations["who"] != "me" || got.CreationTimestamp.IsZero() || got.Namespace != "team" {
				t.Errorf("%s is %+v", id, got)
			}
		}
	}
	for _, none := range []string{"app@" + digestOf(1), "app@" + digestOf(5), "app@sha256:abcdefabcdef", "none@" + child, "other@" + child} {
		if _, err := s.streamImage(none); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", none, err)
		}
	}
	if _, err := s.streamImage("app@sha256:0000"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), digestOf(12)) {
		t.Errorf("the beginning of several: %v", err)
	}
	for _, bad := range []string{"app", "@" + child, "app@"} {
		if _, err := s.streamImage(bad); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// What a registry may give to whoever may pull from a stream: manifests, configs and layers of all
// that its tags have led to, and of the children of indexes.
func TestLayersOfAStream(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	child := s.stored(repository)
	index := s.index(repository, child, digestOf(5))
	s.knownAs(repository, "all", index)
	s.knownAs(repository, "gone", digestOf(1))
	s.mustCreateStream(stream("app", repository))
	raw, err := manifest.Parse([]byte(read(t, "oci-image.json")), "")
	if err != nil {
		t.Fatal(err)
	}
	got := s.layers("app")
	image := got.Images[child]
	if image.Config == nil || *image.Config != raw.Config.Digest || len(image.Layers) != len(raw.Layers) || image.ImageMissing {
		t.Errorf("the child has %+v", image)
	}
	for _, blob := range append(raw.Layers, *raw.Config) {
		if has := got.Blobs[blob.Digest]; has.MediaType != blob.MediaType || has.LayerSize == nil || *has.LayerSize != blob.Size {
			t.Errorf("blob %s is %+v", blob.Digest, has)
		}
	}
	if has := got.Images[index]; len(has.Manifests) != 2 || has.Manifests[0] != child || has.Config != nil || len(has.Layers) != 0 {
		t.Errorf("the index has %+v", has)
	}
	for name, mediaType := range map[string]string{child: "application/vnd.oci.image.manifest.v1+json", index: "application/vnd.oci.image.index.v1+json"} {
		if has, ok := got.Blobs[name]; !ok || has.MediaType != mediaType {
			t.Errorf("manifest %s is %+v", name, has)
		}
	}
	for _, missing := range []string{digestOf(1), digestOf(5)} {
		if has, ok := got.Images[missing]; !ok || !has.ImageMissing {
			t.Errorf("%s is %+v", missing, has)
		}
		if _, ok := got.Blobs[missing]; ok {
			t.Errorf("%s is a blob", missing)
		}
	}
	if got.Name != "app" || got.Namespace != "team" || len(got.Images) != 4 {
		t.Errorf("it is %+v", got)
	}
}

// Whoever may pull from one repository pushes an index there that lists an image of another, or
// names its digest, and sees nothing of it.
func TestAttackIndexListsAnImageOfAnotherRepository(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, allow{"default/registry.example.com--team--app"})
	secret := s.stored("registry.example.com/secret/app")
	s.knownAs(repository, "v1", s.index(repository, secret))
	s.mustCreateStream(stream("listed", repository))
	s.mustCreateStream(stream("named", "", "v1", "DockerImage/"+repository+"@"+secret))
	for _, stream := range []string{"listed", "named"} {
		if got, err := s.streamImage(stream + "@" + secret); !apierrors.IsNotFound(err) {
			t.Errorf("%s has the image %+v, %v", stream, got, err)
		}
		got := s.layers(stream)
		if has := got.Images[secret]; !has.ImageMissing || len(has.Layers) > 0 {
			t.Errorf("%s has the layers %+v", stream, has)
		}
		if _, ok := got.Blobs[secret]; ok {
			t.Errorf("%s has the manifest", stream)
		}
	}
}

// countRead counts the objects that a request reads, if its context has a counter for them.
func countRead(ctx context.Context, objects, _ int) {
	if n, ok := ctx.Value(readCounter{}).(*int); ok {
		*n += objects
	}
}

type readCounter struct{}

// Reads of one object that are put together from many tell of each that they read, so that they
// take turns as lists do: also of images that are not there.
func TestAttackReadsOfOneObjectThatReadMany(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	const many, follows = 40, "registry.example.com/other"
	var children []string
	for n := range many {
		children = append(children, digestOf(n+1))
	}
	index := s.index(repository, children...)
	s.knownAs(repository, "index", index)
	big, followed := stream("big", repository), stream("followed", "")
	for n := range many {
		tag := fmt.Sprintf("t%d", n)
		s.knownAs(repository, tag, digestOf(n+1))
		s.knownAs(follows, tag, digestOf(n+1))
		followed.Spec.Tags = append(followed.Spec.Tags, *specTag(tag, "DockerImage/"+follows+":"+tag))
	}
	s.mustCreateStream(big)
	s.mustCreateStream(followed)
	get := func(resource, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.all.Resources()[resource].(rest.Getter).Get(ctx, name, &metav1.GetOptions{})
			return err
		}
	}
	for what, read := range map[string]func(context.Context) error{
		"a stream":                                     get("imagestreams", "big"),
		"a stream whose tags follow others":            get("imagestreams", "followed"),
		"the status of a stream":                       get("imagestreams/status", "big"),
		"the layers of a stream":                       get("imagestreams/layers", "followed"),
		"an image of a stream by a digest of an index": get("imagestreamimages", "big@"+digestOf(many)),
		"an image of a stream that it does not have":   get("imagestreamimages", "followed@sha256:ffff"),
		"the images of a stream that oc adm prune keeps": func(ctx context.Context) error {
			_, err := s.all.Needed.Get(request.WithNamespace(ctx, imagestream.InUseNamespace), "team.big")
			return err
		},
	} {
		n := 0
		err := read(context.WithValue(inNamespace("team", s.asUser), readCounter{}, &n))
		if n < many || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %d objects were told of, %v, want %d at least", what, n, err, many)
		}
	}
	for what, read := range map[string]func(context.Context) error{
		"a tag":                get("imagestreamtags", "big:t1"),
		"a tag as an ImageTag": get("imagetags", "big:t1"),
		"secrets of a stream":  get("imagestreams/secrets", "big"),
	} {
		n := 0
		err := read(context.WithValue(inNamespace("team", s.asUser), readCounter{}, &n))
		if n == 0 || n > 5 || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %d objects were read, %v, want a few", what, n, err)
		}
	}
}
