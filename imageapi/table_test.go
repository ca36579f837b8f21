package imageapi_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// Images of one platform are told apart by the version of Windows that they need.
func TestTableTellsVersionsOfWindowsApart(t *testing.T) {
	t.Parallel()
	s := newStorages(t, nil)
	index := bareImage(t, "oci-index.json", "")
	children := `{"schemaVersion":2,"mediaType":"` + manifest.MediaTypeOCIIndex + `","manifests":[`
	for i, version := range []string{`,"os.version":"10.0.17763.6532"`, `,"os.version":"10.0.20348.2849"`, ``} {
		if i > 0 {
			children += ","
		}
		children += `{"mediaType":"` + manifest.MediaTypeOCIManifest + `","digest":"sha256:` + strings.Repeat(strconv.Itoa(i), 64) + `","size":1,"platform":{"os":"windows","architecture":"amd64"` + version + `}}`
	}
	index.DockerImageManifest = children + "]}"
	if err := manifest.Derive(index); err != nil {
		t.Fatal(err)
	}
	image := plainImage()
	image.Annotations = map[string]string{annotation.Platform: "windows/amd64", annotation.OSVersion: "10.0.17763.6532"}
	table, err := s.images.ConvertToTable(requestContext(), &imagev1.ImageList{Items: []imagev1.Image{*index, *image}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"windows/amd64:10.0.17763.6532,windows/amd64:10.0.20348.2849,windows/amd64", "windows/amd64:10.0.17763.6532"} {
		if got := table.Rows[i].Cells[10]; got != want {
			t.Errorf("row %d has %v, want %s", i, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	s := newStorages(t, nil)
	derived := func(image *imagev1.Image) *imagev1.Image {
		if err := manifest.Derive(image); err != nil {
			t.Fatal(err)
		}
		// Between two units of the human-readable age, so that the test's own time does not matter.
		image.CreationTimestamp = metav1.NewTime(time.Now().Add(-50 * time.Hour))
		return image
	}
	signed := derived(ociImage(t))
	signed.Signatures = []imagev1.ImageSignature{signature(signed.Name, "a", "x", "y")}
	many := derived(plainImage())
	for range 6 {
		many.DockerImageManifests = append(many.DockerImageManifests, imagev1.ImageManifest{OS: "linux", Architecture: "arm", Variant: "v7"})
	}
	broken := derived(plainImage())
	broken.DockerImageMetadata.Raw = []byte(`{"Size":"x"}`)
	index := derived(bareImage(t, "oci-index.json", ""))

	list := &imagev1.ImageList{
		ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"},
		Items:    []imagev1.Image{*signed, *index, *many, *broken},
	}
	table, err := s.images.ConvertToTable(requestContext(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "7" || table.Continue != "more" {
		t.Errorf("list metadata %+v", table.ListMeta)
	}
	type column struct {
		Name     string
		Priority int32
	}
	var columns []column
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, column{c.Name, c.Priority})
	}
	if diff := cmp.Diff([]column{{"Image", 0}, {"Repository", 0}, {"Tags", 0}, {"Verdict", 0}, {"Pods", 0}, {"Age", 0},
		{"Outdated", 1}, {"Gone", 1}, {"Size", 1}, {"Layers", 1}, {"Platform", 1}, {"Signatures", 1}, {"Signer", 1}, {"Attested", 1}, {"Created", 1}, {"Base", 1}, {"Verdicts", 1}, {"Name", 1}}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	want := [][]any{
		{signed.Name[7:19], "registry.example.com/acme/web", "<none>", "NoPolicy", "Unknown", "2d2h",
			"<none>", "<none>", "31.5MB", int64(3), "linux/arm64/v8", int64(1), "<none>", "<none>", "2026-01-02T03:04:05Z", "<none>", "NoPolicy@registry.example.com/acme/web", signed.Name},
		{index.Name[7:19], "registry.example.com/acme/web", "<none>", "NoPolicy", "Unknown", "2d2h",
			"<none>", "<none>", "<none>", int64(0), "linux/arm64/v8,linux/amd64,windows/amd64:10.0.17763.1234,<none>,+1", int64(0), "<none>", "<none>", "<none>", "<none>", "NoPolicy@registry.example.com/acme/web", index.Name},
		{"plain", "registry.example.com/acme/plain", "<none>", "NoPolicy", "Unknown", "2d2h",
			"<none>", "<none>", "<none>", int64(0), "linux/arm/v7,linux/arm/v7,linux/arm/v7,linux/arm/v7,+2", int64(0), "<none>", "<none>", "<none>", "<none>", "NoPolicy@registry.example.com/acme/plain", "plain"},
		{"plain", "registry.example.com/acme/plain", "<none>", "NoPolicy", "Unknown", "2d2h",
			"<none>", "<none>", "<none>", int64(0), "<none>", int64(0), "<none>", "<none>", "<none>", "<none>", "NoPolicy@registry.example.com/acme/plain", "plain"},
	}
	for i, row := range table.Rows {
		if diff := cmp.Diff(want[i], row.Cells); diff != "" {
			t.Errorf("row %d (-want +got):\n%s", i, diff)
		}
	}

	single, err := s.images.ConvertToTable(requestContext(), signed, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(single.Rows) != 1 || len(single.ColumnDefinitions) != 0 {
		t.Errorf("one image without headers: %+v", single)
	}
}

// The table without -o wide says what people ask for first, in lines of at most 120 bytes whatever
// anybody has written, and says of what it does not know that it does not, and why.
func TestTableFitsAPage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long-", 30)
	image := func(name, reference string, annotations map[string]string) *imagev1.Image {
		return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, CreationTimestamp: metav1.NewTime(time.Now().Add(-50 * time.Hour))}, DockerImageReference: reference}
	}
	digest, sha512 := "sha256:"+strings.Repeat("9f", 32), "sha512:"+strings.Repeat("9f", 64)
	unjudged := image(digest, "r.example.com/a", nil)
	unjudged.Signatures = []imagev1.ImageSignature{{Conditions: []imagev1.SignatureCondition{{Type: "Trusted", Status: "Unknown", Reason: "NoMatchingPolicy"}}}}
	tests := []struct {
		image *imagev1.Image
		pods  imageregistry.Usage
		want  string // the cells, without those of -o wide and AGE
	}{
		{image(digest, "r.example.com/team/app@"+digest, map[string]string{annotation.References: `["r.example.com/team/app:v1","r.example.com/team/app:latest"]`}), &pods{synced: true, using: map[string]int{digest: 3}},
			"9f9f9f9f9f9f r.example.com/team/app v1,latest NoPolicy 3"},
		{image(sha512, "r.example.com/"+long+"x", map[string]string{annotation.References: `["r.example.com/` + long + `x:` + long[:100] + `","other.example.com/a:v2","other.example.com/a:v3"]`}), &pods{synced: true},
			"sha512:9f9f9f9f …ong-long-long-long-long-long-x,+1 long-long-long-l…,+2 NoPolicy 0"},
		{image("name-that-is-no-digest", "no reference "+long, nil), &pods{}, "name-that-is… no reference… <none> NoPolicy Unknown"},
		{image(digest, "", map[string]string{annotation.References: `["r.example.com/team/app:a","r.example.com/team/app:b"]`, annotation.MoreReferences: "true"}), nil, "9f9f9f9f9f9f r.example.com/team/app a,b+ NoPolicy Unknown"},
		{unjudged, nil, "9f9f9f9f9f9f r.example.com/a <none> NoPolicy Unknown"},
		{image(digest, "r.example.com/a", map[string]string{annotation.Repositories: `{"r.example.com/a":{"unread":"the registry is away"}}`}), nil, "9f9f9f9f9f9f r.example.com/a <none> Unknown:Unread Unknown"},
		{image(digest, "r.example.com/a", map[string]string{annotation.Verdicts: `{"r.example.com/a":{"verified":"Unknown","reason":"SignaturesLeftOut"}}`}), nil, "9f9f9f9f9f9f r.example.com/a <none> Unknown:LeftOut Unknown"},
		{image(digest, "r.example.com/a", map[string]string{annotation.Verdicts: `{"r.example.com/a":{"verified":"Unknown","reason":"` + long + `"}}`}), nil, "9f9f9f9f9f9f r.example.com/a <none> Unknown:long-lon… Unknown"},
		{image(digest, "r.example.com/a", map[string]string{annotation.Verdicts: `{"r.example.com/a":{"verified":"False"}}`}), nil, "9f9f9f9f9f9f r.example.com/a <none> False Unknown"},
	}
	for _, tt := range tests {
		s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: tt.pods}})
		table, err := s.images.ConvertToTable(requestContext(), tt.image, nil)
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		for i, c := range table.ColumnDefinitions {
			if c.Priority == 0 {
				shown = append(shown, table.Rows[0].Cells[i].(string))
			}
		}
		if got := strings.Join(shown, " "); got != tt.want+" 2d2h" {
			t.Errorf("%q, want %q", got, tt.want)
		}
		if line := strings.Join(shown, "   "); len(line) > 120 {
			t.Errorf("%d bytes: %s", len(line), line)
		}
	}
}

func TestHumanSize(t *testing.T) {
	s := newStorages(t, nil)
	for size, want := range map[string]string{
		"0": "<none>", "1": "1B", "999": "999B", "1000": "1kB", "1234": "1.23kB", "999499": "999kB", "999500": "1MB",
		"31460266": "31.5MB", "1500000000": "1.5GB", "9223372036854775807": "9.22EB",
	} {
		image := plainImage()
		image.DockerImageMetadata.Raw = []byte(`{"Size":` + size + `}`)
		table, err := s.images.ConvertToTable(requestContext(), image, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Rows[0].Cells[8]; got != want {
			t.Errorf("%s bytes: %v, want %s", size, got, want)
		}
	}
}
