package imageapi_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
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
		if got := table.Rows[i].Cells[4]; got != want {
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
	if diff := cmp.Diff([]column{{"Name", 0}, {"Image Reference", 0}, {"Size", 1}, {"Layers", 1}, {"Platform", 1}, {"Signatures", 1}, {"Media Type", 1}, {"Created", 1}, {"Age", 1}, {"Verified", 1}, {"Signer", 1}, {"Attested", 1}, {"Pods", 1}}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	want := [][]any{
		{signed.Name, signed.DockerImageReference, "31.5MB", int64(3), "linux/arm64/v8", int64(1), manifest.MediaTypeOCIManifest, "2026-01-02T03:04:05Z", "2d2h", "Unknown", "<none>", "<none>", "<none>"},
		{index.Name, index.DockerImageReference, "<none>", int64(0), "linux/arm64/v8,linux/amd64,windows/amd64:10.0.17763.1234,<none>", int64(0), manifest.MediaTypeOCIIndex, "<none>", "2d2h", "Unsigned", "<none>", "<none>", "<none>"},
		{"plain", "registry.example.com/acme/plain:1", "<none>", int64(0), "linux/arm/v7,linux/arm/v7,linux/arm/v7,linux/arm/v7,+2", int64(0), "<none>", "<none>", "2d2h", "Unsigned", "<none>", "<none>", "<none>"},
		{"plain", "registry.example.com/acme/plain:1", "<none>", int64(0), "<none>", int64(0), "<none>", "<none>", "2d2h", "Unsigned", "<none>", "<none>", "<none>"},
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
		if got := table.Rows[0].Cells[2]; got != want {
			t.Errorf("%s bytes: %v, want %s", size, got, want)
		}
	}
}
