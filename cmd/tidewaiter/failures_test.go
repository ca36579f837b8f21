package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// A run that is killed leaves the file that it reads its references from, though it is to write
// what fails into it.
func TestFailuresReplaceTheFileAtTheEnd(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", servertest.SampleImage(t, ""))
	dir := t.TempDir()
	list, link := filepath.Join(dir, "list.txt"), filepath.Join(dir, "link.txt")
	text := registry.Host + "/team/app:v1\n" + registry.Host + "/team/app:v2 # NotFound\n"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(list, link); err != nil {
		t.Fatal(err)
	}
	registry.Inject("HEAD .*/manifests/v1", 1, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if have, err := os.ReadFile(list); err != nil || string(have) != text {
				t.Errorf("during the run it has %q, %v", have, err)
			}
			next.ServeHTTP(w, req)
		})
	})
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "-f", link, "--failures", link); code != cli.ExitSome {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if have, err := os.ReadFile(list); err != nil || string(have) != registry.Host+"/team/app:v2 # NotFound\n" {
		t.Errorf("after the run it has %q, %v", have, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("there are %v, %v", left, err)
	}
	// What is not a file is written as it is.
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "-f", list, "--failures", os.DevNull); code != cli.ExitNone {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("%s was replaced, %v", os.DevNull, err)
	}
	// A run that does not begin leaves the file.
	if code, _, stderr := tidewaiter(t, "import", "--server", "https://127.0.0.1:1", "--from-pods", "-f", list, "--failures", list); code == cli.ExitOK {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if have, err := os.ReadFile(list); err != nil || string(have) != registry.Host+"/team/app:v2 # NotFound\n" {
		t.Errorf("without a server it has %q, %v", have, err)
	}
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "-f", list, "--failures", filepath.Join(dir, "none", "failed.txt")); code == cli.ExitOK || !strings.Contains(stderr, "--failures: ") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// Whatever was not tried because of an interruption is written down: lists, tags whose dates were
// read, images of files.
func TestInterruptedListsAreWrittenDown(t *testing.T) {
	registry := registrytest.New(t)
	for _, name := range []string{"team/app:v1", "team/app:v2", "team/web:v1"} {
		registry.Push(name, servertest.SampleImage(t, name))
	}
	dir := filepath.Join(t.TempDir(), "build")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"v1", "v2"} {
		if err := path.AppendImage(servertest.SampleImage(t, n), layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": n})); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		at   string // which request interrupts; none is before the run
		args []string
		want []string
	}{
		{"a catalog", "_catalog", []string{"--catalog", registry.Host}, []string{"HOST/** # interrupted"}},
		{"tags", "team/app/tags/list", []string{"--all-tags", registry.Host + "/team/app", registry.Host + "/team/web"}, []string{"HOST/team/app:* # interrupted", "HOST/team/web:* # interrupted"}},
		{"dates", "team/app/manifests/v2", []string{"--all-tags", "--newest", "1", registry.Host + "/team/app"}, []string{"HOST/team/app:* # interrupted"}},
		{"files", "", []string{"oci:" + dir, registry.Host + "/team/app:v1"}, []string{
			"# localhost/build:v1 of oci:" + dir + ": interrupted", "# localhost/build:v2 of oci:" + dir + ": interrupted", "HOST/team/app:v1 # interrupted",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			if tc.at == "" {
				interrupt()
			}
			registry.Heal()
			registry.Inject(tc.at, 0, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					interrupt()
					<-req.Context().Done()
				})
			})
			failed := filepath.Join(t.TempDir(), "failed.txt")
			var stdout, stderr servertest.LogBuffer
			code := run(ctx, append([]string{"import", "--dry-run", "--jobs", "1", "--failures", failed}, tc.args...), strings.NewReader(""), &stdout, &stderr)
			if code != cli.ExitNone || strings.Contains(stderr.String(), "failed") {
				t.Errorf("exit code %d, %s", code, &stderr)
			}
			written, err := os.ReadFile(failed)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(written), registry.Host, "HOST")), "\n")
			if slices.Sort(got); !slices.Equal(got, tc.want) {
				t.Errorf("%q is written, want %q", got, tc.want)
			}
		})
	}
}
