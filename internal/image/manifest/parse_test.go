package manifest_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

func TestParseKinds(t *testing.T) {
	tests := []struct {
		file      string
		given     string // the registry's media type
		kind      manifest.Kind
		mediaType string
		digest    string
		size      int64
		layers    int
		children  int
	}{
		{"oci-image.json", "", manifest.KindImage, manifest.MediaTypeOCIManifest, digestOCIImage, 31457280 + 2000 + 986, 3, 0},
		{"oci-image.json", "application/vnd.oci.image.manifest.v1+json; charset=utf-8", manifest.KindImage, manifest.MediaTypeOCIManifest, digestOCIImage, 31460266, 3, 0},
		{"oci-image.json", "application/json", manifest.KindImage, manifest.MediaTypeOCIManifest, digestOCIImage, 31460266, 3, 0},
		{"docker-schema2.json", manifest.MediaTypeDockerSchema2, manifest.KindImage, manifest.MediaTypeDockerSchema2, digestDockerSchema2, 760770 + 567, 1, 0},
		{"oci-index.json", manifest.MediaTypeOCIIndex, manifest.KindIndex, manifest.MediaTypeOCIIndex, digestOCIIndex, 0, 0, 7},
		{"oci-index-untyped.json", "", manifest.KindIndex, manifest.MediaTypeOCIIndex, "sha256:c71a36e546fffa9950aa8062c7f3f24bd0e6fba01f4c4b5cd0bdbccefa562902", 0, 0, 1},
		{"docker-list.json", "", manifest.KindIndex, manifest.MediaTypeDockerList, digestDockerList, 0, 0, 1},
		{"schema1.json", "", manifest.KindSchema1, manifest.MediaTypeSchema1, digestSchema1, 107, 2, 0},
		{"schema1-signed.json", manifest.MediaTypeSchema1Signed, manifest.KindSchema1, manifest.MediaTypeSchema1Signed, digestSchema1, 107, 2, 0},
		{"cosign-sig.json", "", manifest.KindArtifact, manifest.MediaTypeOCIManifest, "sha256:2b786c4faf6dd1defd587dc6756d3358f30667343af043fea81452345479a0c6", 473, 1, 0},
		{"buildkit-attestation.json", "", manifest.KindArtifact, manifest.MediaTypeOCIManifest, "sha256:4dcdf9f477f6c58e00d671c65cfce1fa1b2a9a4e2d5886599bbc971d41fd2db7", 1191, 1, 0},
		{"sigstore-bundle.json", "", manifest.KindArtifact, manifest.MediaTypeOCIManifest, "sha256:1965863b121806e3d7961852baa79192351739cb5a22e5c6fb5b759e66b95d84", 4098, 1, 0},
		{"notation-sig.json", "", manifest.KindArtifact, manifest.MediaTypeOCIManifest, "sha256:6ff3c584c6cc579c713ce85cbde73888b6361f7ace95cb17625bee1af76e643e", 2103, 1, 0},
		{"helm-chart.json", "", manifest.KindArtifact, manifest.MediaTypeOCIManifest, "sha256:d6f28fef487b8ba6abe116f535bdb0d3fe293539b2faf68c0cc39711bc3ccd1e", 2604, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.file+" "+tt.given, func(t *testing.T) {
			m, err := manifest.Parse([]byte(read(t, tt.file)), tt.given)
			if err != nil {
				t.Fatal(err)
			}
			got := []any{m.Kind, m.MediaType, m.Digest, m.Size(), len(m.Layers), len(m.Children)}
			want := []any{tt.kind, tt.mediaType, tt.digest, tt.size, tt.layers, tt.children}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kind, media type, digest, size, layers, children (-want +got):\n%s", diff)
			}
			if err := m.Verify(tt.digest); err != nil {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

func TestParseIndexChildren(t *testing.T) {
	m, err := manifest.Parse([]byte(read(t, "oci-index.json")), "")
	if err != nil {
		t.Fatal(err)
	}
	var attestations int
	for _, d := range m.Children {
		if d.IsAttestation() {
			attestations++
		}
	}
	if attestations != 1 {
		t.Errorf("%d attestations, want 1", attestations)
	}
	var platforms []string
	for _, d := range m.ImageChildren() {
		p := ""
		if d.Platform != nil {
			p = d.Platform.String()
		}
		platforms = append(platforms, p)
	}
	// Without the attestation and the chart. An entry with an artifactType stays, because its own
	// manifest decides.
	if diff := cmp.Diff([]string{"linux/arm64/v8", "linux/amd64", "windows/amd64", "", ""}, platforms); diff != "" {
		t.Errorf("platforms of image children (-want +got):\n%s", diff)
	}
}

func TestParseSubject(t *testing.T) {
	m, err := manifest.Parse([]byte(read(t, "sigstore-bundle.json")), "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject == nil || m.Subject.Digest != digestOCIImage {
		t.Errorf("subject %+v, want %s", m.Subject, digestOCIImage)
	}
	if m.ArtifactType != "application/vnd.dev.sigstore.bundle.v0.3+json" {
		t.Errorf("artifactType %q", m.ArtifactType)
	}
}

// A manifest from two descriptors; %s is replaced.
const (
	config  = `"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + digestOCIConfig + `","size":986}`
	layers  = `"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"` + digestLayer1 + `","size":1}]`
	entries = `"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digestOCIImage + `","size":906}]`
)

func TestParseRefuses(t *testing.T) {
	image := func(fields ...string) string { return `{"schemaVersion":2,` + strings.Join(fields, ",") + `}` }
	layer := func(mediaType, digest, size string) string {
		return image(config, fmt.Sprintf(`"layers":[{"mediaType":%q,"digest":%q,"size":%s}]`, mediaType, digest, size))
	}
	const tar = "application/vnd.oci.image.layer.v1.tar"
	jws := func(protected string) string {
		return `{"schemaVersion":1,"fsLayers":[],"history":[],"signatures":[{"protected":"` + base64.RawURLEncoding.EncodeToString([]byte(protected)) + `"}]}`
	}
	tests := []struct {
		name  string
		raw   string
		given string
		want  error
	}{
		{"empty", "", "", manifest.ErrInvalid},
		{"not JSON", "<html>", "", manifest.ErrInvalid},
		{"trailing data", image(config, layers) + "{}", "", manifest.ErrInvalid},
		{"array", "[]", "", manifest.ErrInvalid},
		{"null", "null", "", manifest.ErrUnsupported},
		{"too large", strings.Repeat(" ", manifest.MaxManifestSize+1), "", manifest.ErrTooLarge},
		{"no schemaVersion", "{" + config + "," + layers + "}", "", manifest.ErrUnsupported},
		{"schemaVersion 3", `{"schemaVersion":3}`, "", manifest.ErrUnsupported},
		{"unknown mediaType", image(`"mediaType":"application/vnd.example+json"`, config, layers), "", manifest.ErrUnsupported},
		{"unknown content type", image(config, layers), "text/html", manifest.ErrUnsupported},

		{"CVE-2021-41190: layers and manifests", image(config, layers, entries), "", manifest.ErrAmbiguous},
		{"CVE-2021-41190: layers and empty manifests", image(config, layers, `"manifests":[]`), "", manifest.ErrAmbiguous},
		{"CVE-2021-41190: index with config", image(config, entries), "", manifest.ErrAmbiguous},
		{"CVE-2021-41190: mediaType is another than served", image(`"mediaType":"application/vnd.oci.image.manifest.v1+json"`, config, layers), manifest.MediaTypeOCIIndex, manifest.ErrAmbiguous},
		{"CVE-2021-41190: OCI content served as Docker", image(`"mediaType":"application/vnd.oci.image.manifest.v1+json"`, config, layers), manifest.MediaTypeDockerSchema2, manifest.ErrAmbiguous},
		{"index served as image", image(entries), manifest.MediaTypeOCIManifest, manifest.ErrAmbiguous},
		{"image that calls itself index", image(`"mediaType":"application/vnd.oci.image.index.v1+json"`, config, layers), "", manifest.ErrAmbiguous},
		{"schema 2 served as schema 1", image(config, layers), manifest.MediaTypeSchema1, manifest.ErrAmbiguous},
		{"schema 2 with fsLayers", image(config, layers, `"fsLayers":[]`), "", manifest.ErrAmbiguous},
		{"schema 1 served as schema 2", read(t, "schema1.json"), manifest.MediaTypeDockerSchema2, manifest.ErrAmbiguous},
		{"duplicate key", image(config, layers, layers), "", manifest.ErrAmbiguous},
		{"duplicate nested key", layer(tar, digestLayer1, `1,"size":2`), "", manifest.ErrAmbiguous},
		{"case variant", image(config, layers, `"Manifests":[]`), "", manifest.ErrAmbiguous},
		{"nested case variant", layer(tar, digestLayer1, `1,"Digest":"`+digestLayer2+`"`), "", manifest.ErrAmbiguous},
		{"Unicode case variant", image(config, layers, `"manifeſts":[]`), "", manifest.ErrAmbiguous},

		{"neither layers nor manifests", image(`"annotations":{}`), "", manifest.ErrInvalid},
		{"no config", image(layers), "", manifest.ErrInvalid},
		{"no layers", image(config), "", manifest.ErrInvalid},
		{"bad digest", layer(tar, "sha256:1234", "1"), "", manifest.ErrInvalid},
		{"digest with upper case", layer(tar, strings.ToUpper(digestLayer1), "1"), "", manifest.ErrInvalid},
		{"digest of unknown algorithm", layer(tar, "md5:d41d8cd98f00b204e9800998ecf8427e", "1"), "", manifest.ErrInvalid},
		{"negative size", layer(tar, digestLayer1, "-1"), "", manifest.ErrInvalid},
		{"size with fraction", layer(tar, digestLayer1, "1.5"), "", manifest.ErrInvalid},
		{"sizes overflow", layer(tar, digestLayer1, "9223372036854775807"), "", manifest.ErrInvalid},
		{"no layer media type", layer("", digestLayer1, "1"), "", manifest.ErrInvalid},
		{"one layer of two sizes", image(config, `"layers":[{"mediaType":"`+tar+`","digest":"`+digestLayer1+`","size":1},{"mediaType":"`+tar+`","digest":"`+digestLayer1+`","size":2}]`), "", manifest.ErrInvalid},
		{"bad subject", image(config, layers, `"subject":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"x","size":1}`), "", manifest.ErrInvalid},

		{"schema 1: history shorter", strings.Replace(read(t, "schema1.json"), `{
         "blobSum": "`+digestTop+`"
      },`, "", 1), "", manifest.ErrInvalid},
		{"schema 1: no layers", `{"schemaVersion":1,"fsLayers":[],"history":[]}`, "", manifest.ErrInvalid},
		{"schema 1: history is no JSON", `{"schemaVersion":1,"fsLayers":[{"blobSum":"` + digestTop + `"}],"history":[{"v1Compatibility":"x"}]}`, "", manifest.ErrInvalid},
		{"schema 1: unsigned served as signed", read(t, "schema1.json"), manifest.MediaTypeSchema1Signed, manifest.ErrAmbiguous},
		{"schema 1: signed served as unsigned", read(t, "schema1-signed.json"), manifest.MediaTypeSchema1, manifest.ErrAmbiguous},
		{"schema 1: no signatures", `{"schemaVersion":1,"fsLayers":[],"history":[],"signatures":[]}`, "", manifest.ErrInvalid},
		{"schema 1: formatLength past the end", jws(`{"formatLength":100000,"formatTail":"fQ"}`), "", manifest.ErrInvalid},
		{"schema 1: negative formatLength", jws(`{"formatLength":-1,"formatTail":"fQ"}`), "", manifest.ErrInvalid},
		{"schema 1: payload still signed", jws(`{"formatLength":59,"formatTail":"` + base64.RawURLEncoding.EncodeToString([]byte(`"signatures":[]}`)) + `"}`), "", manifest.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := manifest.Parse([]byte(tt.raw), tt.given)
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if m != nil {
				t.Errorf("a manifest with an error: %+v", m)
			}
		})
	}
}

// Everything that a runtime would run is an image, whatever its artifactType: the table of
// docs/reference/images.md.
func TestWhatRuntimesRunIsAnImage(t *testing.T) {
	const (
		oci, docker, ociConfig    = manifest.MediaTypeOCIManifest, manifest.MediaTypeDockerSchema2, "application/vnd.oci.image.config.v1+json"
		dockerConfig, empty, tarz = "application/vnd.docker.container.image.v1+json", "application/vnd.oci.empty.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
		dockerLayer, typed        = "application/vnd.docker.image.rootfs.diff.tar.gzip", `"artifactType":"application/vnd.example",`
	)
	digest := "sha256:" + strings.Repeat("1", 64)
	image := func(mediaType, more, config string, layers ...string) string {
		var all []string
		for _, l := range layers {
			all = append(all, `{"mediaType":"`+l+`","digest":"`+digest+`","size":1}`)
		}
		return `{"schemaVersion":2,` + more + `"mediaType":"` + mediaType + `","config":{"mediaType":"` + config + `","digest":"` + digest + `","size":2},"layers":[` + strings.Join(all, ",") + `]}`
	}
	index := func(more, entry string) string {
		return `{"schemaVersion":2,` + more + `"mediaType":"` + manifest.MediaTypeOCIIndex + `","manifests":[{` + entry + `"mediaType":"` + oci + `","digest":"` + digest + `","size":1}]}`
	}
	const amd64, unknown = `"platform":{"os":"linux","architecture":"amd64"},`, `"platform":{"os":"unknown","architecture":"unknown"},`
	for name, c := range map[string]struct {
		raw      string
		want     manifest.Kind
		children int
	}{
		"an image":                                  {image(oci, "", ociConfig, tarz), manifest.KindImage, 0},
		"with an artifactType":                      {image(oci, typed, ociConfig, tarz), manifest.KindImage, 0},
		"with an artifactType, and no layers":       {image(oci, typed, ociConfig), manifest.KindImage, 0},
		"with an artifactType, in Docker's types":   {image(docker, typed, dockerConfig, dockerLayer), manifest.KindImage, 0},
		"Docker's config in OCI's manifest":         {image(oci, typed, dockerConfig, tarz), manifest.KindImage, 0},
		"another config in Docker's manifest":       {image(docker, "", "application/vnd.example", dockerLayer), manifest.KindImage, 0},
		"layers of unknown types":                   {image(oci, "", ociConfig, "application/wasm"), manifest.KindImage, 0},
		"a document beside a layer":                 {image(oci, "", ociConfig, "application/vnd.in-toto+json", tarz), manifest.KindImage, 0},
		"layers of erofs":                           {image(oci, "", ociConfig, "application/vnd.erofs.layer.v1"), manifest.KindImage, 0},
		"a signature of cosign":                     {image(oci, "", ociConfig, "application/vnd.dev.cosign.simplesigning.v1+json"), manifest.KindArtifact, 0},
		"an attestation of BuildKit":                {image(oci, "", ociConfig, "application/vnd.in-toto+json"), manifest.KindArtifact, 0},
		"an SBOM of cosign":                         {image(oci, "", ociConfig, "text/spdx"), manifest.KindArtifact, 0},
		"an empty config":                           {image(oci, typed, empty, tarz), manifest.KindArtifact, 0},
		"another config in OCI's manifest":          {image(oci, "", "application/vnd.example", tarz), manifest.KindArtifact, 0},
		"another config, and a chart":               {image(docker, "", "application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip"), manifest.KindArtifact, 0},
		"an index":                                  {index("", amd64), manifest.KindIndex, 1},
		"an index with an artifactType":             {index(typed, amd64), manifest.KindIndex, 1},
		"an entry with an artifactType":             {index("", typed+amd64), manifest.KindIndex, 1},
		"an entry with an attestation's annotation": {index("", `"annotations":{"vnd.docker.reference.type":"attestation-manifest"},`+amd64), manifest.KindIndex, 1},
		"an entry without a platform":               {index(typed, typed), manifest.KindIndex, 1},
		"an entry of an unknown platform":           {index("", unknown), manifest.KindIndex, 0},
		"an artifactType, and nothing that runs":    {index(typed, unknown), manifest.KindArtifact, 0},
	} {
		m, err := manifest.Parse([]byte(c.raw), "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.Kind != c.want || len(m.ImageChildren()) != c.children {
			t.Errorf("%s: %s with %d images, want %s with %d", name, m.Kind, len(m.ImageChildren()), c.want, c.children)
		}
	}
}

// go-containerregistry names an image's config as the artifactType of its index entry.
func TestParseImageWithArtifactType(t *testing.T) {
	const typed = `"artifactType":"application/vnd.oci.image.config.v1+json"`
	entry := `"manifests":[{` + typed + `,"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digestOCIImage + `","size":906}]`
	index, err := manifest.Parse([]byte(`{"schemaVersion":2,`+entry+`}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(index.ImageChildren()) != 1 {
		t.Errorf("image children %v, want one", index.ImageChildren())
	}
	image, err := manifest.Parse([]byte(`{"schemaVersion":2,`+typed+`,`+config+`,`+layers+`}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if image.Kind != manifest.KindImage {
		t.Errorf("kind %s, want %s", image.Kind, manifest.KindImage)
	}
}

// Keys of annotations may be any text, because readers cannot mistake them for fields.
func TestParseAllowsAnyAnnotation(t *testing.T) {
	raw := `{"schemaVersion":2,` + config + `,` + layers + `,"annotations":{"Digest":"x","layers":"y","LAYERS":"z"}}`
	m, err := manifest.Parse([]byte(raw), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"Digest": "x", "layers": "y", "LAYERS": "z"}, m.Annotations); diff != "" {
		t.Error(diff)
	}
}

func TestVerify(t *testing.T) {
	m, err := manifest.Parse([]byte(read(t, "docker-schema2.json")), "")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, digest string
		want         error
	}{
		{"sha256", digestDockerSchema2, nil},
		// By sha512sum.
		{"sha512", sha512DockerSchema2, nil},
		{"other", digestOCIImage, manifest.ErrDigestMismatch},
		{"no digest", "latest", manifest.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := m.Verify(tt.digest); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	tests := []struct {
		name, raw string
		want      error
	}{
		{"OCI", read(t, "oci-config.json"), nil},
		{"Docker", read(t, "docker-config.json"), nil},
		{"minimal", "{}", nil},
		{"command as a string", `{"config":{"Entrypoint":"/sh","Cmd":"x"}}`, nil},
		{"empty", "", manifest.ErrInvalid},
		{"null", "null", manifest.ErrInvalid},
		{"array", "[]", manifest.ErrInvalid},
		{"trailing data", "{} {}", manifest.ErrInvalid},
		{"labels of a wrong type", `{"config":{"Labels":[]}}`, manifest.ErrInvalid},
		{"too large", strings.Repeat(" ", manifest.MaxConfigSize+1), manifest.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := manifest.ParseConfig([]byte(tt.raw))
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if (c == nil) != (err != nil) {
				t.Errorf("config %v with error %v", c, err)
			}
		})
	}
	c, err := manifest.ParseConfig([]byte(read(t, "oci-config.json")))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Platform.String(); got != "linux/arm64/v8" {
		t.Errorf("platform %q", got)
	}
	if len(c.RootFS.DiffIDs) != 3 || len(c.History) != 2 || !c.History[1].EmptyLayer {
		t.Errorf("rootfs %+v, history %+v", c.RootFS, c.History)
	}
}

// Before, an invalid time made the architecture and the labels unknown.
func TestConfigWithTimesThatCannotBeRead(t *testing.T) {
	for _, created := range []string{`"yesterday"`, `5`, `{}`, `""`, `"0000-01-01T00:00:00+14:00"`, `"9999-12-31T23:59:59-14:00"`} {
		c, err := manifest.ParseConfig([]byte(`{"os":"linux","architecture":"arm64","created":` + created + `,"config":{"Labels":{"a":"b"}},"rootfs":{"diff_ids":["x"]}}`))
		if err != nil || c.Created != nil || c.Architecture != "arm64" || c.OS != "linux" || c.Config == nil || c.Config.Labels["a"] != "b" || len(c.RootFS.DiffIDs) != 1 {
			t.Errorf("%s: %+v, %v", created, c, err)
		}
	}
	c, err := manifest.ParseConfig([]byte(`{"architecture":"arm64","created":"2026-01-02T03:04:05Z","history":[{"created":"yesterday","created_by":"a"},{"empty_layer":true}]}`))
	if err != nil || c.Created == nil || len(c.History) != 2 || c.History[0].CreatedBy != "a" || !c.History[1].EmptyLayer {
		t.Errorf("a time of the history: %+v, %v", c, err)
	}
	if _, err := manifest.ParseConfig([]byte(`{"created":"yesterday","architecture":7}`)); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("something else cannot be read either: %v", err)
	}
}

// OCI artifact manifests, which were in release candidates of the image specification, are
// artifacts.
func TestOCIArtifactManifest(t *testing.T) {
	digest := manifest.Digest(nil)
	raw := `{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","artifactType":"application/vnd.example.sbom","blobs":[{"mediaType":"text/plain","digest":"` + digest + `","size":0}],"subject":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digest + `","size":7}}`
	for _, given := range []string{"", "application/json", manifest.MediaTypeOCIArtifact} {
		m, err := manifest.Parse([]byte(raw), given)
		if err != nil || m.Kind != manifest.KindArtifact || m.MediaType != manifest.MediaTypeOCIArtifact || m.Digest != manifest.Digest([]byte(raw)) || len(m.Layers) != 1 || m.Subject == nil || m.TypeOfArtifact() != "application/vnd.example.sbom" {
			t.Errorf("%q: %+v, %v", given, m, err)
		}
	}
	for name, bad := range map[string]string{
		"served as an image": raw,
		"with layers":        strings.Replace(raw, `"blobs"`, `"layers":[],"blobs"`, 1),
		"with manifests":     strings.Replace(raw, `"blobs"`, `"manifests":[],"blobs"`, 1),
	} {
		given := ""
		if name == "served as an image" {
			given = manifest.MediaTypeOCIManifest
		}
		if _, err := manifest.Parse([]byte(bad), given); !errors.Is(err, manifest.ErrAmbiguous) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := manifest.Parse([]byte(strings.Replace(raw, digest, "x", 1)), ""); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("a blob without a digest: %v", err)
	}
}
