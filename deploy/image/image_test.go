package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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

// A chart is the same bytes each time, has the release's version and files of the release's time,
// and can be pushed and read back with the media types that helm wants; an image as well.
func TestChart(t *testing.T) {
	t.Parallel()
	r := release{version: "1.2.3", created: time.Unix(1790000000, 0).UTC()}
	dir := filepath.Join(t.TempDir(), "chart")
	digest, err := r.writeChart(dir, "../chart")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.writeChart(filepath.Join(t.TempDir(), "chart"), "../chart"); err != nil || again != digest {
		t.Errorf("the same chart made %s and %s, %v", digest, again, err)
	}
	if _, err := r.writeChart(dir+"-none", t.TempDir()); err == nil {
		t.Error("a folder without a chart is a chart")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/charts/tidewaiter"
	var out strings.Builder
	if err := r.push(t.Context(), dir, repository, &out); err != nil || out.String() != repository+"@"+digest.String()+"\n" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	tag, err := name.NewTag(repository + ":1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Image(tag)
	if err != nil {
		t.Fatal(err)
	}
	m, err := pushed.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := pushed.RawConfigFile()
	if err != nil || m.Config.MediaType != chartConfig || len(m.Layers) != 1 || m.Layers[0].MediaType != chartContent {
		t.Fatalf("%+v, %v", m, err)
	}
	var about struct{ Name, Version, AppVersion string }
	if err := json.Unmarshal(config, &about); err != nil || about.Name != "tidewaiter" || about.Version != "1.2.3" || about.AppVersion != "1.2.3" {
		t.Errorf("%+v, %v", about, err)
	}
	layers, err := pushed.Layers()
	if err != nil {
		t.Fatal(err)
	}
	packed, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	zip, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if !h.ModTime.Equal(time.Unix(1790000000, 0)) {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
	}
	for _, want := range []string{"tidewaiter/Chart.yaml", "tidewaiter/templates/statefulset.yaml", "tidewaiter/dashboards/overview.json", "tidewaiter/alerts.yaml"} {
		if !slices.Contains(names, want) {
			t.Errorf("%v has no %s", names, want)
		}
	}

	at := filepath.Join(t.TempDir(), "image")
	here := ready(t)
	other := *here
	here.platform, other.platform = v1.Platform{OS: "linux", Architecture: "amd64"}, v1.Platform{OS: "linux", Architecture: "arm64"}
	if _, err := r.writeLayout(at, []*program{here, &other}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := r.push(t.Context(), at, repository, &out); err != nil || strings.Count(out.String(), "\n") != 3 || strings.Count(out.String(), " linux/arm64\n") != 1 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestProvenance(t *testing.T) {
	t.Parallel()
	b, err := (&release{version: "1.2.3", revision: "abc"}).provenance("https://example.com/builder")
	if err != nil {
		t.Fatal(err)
	}
	var p provenance
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	if d := p.BuildDefinition.ResolvedDependencies; d[0].Digest["gitCommit"] != "abc" || !strings.HasPrefix(d[1].URI, "pkg:golang/std@1.") || p.RunDetails.Builder.ID != "https://example.com/builder" || p.BuildDefinition.ExternalParameters["version"] != "1.2.3" {
		t.Errorf("%s", b)
	}
}
