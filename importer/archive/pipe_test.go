//go:build unix

package archive_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// A named pipe in place of a file is an error at once: nobody waits for its writer.
func TestNamedPipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := func(path string) string {
		t.Helper()
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	layout := newLayout(t, filepath.Join(dir, "layout"), map[string]v1.Image{"a": newImage(t, sample.Spec{Name: "a"})}, nil)
	index := pipe(filepath.Join(layout, "index.json"))
	folder := filepath.Join(dir, "dir")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"oci:" + layout: index,
		"dir:" + folder: pipe(filepath.Join(folder, "manifest.json")),
		"oci-archive:" + filepath.Join(dir, "a.tar"):    pipe(filepath.Join(dir, "a.tar")),
		"docker-archive:" + filepath.Join(dir, "d.tar"): pipe(filepath.Join(dir, "d.tar")),
	} {
		ended := make(chan error, 1)
		go func() {
			_, err := archive.Open(name, must(reference.Parse("registry.example.com/app:v1")))
			ended <- err
		}()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "not a") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s waits for a writer", name)
			if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil { // lets it go on
				f.Close()
				<-ended
			}
		}
	}
}
