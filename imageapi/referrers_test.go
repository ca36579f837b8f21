package imageapi_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// ofManifest is the Image that a registry of streams makes of a manifest.
func ofManifest(t *testing.T, raw string) *imagev1.Image {
	t.Helper()
	m, err := manifest.Parse([]byte(raw), "")
	if err != nil {
		t.Fatal(err)
	}
	return &imagev1.Image{
		ObjectMeta:           metav1.ObjectMeta{Name: m.Digest, Annotations: map[string]string{imagev1.ManagedByOpenShiftAnnotation: "true", imagev1.ImageManifestBlobStoredAnnotation: "true"}},
		DockerImageReference: ownRegistry + "/team/app@" + m.Digest, DockerImageManifest: raw, DockerImageManifestMediaType: m.MediaType,
	}
}

// mappingOf is that of an Image of ofManifest.
func mappingOf(tag string, image *imagev1.Image) *imagev1.ImageStreamMapping {
	return &imagev1.ImageStreamMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app"}, Image: *image, Tag: tag}
}

// An index of referrers under the tag that the referrers tag schema has for it is not an image, and
// what it lists can be pulled through it. What an index lists and where it is must both say so.
func TestIndexesOfReferrersAreNoImages(t *testing.T) {
	t.Parallel()
	tag := "sha256-" + strings.Repeat("ab", 32)
	index := func(descriptors ...map[string]any) *imagev1.Image {
		raw, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifest.MediaTypeOCIIndex, "manifests": append([]map[string]any{}, descriptors...)})
		if err != nil {
			t.Fatal(err)
		}
		return ofManifest(t, string(raw))
	}
	of := func(n int, more ...any) map[string]any {
		d := map[string]any{"mediaType": manifest.MediaTypeOCIManifest, "digest": digestOf(n), "size": 7}
		for i := 0; i < len(more); i += 2 {
			d[more[i].(string)] = more[i+1]
		}
		return d
	}
	bundle := ofManifest(t, read(t, "sigstore-bundle.json"))
	const kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
	listed := map[string]any{"mediaType": manifest.MediaTypeOCIManifest, "digest": bundle.Name, "size": len(bundle.DockerImageManifest), "artifactType": kind}
	platform := map[string]any{"os": "linux", "architecture": "amd64"}
	for what, c := range map[string]struct {
		tag      string
		image    *imagev1.Image
		artifact bool
	}{
		"of a bundle":                 {tag, index(listed), true},
		"of two":                      {tag, index(listed, of(2, "artifactType", kind)), true},
		"of none that are left":       {tag, index(), true},
		"of none, by another tag":     {"v1", index(), false},
		"by another tag":              {"v1", index(listed), false},
		"by a longer tag":             {tag + "0", index(listed), false},
		"with an image":               {tag, index(listed, of(3, "platform", platform)), false},
		"with an image that says so":  {tag, index(listed, of(3, "artifactType", "application/vnd.oci.image.config.v1+json", "platform", platform)), false},
		"with an image of a platform": {tag, index(listed, of(3, "artifactType", kind, "platform", platform)), false},
		"of images":                   {tag, index(of(3, "platform", platform)), false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newMappings(t, nil)
			s.mustCreateStream(stream("app", ""))
			if _, err := s.images.(rest.Creater).Create(requestContext(), bundle.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.mustMap(mappingOf(c.tag, c.image))
			s.mustMap(mappingOf(c.tag, c.image))
			obj, err := s.images.Get(requestContext(), c.image.Name, &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.(*imagev1.Image).Annotations[annotation.ArtifactType]; (got == manifest.MediaTypeOCIIndex) != c.artifact || !c.artifact && got != "" {
				t.Errorf("it is marked %q", got)
			}
			obj, err = s.images.List(requestContext(), selected(""))
			if err != nil {
				t.Fatal(err)
			}
			if n := len(obj.(*imagev1.ImageList).Items); (n == 0) != c.artifact {
				t.Errorf("there are %d images", n)
			}
			if !c.artifact || !strings.Contains(c.image.DockerImageManifest, bundle.Name) {
				return
			}
			layers := s.layers("app")
			if got := layers.Images[c.image.Name].Manifests; !slices.Contains(got, bundle.Name) || layers.Images[bundle.Name].ImageMissing || layers.Images[bundle.Name].Config == nil {
				t.Errorf("the bundle cannot be pulled: %+v", layers)
			}
		})
	}
}

// BuildKit's attestations of an index are pulled with it, also where the same were pushed to
// another repository before, and whether or not the index is stored with its manifest.
func TestLayersHaveAttestationManifests(t *testing.T) {
	t.Parallel()
	s := newMappings(t, nil)
	s.mustCreateStream(stream("app", ""))
	attestation := ofManifest(t, read(t, "buildkit-attestation.json"))
	attestation.DockerImageReference = ownRegistry + "/other/app@" + attestation.Name
	if _, err := s.images.(rest.Creater).Create(requestContext(), attestation.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifest.MediaTypeOCIIndex, "manifests": []any{
		map[string]any{"mediaType": manifest.MediaTypeOCIManifest, "digest": digestOf(1), "size": 7, "platform": map[string]any{"os": "linux", "architecture": "amd64"}},
		map[string]any{"mediaType": manifest.MediaTypeOCIManifest, "digest": attestation.Name, "size": len(attestation.DockerImageManifest), "platform": map[string]any{"os": "unknown", "architecture": "unknown"},
			"annotations": map[string]any{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": digestOf(1)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	index := ofManifest(t, string(raw))
	if err := s.postImage("app", *attestation); !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	expect := func(when string) {
		t.Helper()
		layers := s.layers("app")
		if got := layers.Images[index.Name].Manifests; !slices.Equal(got, []string{digestOf(1), attestation.Name}) {
			t.Errorf("%s: the index lists %v", when, got)
		}
		got := layers.Images[attestation.Name]
		if _, known := layers.Blobs[attestation.Name]; !known || got.ImageMissing || got.Config == nil || len(got.Layers) == 0 {
			t.Errorf("%s: the attestation is %+v", when, got)
		}
	}
	s.mustMap(mappingOf("v1", index))
	expect("as it was pushed")
	obj, err := s.images.Get(requestContext(), index.Name, &metav1.GetOptions{})
	if err != nil || len(obj.(*imagev1.Image).DockerImageManifests) != 1 {
		t.Fatalf("the images of the index are %+v, %v", obj.(*imagev1.Image).DockerImageManifests, err)
	}
	imported := obj.(*imagev1.Image).DeepCopy()
	imported.DockerImageManifest = string(raw)
	if _, _, err := s.images.Update(requestContext(), imported.Name, rest.DefaultUpdatedObjectInfo(imported), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("with its manifest")
}
