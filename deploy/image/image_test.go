package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

// gofmt is a static program that every installation of Go has.
func gofmt(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "bin", "gofmt")
}

// ready is gofmt with the modules of this test in it.
func ready(t *testing.T) *program {
	t.Helper()
	p, err := openProgram(gofmt(t))
	if err != nil {
		t.Fatal(err)
	}
	p.info, _ = debug.ReadBuildInfo()
	return p
}

func written(t *testing.T, r release, programs ...*program) (layout.Path, v1.Hash) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	digest, err := r.writeLayout(dir, programs)
	if err != nil {
		t.Fatal(err)
	}
	at, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return at, digest
}

func TestImage(t *testing.T) {
	t.Parallel()
	r := release{version: "1.2.3", revision: "abc", created: time.Unix(1790000000, 0).UTC()}
	program := ready(t)
	at, digest := written(t, r, program)
	image, err := at.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	if _, again := written(t, r, ready(t)); again != digest {
		t.Errorf("the same program made %s and %s", digest, again)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/tidewaiter"}) || config.OS != "linux" || !config.Created.Equal(r.created) {
		t.Errorf("config %+v", config)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, labels := range []map[string]string{config.Config.Labels, manifest.Annotations} {
		if labels["org.opencontainers.image.version"] != "1.2.3" || labels["org.opencontainers.image.revision"] != "abc" || labels["org.opencontainers.image.created"] != "2026-09-21T14:13:20Z" {
			t.Errorf("labels %v", labels)
		}
	}

	files := map[string]*tar.Header{}
	content := map[string][]byte{}
	for r := tar.NewReader(mutate.Extract(image)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		h.Name = strings.TrimSuffix(h.Name, "/")
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h
		if !h.ModTime.Equal(time.Unix(1790000000, 0)) || h.Mode&0o6000 != 0 {
			t.Errorf("%s: time %s, mode %o", h.Name, h.ModTime, h.Mode)
		}
		if folder := filepath.Dir(h.Name); folder != "." && files[folder] == nil {
			t.Errorf("%s comes before its folder", h.Name)
		}
	}
	if data := files["var/lib/tidewaiter"]; data == nil || data.Uid != 65532 || data.Mode != 0o700 {
		t.Errorf("the data directory is %+v", data)
	}
	if want, _ := os.ReadFile(program.path); !bytes.Equal(content["usr/bin/tidewaiter"], want) || files["usr/bin/tidewaiter"].Mode != 0o755 {
		t.Error("the program is not what was given, or cannot be run")
	}
	if roots := x509.NewCertPool(); !roots.AppendCertsFromPEM(content["etc/ssl/certs/ca-certificates.crt"]) {
		t.Error("there are no certificate authorities")
	}

	doc, err := spdxjson.Read(bytes.NewReader(content["usr/share/doc/tidewaiter/sbom.spdx.json"]))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	versions := map[string]string{}
	for _, p := range doc.Packages {
		versions[p.PackageName] = p.PackageVersion
	}
	if versions["tidewaiter"] != "1.2.3" || versions["github.com/google/go-containerregistry"] == "" || versions["stdlib"] == "" || versions[roots] == "" || len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("parts %v, %d relationships", versions, len(doc.Relationships))
	}
}

func TestImageOfTwoPlatforms(t *testing.T) {
	t.Parallel()
	here := ready(t)
	other := *here
	here.platform, other.platform = v1.Platform{OS: "linux", Architecture: "amd64"}, v1.Platform{OS: "linux", Architecture: "arm64"}
	at, digest := written(t, release{version: "1.2.3"}, here, &other)
	whole, err := at.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	index, err := whole.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms %v", platforms)
	}
}

func TestRun(t *testing.T) {
	program, dir := gofmt(t), t.TempDir()
	t.Setenv("SOURCE_DATE_EPOCH", "1790000000")
	sbom := filepath.Join(dir, "sbom.json")
	if err := run([]string{"-version", "1.2.3", "-sbom", sbom, program}); err != nil {
		t.Fatal(err)
	}
	var doc struct{ CreationInfo struct{ Created string } }
	if raw, err := os.ReadFile(sbom); err != nil || json.Unmarshal(raw, &doc) != nil || doc.CreationInfo.Created != "2026-09-21T14:13:20Z" {
		t.Errorf("the bill is of %q, %v", doc.CreationInfo.Created, err)
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no program is given":     {"-layout", dir},
		"neither -layout":         {program},
		"-sbom takes one":         {"-sbom", sbom, program, program},
		"not a program for Linux": {"-layout", dir, script},
		"no such file":            {"-layout", dir, filepath.Join(dir, "none")},
		"is linked dynamically":   {"-layout", dir, "/bin/sh"},
		"flag provided but not ":  {"-unknown"},
	} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if _, err := os.Stat(script); errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused call removed the folder")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if err := run([]string{"-sbom", sbom, program}); err == nil || !strings.Contains(err.Error(), "number of seconds") {
		t.Errorf("a wrong date: %v", err)
	}
}
