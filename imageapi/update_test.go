package imageapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// replaceMetadata replaces in an image's metadata.
func replaceMetadata(image *imagev1.Image, old, replacement string) {
	image.DockerImageMetadata.Raw = []byte(strings.Replace(string(image.DockerImageMetadata.Raw), old, replacement, 1))
}

// openshift-apiserver reverts such changes silently. Each is refused, naming the field.
func TestUpdateRefusesContentChange(t *testing.T) {
	tests := []struct {
		name   string
		change func(*imagev1.Image)
		want   []string
	}{
		{"metadata: another size", func(i *imagev1.Image) { replaceMetadata(i, `"Size":31460266`, `"Size":1`) }, []string{"dockerImageMetadata"}},
		{"metadata: another environment", func(i *imagev1.Image) { replaceMetadata(i, `"PATH=/bin"`, `"PATH=/evil"`) }, []string{"dockerImageMetadata"}},
		{"metadata: a port less", func(i *imagev1.Image) { replaceMetadata(i, `"8080/tcp":{}`, ``) }, []string{"dockerImageMetadata"}},
		{"metadata: a field that the kind has not", func(i *imagev1.Image) { replaceMetadata(i, `{`, `{"Extra":1,`) }, []string{"dockerImageMetadata"}},
		{"metadata: a field twice", func(i *imagev1.Image) { replaceMetadata(i, `{`, `{"Size":1,`) }, []string{"dockerImageMetadata", "dockerImageMetadata"}},
		{"metadata: no JSON", func(i *imagev1.Image) { i.DockerImageMetadata.Raw = []byte("x") }, []string{"dockerImageMetadata", "dockerImageMetadata"}},
		{"metadata version", func(i *imagev1.Image) { i.DockerImageMetadataVersion = "2.0" }, []string{"dockerImageMetadataVersion"}},
		{"layers: another size", func(i *imagev1.Image) { i.DockerImageLayers[0].LayerSize++ }, []string{"dockerImageLayers"}},
		{"layers: one less", func(i *imagev1.Image) { i.DockerImageLayers = i.DockerImageLayers[1:] }, []string{"dockerImageLayers"}},
		{"layers: another order", func(i *imagev1.Image) {
			i.DockerImageLayers[0], i.DockerImageLayers[1] = i.DockerImageLayers[1], i.DockerImageLayers[0]
		}, []string{"dockerImageLayers"}},
		{"layers: said to descend, but do not", func(i *imagev1.Image) {
			i.DockerImageLayers[0], i.DockerImageLayers[1] = i.DockerImageLayers[1], i.DockerImageLayers[0]
			i.Annotations[imagev1.DockerImageLayersOrderAnnotation] = "descending"
		}, []string{"dockerImageLayers", "metadata.annotations[image.openshift.io/dockerLayersOrder]"}},
		{"order annotation alone", func(i *imagev1.Image) {
			i.Annotations[imagev1.DockerImageLayersOrderAnnotation] = "other"
		}, []string{"metadata.annotations[image.openshift.io/dockerLayersOrder]"}},
		{"media type", func(i *imagev1.Image) { i.DockerImageManifestMediaType = manifest.MediaTypeDockerSchema2 }, []string{"dockerImageManifestMediaType"}},
		{"manifest: another image's", func(i *imagev1.Image) { i.DockerImageManifest = read(t, "docker-schema2.json") }, []string{"dockerImageManifest"}},
		{"manifest: reformatted", func(i *imagev1.Image) {
			var b bytes.Buffer
			if err := json.Compact(&b, []byte(i.DockerImageManifest)); err != nil {
				t.Fatal(err)
			}
			i.DockerImageManifest = b.String()
		}, []string{"dockerImageManifest", "dockerImageReference"}},
		{"config: another image's", func(i *imagev1.Image) { i.DockerImageConfig = read(t, "docker-config.json") }, []string{"dockerImageConfig"}},
		{"config: another image's, manifest emptied", func(i *imagev1.Image) {
			i.DockerImageManifest, i.DockerImageConfig = "", read(t, "docker-config.json")
		}, []string{"dockerImageConfig"}},
		{"manifests on an image with layers", func(i *imagev1.Image) {
			i.DockerImageManifests = []imagev1.ImageManifest{{Digest: i.Name, MediaType: manifest.MediaTypeOCIManifest, OS: "a", Architecture: "b"}}
		}, []string{"dockerImageManifests", "dockerImageLayers"}},
		{"platform annotation", func(i *imagev1.Image) { i.Annotations[annotation.Platform] = "linux/amd64" }, []string{"metadata.annotations[tidewaiter.dev/platform]"}},
		{"docker signatures", func(i *imagev1.Image) { i.DockerImageSignatures = [][]byte{[]byte("b")} }, []string{"dockerImageSignatures"}},
		{"uid", func(i *imagev1.Image) { i.UID = "other" }, nil}, // 409, see below
	}
	image := ociImage(t)
	image.DockerImageSignatures = [][]byte{[]byte("a")}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStorages(t, nil)
			created := s.mustCreate(t, image)
			changed := created.DeepCopy()
			changed.Labels = map[string]string{"touched": "yes"}
			tt.change(changed)
			_, err := s.update(changed)
			if tt.want == nil {
				if !apierrors.IsConflict(err) {
					t.Errorf("error %v, want a conflict", err)
				}
			} else if diff := cmp.Diff(tt.want, causes(err)); diff != "" {
				t.Errorf("causes (-want +got):\n%s\nerror: %v", diff, err)
			}
			if diff := cmp.Diff(created, s.get(t, created.Name)); diff != "" {
				t.Errorf("stored in spite of the error:\n%s", diff)
			}
		})
	}
}

func TestUpdateRefusesIndexChange(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, bareImage(t, "oci-index.json", ""))
	tests := []struct {
		name   string
		change func(*imagev1.Image)
		want   []string
	}{
		{"a manifest less", func(i *imagev1.Image) { i.DockerImageManifests = i.DockerImageManifests[1:] }, []string{"dockerImageManifests"}},
		{"another platform", func(i *imagev1.Image) { i.DockerImageManifests[0].Architecture = "s390x" }, []string{"dockerImageManifests"}},
		{"layers", func(i *imagev1.Image) { i.DockerImageLayers = []imagev1.ImageLayer{{Name: "x"}} }, []string{"dockerImageLayers", "dockerImageLayers"}},
		{"config", func(i *imagev1.Image) { i.DockerImageConfig = "{}" }, []string{"dockerImageConfig"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changed := created.DeepCopy()
			tt.change(changed)
			_, err := s.update(changed)
			if diff := cmp.Diff(tt.want, causes(err)); diff != "" {
				t.Errorf("causes (-want +got):\n%s\nerror: %v", diff, err)
			}
		})
	}
}

// Clients drop fields that they do not know and encode the others again. None of that changes the
// image.
func TestUpdateKeepsWhatClientsDrop(t *testing.T) {
	tests := []struct {
		name   string
		change func(*imagev1.Image)
	}{
		{"nothing", func(*imagev1.Image) {}},
		{"everything derived is left out", func(i *imagev1.Image) {
			i.DockerImageMetadata = runtime.RawExtension{}
			i.DockerImageMetadataVersion = ""
			i.DockerImageLayers = nil
			i.DockerImageManifests = nil
			i.DockerImageManifestMediaType = ""
			i.DockerImageSignatures = nil
			i.Annotations = nil
		}},
		{"metadata through a map, indented", func(i *imagev1.Image) {
			var tree map[string]any
			if err := json.Unmarshal(i.DockerImageMetadata.Raw, &tree); err != nil {
				t.Fatal(err)
			}
			i.DockerImageMetadata.Raw, _ = json.MarshalIndent(tree, "", "  ")
		}},
		{"metadata without what is empty", func(i *imagev1.Image) {
			replaceMetadata(i, `"ContainerConfig":{},`, ``)
		}},
		{"metadata of no kind", func(i *imagev1.Image) {
			replaceMetadata(i, `"kind":"DockerImage","apiVersion":"image.openshift.io/1.0",`, ``)
		}},
		{"layers the other way around, and said so", func(i *imagev1.Image) {
			if len(i.DockerImageLayers) == 0 {
				return
			}
			slices.Reverse(i.DockerImageLayers)
			i.Annotations[imagev1.DockerImageLayersOrderAnnotation] = "descending"
		}},
		{"no order annotation", func(i *imagev1.Image) { delete(i.Annotations, imagev1.DockerImageLayersOrderAnnotation) }},
	}
	for _, file := range [][2]string{{"oci-image.json", "oci-config.json"}, {"oci-index.json", ""}, {"schema1-signed.json", ""}} {
		s := newStorages(t, nil)
		created := s.mustCreate(t, bareImage(t, file[0], file[1]))
		for i, tt := range tests {
			t.Run(file[0]+" "+tt.name, func(t *testing.T) {
				current := s.get(t, created.Name)
				changed := current.DeepCopy()
				if changed.Annotations == nil {
					changed.Annotations = map[string]string{}
				}
				tt.change(changed)
				changed.Labels = map[string]string{"run": fmt.Sprint(i)}
				updated, err := s.update(changed)
				if err != nil {
					t.Fatal(err)
				}
				want := current.DeepCopy()
				want.Labels, want.ResourceVersion = changed.Labels, updated.ResourceVersion
				if diff := cmp.Diff(want, updated, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("changed (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestUpdateMutableFields(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, ociImage(t))
	changed := created.DeepCopy()
	changed.Labels = map[string]string{"team": "a"}
	changed.Annotations["note"] = "b"
	changed.DockerImageReference = "mirror.example.com/acme/web@" + created.Name
	changed.Signatures = []imagev1.ImageSignature{signature(created.Name, "a", "AtomicImageV1", "x")}
	updated, err := s.update(changed)
	if err != nil {
		t.Fatal(err)
	}
	changed.ResourceVersion = updated.ResourceVersion
	if diff := cmp.Diff(changed, updated); diff != "" {
		t.Errorf("updated (-want +got):\n%s", diff)
	}
}

// Without a manifest the image's type and its manifests are the client's to say.
func TestUpdateMutableWithoutManifest(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, plainImage())
	changed := created.DeepCopy()
	changed.DockerImageManifestMediaType = manifest.MediaTypeOCIIndex
	changed.DockerImageManifests = []imagev1.ImageManifest{{Digest: ociImage(t).Name, MediaType: manifest.MediaTypeOCIManifest, OS: "a", Architecture: "b"}}
	if _, err := s.update(changed); err != nil {
		t.Fatal(err)
	}
}

// Manifest and config may be dropped, and come back as the same bytes only.
func TestUpdateDropsAndRestoresManifest(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, ociImage(t))
	dropped := created.DeepCopy()
	dropped.DockerImageManifest, dropped.DockerImageConfig = "", ""
	dropped, err := s.update(dropped)
	if err != nil {
		t.Fatal(err)
	}
	if dropped.DockerImageManifest != "" || len(dropped.DockerImageLayers) != 3 {
		t.Errorf("dropped %+v", dropped)
	}
	configOnly := dropped.DeepCopy()
	configOnly.DockerImageConfig = created.DockerImageConfig
	configOnly, err = s.update(configOnly)
	if err != nil {
		t.Fatalf("the config, which the metadata's Id names: %v", err)
	}
	wrong := configOnly.DeepCopy()
	wrong.DockerImageManifest = read(t, "docker-schema2.json")
	if _, err := s.update(wrong); !slices.Contains(causes(err), "dockerImageManifest") {
		t.Errorf("another image's manifest: %v", err)
	}
	restored := configOnly.DeepCopy()
	restored.DockerImageManifest = created.DockerImageManifest
	restored, err = s.update(restored)
	if err != nil {
		t.Fatal(err)
	}
	created.ResourceVersion = restored.ResourceVersion
	if diff := cmp.Diff(created, restored); diff != "" {
		t.Errorf("restored (-created +got):\n%s", diff)
	}
}

// Bytes that prove themselves replace what a client had claimed.
func TestUpdateDerivesFromAddedManifest(t *testing.T) {
	s := newStorages(t, nil)
	full := ociImage(t)
	claimed := plainImage()
	claimed.Name = full.Name
	created := s.mustCreate(t, claimed)
	changed := created.DeepCopy()
	changed.DockerImageManifest, changed.DockerImageConfig = full.DockerImageManifest, full.DockerImageConfig
	updated, err := s.update(changed)
	if err != nil {
		t.Fatal(err)
	}
	want := s.mustDerive(t, full)
	if string(updated.DockerImageMetadata.Raw) != string(want.DockerImageMetadata.Raw) {
		t.Errorf("metadata %s", updated.DockerImageMetadata.Raw)
	}
	if diff := cmp.Diff(want.DockerImageLayers, updated.DockerImageLayers); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Annotations, updated.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	// But not together with a claim that they do not bear out.
	lying := created.DeepCopy()
	lying.Name = full.Name
	lying.ResourceVersion = updated.ResourceVersion
	lying.DockerImageManifest, lying.DockerImageConfig = full.DockerImageManifest, full.DockerImageConfig
	lying.DockerImageLayers = []imagev1.ImageLayer{{Name: "x"}}
	if _, err := s.update(lying); !slices.Contains(causes(err), "dockerImageLayers") {
		t.Errorf("lying layers: %v", err)
	}
}

func (s storages) mustDerive(t *testing.T, image *imagev1.Image) *imagev1.Image {
	t.Helper()
	if err := manifest.Derive(image); err != nil {
		t.Fatal(err)
	}
	return image
}

func TestUpdatePreconditions(t *testing.T) {
	s := newStorages(t, nil)
	if _, err := s.update(&imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "absent", ResourceVersion: "1"}}); !apierrors.IsNotFound(err) {
		t.Errorf("update of an absent image: %v, want 404", err)
	}
	created := s.mustCreate(t, ociImage(t))
	unconditional := created.DeepCopy()
	unconditional.ResourceVersion = ""
	_, err := s.update(unconditional)
	if diff := cmp.Diff([]string{"metadata.resourceVersion"}, causes(err)); diff != "" {
		t.Errorf("without resourceVersion (-want +got):\n%s\n%v", diff, err)
	}
	first := created.DeepCopy()
	first.Labels = map[string]string{"a": "b"}
	if _, err := s.update(first); err != nil {
		t.Fatal(err)
	}
	if _, err := s.update(created); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v, want 409", err)
	}
}

func TestDelete(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, ociImage(t))
	obj, immediately, err := s.images.Delete(requestContext(), created.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if err != nil || !immediately {
		t.Fatalf("deleted %v: %v", immediately, err)
	}
	if status, ok := obj.(*metav1.Status); !ok || status.Status != metav1.StatusSuccess {
		t.Errorf("answer %#v, want a Status of success", obj)
	}
	if _, err := s.images.Get(requestContext(), created.Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v", err)
	}
}
