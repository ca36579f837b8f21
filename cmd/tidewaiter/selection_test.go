package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

func TestPatternsChooseRepositoriesAndTags(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, tc := range []struct {
		include, exclude []string
		want             string // of the references below
	}{
		{nil, nil, "team/app:v1 team/app:v2 team/sub/web:v1 top:v1 top:pr-1 team/app" + digest},
		{[]string{"team/**"}, nil, "team/app:v1 team/app:v2 team/sub/web:v1 team/app" + digest},
		{[]string{"team/*"}, nil, "team/app:v1 team/app:v2 team/app" + digest},
		{[]string{"*"}, nil, "top:v1 top:pr-1"},
		{[]string{":v1"}, nil, "team/app:v1 team/sub/web:v1 top:v1"},
		{[]string{"team/app:v[2-9]", "top:pr-*"}, nil, "team/app:v2 top:pr-1"},
		{nil, []string{":pr-*", "team/**"}, "top:v1"},
		{[]string{"team/**:v1"}, []string{"team/app"}, "team/sub/web:v1"},
		{[]string{"none/**"}, nil, ""},
	} {
		s := bulk.Selection{Include: tc.include, Exclude: tc.exclude}
		if err := s.Validate(time.Now()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range []string{"team/app:v1", "team/app:v2", "team/sub/web:v1", "top:v1", "top:pr-1", "team/app" + digest} {
			ref, err := reference.Parse("registry.example.com/" + r)
			if err != nil {
				t.Fatal(err)
			}
			if s.Has(ref) {
				got = append(got, r)
				if !s.HasRepository(ref.Repository) {
					t.Errorf("%v, %v: %s is chosen, but not its repository", tc.include, tc.exclude, r)
				}
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%v without %v: %v, want %s", tc.include, tc.exclude, got, tc.want)
		}
	}
	if s := (bulk.Selection{Exclude: []string{"team/**", "top:pr-*"}}); s.HasRepository("team/app") || !s.HasRepository("top") {
		t.Error("tags are listed, or not, for nothing")
	}
}

func TestSelectionMisuse(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--include team//app", "empty segment"},
		{"--include **/app", "whole last segment"},
		{"--exclude team/app:", "it is empty"},
		{"--exclude :[", "tag pattern"},
		{"--newest 3", "--all-tags or --catalog"},
		{"--catalog --newest -1", "less than one"},
		{"--catalog --changed-since yesterday", "neither a date nor a duration"},
		{"--catalog --all-tags", "give one of them"},
	} {
		args := append([]string{"import", "--dry-run"}, strings.Fields(tc.args)...)
		if code, _, stderr := tidewaiter(t, append(args, "registry.example.com/")...); code != cli.ExitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, %s", tc.args, code, stderr)
		}
	}
}

// What is given in the place of an image is called by its name, and the hint is what to type
// instead.
func TestImportSaysWhatIsNoImage(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir(filepath.Join(dir, "layout"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"quay.io/"}, []string{`"quay.io/" is a registry`, "hint: tidewaiter import --dry-run --catalog quay.io/"}},
		{[]string{"quay.io"}, []string{"is a registry", "--catalog quay.io/"}},
		{[]string{"docker://localhost:5000"}, []string{"is a registry", "--catalog localhost:5000/"}},
		{[]string{"--all-tags", "localhost:5000/"}, []string{"is a registry"}},
		{[]string{"./x.tar"}, []string{`"./x.tar" is a file`, "oci-archive:./x.tar", "docker-archive:./x.tar"}},
		{[]string{"x.tar"}, []string{"is a file"}},
		{[]string{"images/x.tar.gz"}, []string{"is a file"}},
		{[]string{"./layout"}, []string{"is a folder", "oci:./layout"}},
		{[]string{"--catalog", "quay.io/acme"}, []string{"--catalog needs a registry", "--include 'acme/**' quay.io/"}},
		{[]string{"--catalog", "quay"}, []string{"registry host"}},
	} {
		code, _, stderr := tidewaiter(t, append([]string{"import", "--dry-run"}, tc.args...)...)
		if code != cli.ExitUsage || strings.Contains(stderr, "docker.io") {
			t.Errorf("%v: exit code %d, %s", tc.args, code, stderr)
		}
		for _, w := range tc.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%v: %q does not contain %q", tc.args, stderr, w)
			}
		}
	}
	for _, s := range []string{"busybox", "busybox:1.36", "team/app", "quay.io/acme/x.tar", "quay.io/acme/x.tar:v1", "docker://quay.io/acme/web:v1"} {
		if _, err := bulk.ParseImage(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// A whole registry is imported, of its repositories and tags what was chosen. Charts and signatures
// are counted and are not failures.
func TestImportACatalog(t *testing.T) {
	registry := registrytest.New(t)
	at := func(day int) v1.Image {
		image, err := sample.New(sample.Spec{Name: fmt.Sprint(day)})
		if err != nil {
			t.Fatal(err)
		}
		var when time.Time // none
		if day > 0 {
			when = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		}
		if image, err = mutate.CreatedAt(image, v1.Time{Time: when}); err != nil {
			t.Fatal(err)
		}
		return image
	}
	for ref, day := range map[string]int{"team/app:v1": 9, "team/app:v2": 5, "team/app:v3": 7, "team/app:v4": 0, "other/web:v1": 1, "other/web:pr-1": 8} {
		registry.Push(ref, at(day))
	}
	chart, err := sample.Artifact("application/vnd.cncf.helm.config.v1+json", []byte("chart"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("charts/app:v1", chart)
	registry.Push("team/app:sbom", chart)

	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "other/web:pr-1 other/web:v1 team/app:v1 team/app:v2 team/app:v3 team/app:v4"},
		{[]string{"--include", "team/**"}, "team/app:v1 team/app:v2 team/app:v3 team/app:v4"},
		{[]string{"--exclude", "team/**", "--exclude", ":pr-*"}, "other/web:v1"},
		{[]string{"--newest", "1"}, "other/web:pr-1 team/app:v1"},
		{[]string{"--newest", "2", "--include", "team/app:v*"}, "team/app:v1 team/app:v3"},
		{[]string{"--newest", "9", "--include", "team/app"}, "team/app:v1 team/app:v2 team/app:v3 team/app:v4"},
		{[]string{"--changed-since", "2026-01-07"}, "other/web:pr-1 team/app:v1 team/app:v3 team/app:v4"},
		{[]string{"--changed-since", "2026-01-07T12:00:00Z", "--newest", "1"}, "other/web:pr-1 team/app:v1"},
	} {
		args := append([]string{"import", "--dry-run", "--catalog", registry.Host + "/"}, tc.args...)
		code, stdout, stderr := tidewaiter(t, args...)
		if code != cli.ExitOK || strings.Contains(stderr, "error") {
			t.Errorf("%v: exit code %d, %s", tc.args, code, stderr)
		}
		var got []string
		for line := range strings.Lines(stdout) {
			ref, _, _ := strings.Cut(line, " ")
			got = append(got, strings.TrimPrefix(ref, registry.Host+"/"))
		}
		slices.Sort(got)
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%v: imported %v, want %s", tc.args, got, tc.want)
		}
		if tc.args == nil && !strings.Contains(stderr, "6 dry run, 2 skipped (no images); ") {
			t.Errorf("the artifacts are not counted: %s", stderr)
		}
	}
	registry.Inject("_catalog", 0, registrytest.Status(404, "UNSUPPORTED"))
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "--catalog", registry.Host); code != cli.ExitNone || !strings.Contains(stderr, "error: "+registry.Host+": not found: ") || !strings.Contains(stderr, "--all-tags") {
		t.Errorf("without a catalog: exit code %d, %s", code, stderr)
	}
}

// A registry that asks to be left alone while its tags are listed is waited for.
func TestListingWaitsForARegistryThatAsksForIt(t *testing.T) {
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	registry.Inject("/tags/list", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "2"))
	code, stdout, stderr := tidewaiter(t, "import", "--dry-run", "--all-tags", registry.Host+"/team/app")
	if code != cli.ExitOK || !strings.Contains(stdout, "team/app:v1") || !strings.Contains(stderr, "asks for a pause of 2s") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// A dry run asked for the signature tags of each image, though the list of tags has none.
func TestADryRunTrustsTheListOfTags(t *testing.T) {
	registry := registrytest.New(t)
	for i := range 30 {
		registry.Push(fmt.Sprint("team/app:", i), servertest.SampleImage(t, fmt.Sprint(i)))
	}
	// a list of 30 may be one that was cut
	registry.Push("team/app:latest", servertest.SampleImage(t, "latest"))
	code, _, stderr := tidewaiter(t, "import", "--dry-run", "--jobs", "1", "--all-tags", registry.Host+"/team/app")
	if code != cli.ExitOK {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	if n := registry.Count(`manifests/sha256-`); n != 0 {
		t.Errorf("%d signature tags were asked for", n)
	}
	// The greeting, two lists of tags, and of each image a HEAD, its manifest, its config and its
	// referrers.
	if n := len(registry.AllRequests()); n > 3+4*31 {
		t.Errorf("%d requests", n)
	}
}
