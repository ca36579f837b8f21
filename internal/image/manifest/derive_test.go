package manifest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

const ociLayer = "application/vnd.oci.image.layer.v1.tar+gzip"

func TestDerive(t *testing.T) {
	tests := []struct {
		name  string
		image *imagev1.Image
		want  imagev1.Image // derived fields only
	}{
		{
			name:  "OCI image",
			image: newImage(digestOCIImage, read(t, "oci-image.json"), read(t, "oci-config.json"), ""),
			want: imagev1.Image{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"image.openshift.io/dockerLayersOrder": "ascending", "tidewaiter.dev/platform": "linux/arm64/v8", "tidewaiter.dev/run-config": `{"Healthcheck":{"Test":["CMD","/web","-check"]},"StopSignal":"SIGTERM"}`}},
				// Size is layer 1 once + layer 2 + config: 31457280 + 2000 + 986. Created is in UTC
				// and whole seconds.
				DockerImageMetadata: runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"` + digestOCIConfig + `","Created":"2026-01-02T03:04:05Z","ContainerConfig":{},"Author":"Acme","Config":{"User":"1001","ExposedPorts":{"8080/tcp":{}},"Env":["PATH=/bin"],"Cmd":["--listen=:8080"],"WorkingDir":"/srv","Entrypoint":["/web"],"Labels":{"org.example.team":"\u003cweb\u003e"}},"Architecture":"arm64","Size":31460266}`)},
				DockerImageLayers: []imagev1.ImageLayer{
					{Name: digestLayer1, LayerSize: 31457280, MediaType: ociLayer},
					{Name: digestLayer2, LayerSize: 2000, MediaType: ociLayer},
					{Name: digestLayer1, LayerSize: 31457280, MediaType: ociLayer},
				},
				DockerImageManifestMediaType: "application/vnd.oci.image.manifest.v1+json",
			},
		},
		{
			name:  "Docker schema 2",
			image: newImage(digestDockerSchema2, read(t, "docker-schema2.json"), read(t, "docker-config.json"), ""),
			want: imagev1.Image{
				ObjectMeta:          metav1.ObjectMeta{Annotations: map[string]string{"image.openshift.io/dockerLayersOrder": "ascending", "tidewaiter.dev/platform": "linux/amd64"}},
				DockerImageMetadata: runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"sha256:5bc25a3999eeaeb07df0194e23c4040b1f41e153f3483cfd65d6895e0bb4f3ae","Created":"2020-05-06T07:08:09Z","Container":"0123abcd","ContainerConfig":{"Hostname":"0123abcd","Cmd":["/bin/sh","-c","#(nop) CMD [\"sh\"]"],"Image":"sha256:0000000000000000000000000000000000000000000000000000000000000000"},"DockerVersion":"19.03.8","Config":{"Env":["PATH=/bin"],"Cmd":["sh"]},"Architecture":"amd64","Size":761337}`)},
				DockerImageLayers: []imagev1.ImageLayer{
					{Name: "sha256:10dacdccfe877dc064d57442e6fa7a4e3085dc94e11a29819c2290fc3d788724", LayerSize: 760770, MediaType: "application/vnd.docker.image.rootfs.diff.tar.gzip"},
				},
				DockerImageManifestMediaType: "application/vnd.docker.distribution.manifest.v2+json",
			},
		},
		{
			name:  "OCI index",
			image: newImage(digestOCIIndex, read(t, "oci-index.json"), "", ""),
			want: imagev1.Image{
				DockerImageMetadata: runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"` + digestOCIIndex + `","Created":null,"ContainerConfig":{}}`)},
				DockerImageManifests: []imagev1.ImageManifest{
					{Digest: digestOCIImage, MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 906, Architecture: "arm64", OS: "linux", Variant: "v8"},
					{Digest: "sha256:5861314d7fccb39c2192173240eab44fa35ca66426201ca2acd0630a6258dd51", MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 1252, Architecture: "amd64", OS: "linux"},
					{Digest: "sha256:823a3180dad3c9c3c4dea43ab2baf9f04bac9c3a7711745ff5f702551496d735", MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 1252, Architecture: "amd64", OS: "windows"},
					{Digest: "sha256:6bf2cbb8b1f4abd30bd9bea82f47b4628b2943085dc91acf876749e98e191ca1", MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 700},
					{Digest: "sha256:cc57fc1903e444cf6a726490b43b27ee9f87facc037f86872201847c565b45fb", MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 99},
				},
				DockerImageManifestMediaType: "application/vnd.oci.image.index.v1+json",
			},
		},
		{
			name:  "schema 1, signed",
			image: newImage(digestSchema1, read(t, "schema1-signed.json"), "", manifest.MediaTypeSchema1Signed),
			want: imagev1.Image{
				ObjectMeta:          metav1.ObjectMeta{Annotations: map[string]string{"image.openshift.io/dockerLayersOrder": "ascending", "tidewaiter.dev/platform": "linux/amd64"}},
				DockerImageMetadata: runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","Parent":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","Created":"2014-10-01T20:46:08Z","Container":"cccc","ContainerConfig":{"Cmd":["/bin/sh","-c","#(nop) CMD [/bin/bash]"]},"DockerVersion":"1.2.0","Author":"Acme","Config":{"Cmd":["/bin/bash"],"Image":"x"},"Architecture":"amd64","Size":107}`)},
				DockerImageLayers: []imagev1.ImageLayer{
					{Name: digestBase, LayerSize: 100, MediaType: "application/vnd.docker.container.image.rootfs.diff+x-gtar"},
					{Name: digestTop, LayerSize: 7, MediaType: "application/vnd.docker.container.image.rootfs.diff+x-gtar"},
				},
				DockerImageManifestMediaType: "application/vnd.docker.distribution.manifest.v1+prettyjws",
			},
		},
		{
			name:  "without the config, as far as the manifest tells",
			image: newImage(digestOCIImage, read(t, "oci-image.json"), "", ""),
			want: imagev1.Image{
				ObjectMeta:          metav1.ObjectMeta{Annotations: map[string]string{"image.openshift.io/dockerLayersOrder": "ascending"}},
				DockerImageMetadata: runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"` + digestOCIConfig + `","Created":null,"ContainerConfig":{},"Size":31460266}`)},
				DockerImageLayers: []imagev1.ImageLayer{
					{Name: digestLayer1, LayerSize: 31457280, MediaType: ociLayer},
					{Name: digestLayer2, LayerSize: 2000, MediaType: ociLayer},
					{Name: digestLayer1, LayerSize: 31457280, MediaType: ociLayer},
				},
				DockerImageManifestMediaType: "application/vnd.oci.image.manifest.v1+json",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := tt.image.DeepCopy()
			if err := manifest.Derive(image); err != nil {
				t.Fatal(err)
			}
			want := tt.image.DeepCopy()
			want.Annotations = tt.want.Annotations
			want.DockerImageMetadata = tt.want.DockerImageMetadata
			want.DockerImageMetadataVersion = "1.0"
			want.DockerImageLayers = tt.want.DockerImageLayers
			want.DockerImageManifests = tt.want.DockerImageManifests
			want.DockerImageManifestMediaType = tt.want.DockerImageManifestMediaType
			if diff := cmp.Diff(want, image, cmp.Transformer("JSON", func(r runtime.RawExtension) string { return string(r.Raw) })); diff != "" {
				t.Errorf("derived (-want +got):\n%s", diff)
			}
			again := image.DeepCopy()
			if err := manifest.Derive(again); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(image, again); diff != "" {
				t.Errorf("deriving again changes (-once +twice):\n%s", diff)
			}
		})
	}
}

// An index has no time of its own: its time is its newest known child's, and never the clock's.
func TestDeriveIndexCreated(t *testing.T) {
	child := newImage(digestOCIImage, read(t, "oci-image.json"), read(t, "oci-config.json"), "")
	if err := manifest.Derive(child); err != nil {
		t.Fatal(err)
	}
	stranger := newImage(digestDockerSchema2, "", "", "")
	stranger.DockerImageMetadata.Raw = []byte(`{"Created":"2030-01-01T00:00:00Z"}`)
	annotated := `{"schemaVersion":2,"annotations":{"org.opencontainers.image.created":"2025-05-05T05:05:05Z"},` + entries + `}`
	tests := []struct {
		name     string
		manifest string
		children []*imagev1.Image
		want     string
	}{
		{"no child known", read(t, "oci-index.json"), nil, "null"},
		{"newest child", read(t, "oci-index.json"), []*imagev1.Image{child}, `"2026-01-02T03:04:05Z"`},
		{"not its child", read(t, "oci-index.json"), []*imagev1.Image{stranger, child}, `"2026-01-02T03:04:05Z"`},
		{"own annotation", annotated, []*imagev1.Image{child}, `"2025-05-05T05:05:05Z"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			index := newImage(manifest.Digest([]byte(tt.manifest)), tt.manifest, "", "")
			if err := manifest.Derive(index, tt.children...); err != nil {
				t.Fatal(err)
			}
			want := `{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"` + index.Name + `","Created":` + tt.want + `,"ContainerConfig":{}}`
			if got := string(index.DockerImageMetadata.Raw); got != want {
				t.Errorf("metadata\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Schema 1 manifests do not know their layers' sizes; a registry that pushes the image does.
func TestDeriveKeepsSchema1Sizes(t *testing.T) {
	image := newImage(digestSchema1, read(t, "schema1.json"), "", "")
	image.DockerImageLayers = []imagev1.ImageLayer{{Name: digestBase, LayerSize: 5000}, {Name: digestTop, LayerSize: 300}}
	if err := manifest.Derive(image); err != nil {
		t.Fatal(err)
	}
	metadata, err := manifest.Metadata(image)
	if err != nil {
		t.Fatal(err)
	}
	if image.DockerImageLayers[0].LayerSize != 5000 || image.DockerImageLayers[1].LayerSize != 300 || metadata.Size != 5300 {
		t.Errorf("layers %+v, size %d", image.DockerImageLayers, metadata.Size)
	}
}

func TestDeriveKeepsMetadataWithoutConfig(t *testing.T) {
	image := newImage(digestOCIImage, read(t, "oci-image.json"), "", "")
	image.DockerImageMetadata.Raw = []byte(`{"Id":"x"}`)
	if err := manifest.Derive(image); err != nil {
		t.Fatal(err)
	}
	if got := string(image.DockerImageMetadata.Raw); got != `{"Id":"x"}` {
		t.Errorf("metadata %s", got)
	}
}

func TestDeriveWithoutManifest(t *testing.T) {
	image := newImage("anything", "", "", "")
	if err := manifest.Derive(image); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newImage("anything", "", "", ""), image); diff != "" {
		t.Error(diff)
	}
}

func TestDeriveRefuses(t *testing.T) {
	tests := []struct {
		name  string
		image *imagev1.Image
		want  error
	}{
		{"signature", newImage("x", read(t, "cosign-sig.json"), "", ""), manifest.ErrNotAnImage},
		{"attestation", newImage("x", read(t, "buildkit-attestation.json"), "", ""), manifest.ErrNotAnImage},
		{"bundle", newImage("x", read(t, "sigstore-bundle.json"), "", ""), manifest.ErrNotAnImage},
		{"notation", newImage("x", read(t, "notation-sig.json"), "", ""), manifest.ErrNotAnImage},
		{"chart", newImage("x", read(t, "helm-chart.json"), "", ""), manifest.ErrNotAnImage},
		{"another image's config", newImage("x", read(t, "oci-image.json"), read(t, "docker-config.json"), ""), manifest.ErrDigestMismatch},
		{"index with config", newImage("x", read(t, "oci-index.json"), "{}", ""), manifest.ErrInvalid},
		{"schema 1 with config", newImage("x", read(t, "schema1.json"), "{}", ""), manifest.ErrInvalid},
		{"no manifest but bytes", newImage("x", "bytes", "", ""), manifest.ErrInvalid},
		{"contradicting media type", newImage("x", read(t, "oci-image.json"), "", manifest.MediaTypeDockerList), manifest.ErrAmbiguous},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := tt.image.DeepCopy()
			if err := manifest.Derive(image); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(tt.image, image); diff != "" {
				t.Errorf("changed in spite of the error:\n%s", diff)
			}
		})
	}
}

// A cached manifest and a cached config do not count as a pair.
func TestDeriveRemembersPairs(t *testing.T) {
	raw, config := read(t, "oci-image.json"), read(t, "oci-config.json")
	other, otherConfig := read(t, "docker-schema2.json"), read(t, "docker-config.json")
	for _, pair := range [][2]string{{raw, config}, {other, otherConfig}, {raw, config}} {
		if err := manifest.Derive(newImage("x", pair[0], pair[1], "")); err != nil {
			t.Fatal(err)
		}
	}
	for _, pair := range [][2]string{{raw, otherConfig}, {other, config}} {
		if err := manifest.Derive(newImage("x", pair[0], pair[1], "")); !errors.Is(err, manifest.ErrDigestMismatch) {
			t.Errorf("a config of another manifest: %v", err)
		}
	}
}

// A config was read and matched one manifest. The cached result is no proof for other manifests.
func TestAttackConfigOfAnotherImageThatIsRemembered(t *testing.T) {
	owner := newImage(digestOCIImage, read(t, "oci-image.json"), read(t, "oci-config.json"), "")
	if err := manifest.Derive(owner); err != nil {
		t.Fatal(err)
	}
	thief := newImage(digestDockerSchema2, read(t, "docker-schema2.json"), read(t, "oci-config.json"), "")
	for _, remember := range []func() error{
		func() error { return nil }, // as in the owner's Image
		func() error { _, err := manifest.ConfigOf(thief); return err },
		func() error { _, err := manifest.Of(thief); return err },
		func() error {
			return manifest.Derive(newImage(digestDockerSchema2, read(t, "docker-schema2.json"), read(t, "docker-config.json"), ""))
		},
	} {
		if err := remember(); err != nil {
			t.Fatal(err)
		}
		if err := manifest.Derive(thief); !errors.Is(err, manifest.ErrDigestMismatch) {
			t.Errorf("another image's config was taken: %v", err)
		}
	}
}

// TestWhatIsDerivedIsNotParsedAgain: an image that has its media type from Derive carries the same
// manifest as before.
func TestWhatIsDerivedIsNotParsedAgain(t *testing.T) {
	image := newImage(digestOCIImage, read(t, "oci-image.json"), read(t, "oci-config.json"), "")
	before, err := manifest.Of(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := manifest.Derive(image); err != nil {
		t.Fatal(err)
	}
	if after, err := manifest.Of(image); err != nil || after != before {
		t.Errorf("of media type %s it is parsed again: %v", image.DockerImageManifestMediaType, err)
	}
}
