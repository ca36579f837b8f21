package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// Images are imported from files by the names that skopeo has for them, and no registry is asked.
func TestImportFiles(t *testing.T) {
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "build")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	chart, err := sample.Artifact("application/vnd.cncf.helm.config.v1+json", []byte("chart"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"v1", "pr-2"} {
		if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": n})); err != nil {
			t.Fatal(err)
		}
	}
	if err := path.AppendImage(chart, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "chart"})); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, name.MustParseReference("quay.io/acme/web:v1"), image); err != nil {
		t.Fatal(err)
	}

	data := filepath.Join(t.TempDir(), "data")
	for _, tc := range []struct {
		args           []string
		code           int
		stdout, stderr []string
	}{
		{[]string{"oci:" + dir + ":v1", "--store-as", "registry.example.com/team/app:v7"}, cli.ExitOK, []string{"registry.example.com/team/app:v7 " + digest.String() + " (imported)"}, nil},
		{[]string{"oci:" + dir, "--exclude", ":pr-*"}, cli.ExitOK, []string{"localhost/build:v1 " + digest.String()}, []string{"skipped: localhost/build:chart", "1 skipped (no images)"}},
		{[]string{"docker-archive:" + saved}, cli.ExitOK, []string{"quay.io/acme/web:v1 sha256:"}, []string{"warning: quay.io/acme/web:v1: the archive has no manifest, so one was built"}},
		{[]string{"docker-daemon:app:v1"}, cli.ExitUsage, nil, []string{"docker-daemon: is not supported", "hint: docker save -o image.tar NAME"}},
		{[]string{"containers-storage:app"}, cli.ExitUsage, nil, []string{"containers-storage: is not supported", "hint: podman save"}},
		{[]string{"oci:" + dir, "--store-as", "registry.example.com/app"}, cli.ExitUsage, nil, []string{"but only one name"}},
		{[]string{"quay.io/acme/web:v1", "--store-as", "registry.example.com/app"}, cli.ExitUsage, nil, []string{"--store-as names one image that comes from a file"}},
		{[]string{"--all-tags", "oci:" + dir}, cli.ExitUsage, nil, []string{"omit --all-tags and --catalog"}},
		{[]string{"dir:" + dir}, cli.ExitUsage, nil, []string{"it has no manifest.json; use oci: for a layout"}},
	} {
		code, stdout, stderr := tidewaiter(t, append([]string{"import", "--data-dir", data, "--create-data-dir"}, tc.args...)...)
		if code != tc.code {
			t.Errorf("%v: exit code %d, %s%s", tc.args, code, stdout, stderr)
		}
		for _, w := range tc.stdout {
			if !strings.Contains(stdout, w) {
				t.Errorf("%v: standard output %q does not contain %q", tc.args, stdout, w)
			}
		}
		for _, w := range tc.stderr {
			if !strings.Contains(stderr, w) {
				t.Errorf("%v: standard error %q does not contain %q", tc.args, stderr, w)
			}
		}
	}

	// What failed in a file is not a reference that -f could try again.
	failed := filepath.Join(t.TempDir(), "failed.txt")
	hash := strings.TrimPrefix(digest.String(), "sha256:")
	if err := os.Remove(filepath.Join(dir, "blobs/sha256", hash)); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "--failures", failed, "oci:"+dir+":v1"); code != cli.ExitNone || !strings.Contains(stderr, "localhost/build:v1: not found") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if written, err := os.ReadFile(failed); err != nil || string(written) != "# localhost/build:v1 of oci:"+dir+":v1: NotFound\n" {
		t.Errorf("%q is written, %v", written, err)
	}
}
