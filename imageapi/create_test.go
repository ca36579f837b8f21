package imageapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// causes returns the fields that an Invalid error names; nil for success and for other errors.
func causes(err error) []string {
	status, ok := err.(apierrors.APIStatus)
	if !ok || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return nil
	}
	var out []string
	for _, c := range status.Status().Details.Causes {
		out = append(out, c.Field)
	}
	return out
}

func TestCreateDerives(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, ociImage(t))
	want := ociImage(t)
	if err := manifest.Derive(want); err != nil {
		t.Fatal(err)
	}
	// What the server adds to any object.
	want.TypeMeta = created.TypeMeta
	want.UID, want.CreationTimestamp, want.ResourceVersion = created.UID, created.CreationTimestamp, created.ResourceVersion
	if diff := cmp.Diff(want, created); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(created, s.get(t, created.Name)); diff != "" {
		t.Errorf("stored (-created +got):\n%s", diff)
	}
	metadata, err := manifest.Metadata(created)
	if err != nil {
		t.Fatal(err)
	}
	if metadata.ID != "sha256:9e4eefac87e463c465b37425ab8f824f61a1205dec06084d31bb91c9a242138f" || metadata.Size != 31460266 || metadata.Architecture != "arm64" {
		t.Errorf("metadata %s", created.DockerImageMetadata.Raw)
	}
	if _, err := s.create(ociImage(t)); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
}

// The metadata's bytes are made once: the same in the answer to the write, in a read, in a list,
// and inside an encoded object.
func TestServedBytesAreFinal(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, ociImage(t))
	got := s.get(t, created.Name)
	if string(got.DockerImageMetadata.Raw) != string(created.DockerImageMetadata.Raw) {
		t.Errorf("read %s\nwrote %s", got.DockerImageMetadata.Raw, created.DockerImageMetadata.Raw)
	}
	if got.DockerImageMetadata.Object != nil {
		t.Error("the metadata was decoded")
	}
	encoded, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(encoded), `"dockerImageMetadata":`+string(created.DockerImageMetadata.Raw)+`,`) {
		t.Errorf("encoded %s", encoded)
	}
}

func TestCreateRefuses(t *testing.T) {
	otherName := "sha256:" + strings.Repeat("0", 64)
	tests := []struct {
		name  string
		image func() *imagev1.Image
		want  []string
	}{
		{"named by another digest", func() *imagev1.Image {
			i := ociImage(t)
			i.Name, i.DockerImageReference = otherName, "registry.example.com/acme/web"
			return i
		}, []string{"metadata.name"}},
		{"with a manifest but no digest for a name", func() *imagev1.Image {
			i := ociImage(t)
			i.Name = "web"
			return i
		}, []string{"metadata.name"}},
		{"index named by another digest", func() *imagev1.Image {
			i := bareImage(t, "oci-index.json", "")
			i.Name, i.DockerImageReference = otherName, "registry.example.com/acme/web"
			return i
		}, []string{"metadata.name"}},
		{"referred to by another digest", func() *imagev1.Image {
			i := ociImage(t)
			i.DockerImageReference = "registry.example.com/acme/web@" + otherName
			return i
		}, []string{"dockerImageReference"}},
		{"manifest is no manifest", func() *imagev1.Image { i := plainImage(); i.DockerImageManifest = "{}"; return i }, []string{"dockerImageManifest"}},
		{"another image's config", func() *imagev1.Image { return bareImage(t, "oci-image.json", "docker-config.json") }, []string{"dockerImageConfig"}},
		{"contradicting media type", func() *imagev1.Image {
			i := ociImage(t)
			i.DockerImageManifestMediaType = manifest.MediaTypeOCIIndex
			return i
		}, []string{"dockerImageManifest"}},
		{"manifest blob stored, and not this one", func() *imagev1.Image {
			i := ociImage(t)
			i.Name, i.DockerImageReference = otherName, "registry.example.com/acme/web"
			i.Annotations = map[string]string{imagev1.ImageManifestBlobStoredAnnotation: "true"}
			return i
		}, []string{"metadata.name"}},
	}
	s := newStorages(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.create(tt.image())
			if diff := cmp.Diff(tt.want, causes(err)); diff != "" {
				t.Errorf("causes (-want +got):\n%s\nerror: %v", diff, err)
			}
		})
	}
}

// Names by another registered algorithm than sha256 are digests too.
func TestCreateNamedBySHA512(t *testing.T) {
	i := bareImage(t, "docker-schema2.json", "docker-config.json")
	i.Name = "sha512:c6a1f9a04c2bb03ca3bd3e4a5b8e4e1e1a54a4a0d6a9bd4b2e6c4b5b8c8e6e2d"
	i.DockerImageReference = "registry.example.com/acme/web"
	s := newStorages(t, nil)
	if _, err := s.create(i); !apierrors.IsInvalid(err) {
		t.Errorf("a short sha512 digest: %v", err)
	}
	i.Name = sha512(i.DockerImageManifest)
	s.mustCreate(t, i)
}

// An image without a manifest may have any name, and keeps what its client says about it.
func TestCreateWithoutManifest(t *testing.T) {
	s := newStorages(t, nil)
	i := plainImage()
	i.DockerImageMetadata.Raw = []byte(`{ "Id": "x", "Architecture": "s390x", "Custom": 1 }`)
	i.DockerImageMetadataVersion = ""
	created := s.mustCreate(t, i)
	if got, want := string(created.DockerImageMetadata.Raw), `{"Architecture":"s390x","Custom":1,"Id":"x","apiVersion":"image.openshift.io/1.0","kind":"DockerImage"}`; got != want {
		t.Errorf("metadata %s, want %s", got, want)
	}
	if created.DockerImageMetadataVersion != "1.0" {
		t.Errorf("version %q", created.DockerImageMetadataVersion)
	}
}

// dockerImageMetadata from before API groups.
func TestCreateStampsLegacyMetadata(t *testing.T) {
	s := newStorages(t, nil)
	i := plainImage()
	i.DockerImageMetadata.Raw = []byte(`{"kind":"DockerImage","apiVersion":"1.0","Id":"x"}`)
	created := s.mustCreate(t, i)
	if got, want := string(created.DockerImageMetadata.Raw), `{"Id":"x","apiVersion":"image.openshift.io/1.0","kind":"DockerImage"}`; got != want {
		t.Errorf("metadata %s, want %s", got, want)
	}
}

func TestCreateSortsLayers(t *testing.T) {
	ascending := []imagev1.ImageLayer{{Name: "base"}, {Name: "middle"}, {Name: "top"}}
	descending := []imagev1.ImageLayer{{Name: "top"}, {Name: "middle"}, {Name: "base"}}
	const key = imagev1.DockerImageLayersOrderAnnotation
	tests := []struct {
		name, mediaType, order string
		layers                 []imagev1.ImageLayer
		want                   []imagev1.ImageLayer
		wantOrder              string
	}{
		{"said to descend", manifest.MediaTypeOCIManifest, "descending", descending, ascending, "ascending"},
		{"said to ascend", manifest.MediaTypeOCIManifest, "ascending", ascending, ascending, "ascending"},
		{"OCI descends by default", manifest.MediaTypeOCIManifest, "", descending, ascending, "ascending"},
		{"schema 2 descends by default", manifest.MediaTypeDockerSchema2, "", descending, ascending, "ascending"},
		{"schema 1 ascends by default", manifest.MediaTypeSchema1, "", ascending, ascending, "ascending"},
		{"unknown types stay", "application/vnd.example+json", "", descending, descending, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStorages(t, nil)
			i := plainImage()
			i.DockerImageManifestMediaType, i.DockerImageLayers = tt.mediaType, tt.layers
			if tt.order != "" {
				i.Annotations = map[string]string{key: tt.order}
			}
			created := s.mustCreate(t, i)
			if diff := cmp.Diff(tt.want, created.DockerImageLayers); diff != "" {
				t.Errorf("layers (-want +got):\n%s", diff)
			}
			if got := created.Annotations[key]; got != tt.wantOrder {
				t.Errorf("annotation %q, want %q", got, tt.wantOrder)
			}
		})
	}
}

// openshift-apiserver takes an OCI index without mediaType for an image and derives nothing.
func TestCreateIndexWithoutMediaType(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, bareImage(t, "oci-index-untyped.json", ""))
	if created.DockerImageManifestMediaType != manifest.MediaTypeOCIIndex || len(created.DockerImageManifests) != 1 {
		t.Errorf("media type %q, manifests %v", created.DockerImageManifestMediaType, created.DockerImageManifests)
	}
}

// An index may hold entries without a platform; they are not a reason to refuse it.
func TestCreateIndexWithoutPlatform(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, bareImage(t, "oci-index.json", ""))
	if n := len(created.DockerImageManifests); n != 5 || created.DockerImageManifests[3].OS != "" {
		t.Errorf("manifests %+v", created.DockerImageManifests)
	}
}

// So may one that is pushed to OpenShift's registry, which keeps the manifest. It can be changed
// afterwards.
func TestPushedIndexWithoutPlatform(t *testing.T) {
	s := newStorages(t, nil)
	index := bareImage(t, "oci-index.json", "")
	index.Annotations = map[string]string{imagev1.ImageManifestBlobStoredAnnotation: "true"}
	created := s.mustCreate(t, index)
	if n := len(created.DockerImageManifests); n != 5 || created.DockerImageManifests[3].OS != "" || created.DockerImageManifest != "" {
		t.Errorf("manifests %+v, manifest %q", created.DockerImageManifests, created.DockerImageManifest)
	}
	created.Labels = map[string]string{"team": "base"}
	if _, err := s.update(created); err != nil {
		t.Error(err)
	}
}

// The time of an index is that of its newest stored child, and not of the import.
func TestCreateDatesIndexByChildren(t *testing.T) {
	s := newStorages(t, nil)
	before := s.mustCreate(t, bareImage(t, "oci-index-untyped.json", ""))
	s.mustCreate(t, ociImage(t))
	after := s.mustCreate(t, bareImage(t, "oci-index.json", ""))
	for _, tt := range []struct {
		image *imagev1.Image
		want  string
	}{{before, `"Created":null`}, {after, `"Created":"2026-01-02T03:04:05Z"`}} {
		if got := string(tt.image.DockerImageMetadata.Raw); !strings.Contains(got, tt.want) {
			t.Errorf("metadata %s, want %s", got, tt.want)
		}
	}
}

// OpenShift's registry keeps manifest and config itself, and says so.
func TestCreateDropsStoredManifest(t *testing.T) {
	s := newStorages(t, nil)
	i := ociImage(t)
	i.Annotations = map[string]string{imagev1.ImageManifestBlobStoredAnnotation: "true"}
	created := s.mustCreate(t, i)
	if created.DockerImageManifest != "" || created.DockerImageConfig != "" {
		t.Error("manifest or config was kept")
	}
	if metadata, err := manifest.Metadata(created); err != nil || metadata.Size != 31460266 {
		t.Errorf("metadata %s", created.DockerImageMetadata.Raw)
	}
}

func TestCreateDropsManagedSignatureAnnotation(t *testing.T) {
	s := newStorages(t, nil)
	i := plainImage()
	sig := signature("plain", "a", "AtomicImageV1", "x")
	sig.Annotations = map[string]string{"image.openshift.io/managed-signature": "true"}
	i.Signatures = []imagev1.ImageSignature{sig}
	if created := s.mustCreate(t, i); len(created.Signatures[0].Annotations) != 0 {
		t.Errorf("annotations %v", created.Signatures[0].Annotations)
	}
}

func TestCreateDryRun(t *testing.T) {
	s := newStorages(t, nil)
	obj, err := s.images.Create(requestContext(), ociImage(t), nil, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if len(obj.(*imagev1.Image).DockerImageLayers) != 3 {
		t.Error("a dry run does not derive")
	}
	if _, err := s.images.Get(requestContext(), ociImage(t).Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after a dry run: %v", err)
	}
}
