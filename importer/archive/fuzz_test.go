package archive_test

import (
	"archive/tar"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// FuzzFiles says that whatever stands in the files that lead to images, each image that is found
// has a reference that reads back, is asked for by that without a panic, and a file without images
// is an error.
func FuzzFiles(f *testing.F) {
	digest := "sha256:2bdcd6f6c8a7ac37ae9d5e1ef3ad25fd1a3ae0dcfd4d3b8e0ea4d1d2b3bd6c45"
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"`+digest+`","annotations":{"org.opencontainers.image.ref.name":"v1"}}]}`),
		[]byte(`[{"Config":"config.json","RepoTags":["team/app:1","app:2"],"Layers":["layer.tar"]}]`), []byte(`{"rootfs":{"diff_ids":["`+digest+`"]}}`))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:../../x"}]}`), []byte(`[{"Config":"../config.json","Layers":["/etc/passwd"]}]`), []byte(`{}`))
	f.Add([]byte(`{"manifests":[{"digest":"`+digest+`","annotations":{"io.containerd.image.name":"docker.io/library/a:\u009b"}}]}`), []byte(`[{"Config":"layer.tar","RepoTags":[""]}]`), []byte(`null`))
	f.Add([]byte(`{`), []byte(`{"schemaVersion":2}`), []byte(``))
	f.Fuzz(func(t *testing.T, index, manifest, config []byte) {
		dir := t.TempDir()
		files := []struct {
			name    string
			content []byte
		}{{"index.json", index}, {"manifest.json", manifest}, {"config.json", config}, {"layer.tar", []byte("a layer")}}
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(dir, file.name), file.content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o600, Size: int64(len(file.content))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(file.content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "packed")
		if err := os.WriteFile(file, packed.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"oci:" + dir, "dir:" + dir, "oci-archive:" + file, "docker-archive:" + file} {
			source, err := archive.Open(name, reference.Reference{})
			if err != nil {
				continue
			}
			if len(source.Images()) == 0 {
				t.Errorf("%s has no images, and no error", name)
			}
			for _, image := range source.Images() {
				ref := image.Reference
				if back, err := reference.Parse(ref.String()); err != nil || back.Pulled() != ref.Pulled() {
					t.Errorf("%s: the reference %q reads back as %q, %v", name, ref, back, err)
				}
				id := ref.Digest
				if id == "" {
					id = ref.Tag
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v2/"+ref.Repository+"/manifests/"+id, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				if answer, err := source.RoundTrip(request); err == nil {
					answer.Body.Close()
				}
			}
			source.Close()
		}
	})
}
