//go:build containers_image_openpgp

package differential

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	godigest "github.com/opencontainers/go-digest"
	dockerarchive "go.podman.io/image/v5/docker/archive"

	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// An archive of docker save before version 25 has no manifest. The one that is made is the one that
// skopeo and podman make, so that the image has the same digest here and there.
func TestManifestsOfDockerArchives(t *testing.T) {
	t.Parallel()
	layers := [][]byte{[]byte("first"), []byte("second"), {}}
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[`
	manifest := `[{"Config":"c.json","RepoTags":["quay.io/acme/web:v1"],"Layers":[`
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for i, layer := range layers {
		name := fmt.Sprintf("%d/layer.tar", i)
		add(name, layer)
		if i > 0 {
			config, manifest = config+",", manifest+","
		}
		config += fmt.Sprintf("%q", godigest.FromBytes(layer))
		manifest += fmt.Sprintf("%q", name)
	}
	add("c.json", []byte(config+"]}}"))
	add("manifest.json", []byte(manifest+"]}]"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}

	ref, err := dockerarchive.ParseReference(file)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ref.NewImageSource(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	want, _, err := theirs.GetManifest(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}

	ours, err := archive.Open("docker-archive:"+file, reference.Reference{})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://quay.io/v2/acme/web/manifests/v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := ours.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the manifest is %s, %v\ntheirs is %s", got, err, want)
	}
}
