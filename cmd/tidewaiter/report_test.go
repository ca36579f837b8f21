package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// What failed is written down in the form that the next run reads, and a line at the end says what
// became of all and what it cost.
func TestWhatFailedIsTriedAgain(t *testing.T) {
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	registry.Push("team/app:v2", image)
	dir := t.TempDir()
	list, failed := filepath.Join(dir, "references.txt"), filepath.Join(dir, "failed.txt")
	text := registry.Host + "/team/app:v1\n" + registry.Host + "/team/app:later # soon\n" + registry.Host + "/team/app:v2\n"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := tidewaiter(t, "import", "--dry-run", "-f", list, "--failures", failed)
	if code != exitSome {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "2 dry run, 1 failed (1 NotFound); ") || !strings.Contains(stderr, " requests, ") {
		t.Errorf("the sum is not right: %s", stderr)
	}
	written, err := os.ReadFile(failed)
	if want := registry.Host + "/team/app:later # NotFound\n"; err != nil || string(written) != want {
		t.Errorf("%q was written, want %q, %v", written, want, err)
	}
	registry.Push("team/app:later", image)
	if code, stdout, stderr = tidewaiter(t, "import", "--dry-run", "-f", failed, "--failures", failed); code != exitOK {
		t.Errorf("the next run: exit code %d, %s%s", code, stdout, stderr)
	}
	if written, err = os.ReadFile(failed); err != nil || len(written) > 0 {
		t.Errorf("%q is left, %v", written, err)
	}

	// A repository whose tags cannot be listed is no reference.
	if code, _, stderr = tidewaiter(t, "import", "--dry-run", "--all-tags", registry.Host+"/team/none", "--failures", failed); code != exitNone {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if written, _ = os.ReadFile(failed); !strings.HasPrefix(string(written), "# all tags of "+registry.Host+"/team/none: ") {
		t.Errorf("%q was written", written)
	}
}

// Who interrupts a run is not told that the rest failed.
func TestInterruptedIsNotFailed(t *testing.T) {
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	ctx, interrupt := context.WithCancel(t.Context())
	registry.Inject("team/app/manifests/v2", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			interrupt()
			<-req.Context().Done()
		})
	})
	failed := filepath.Join(t.TempDir(), "failed.txt")
	args := []string{"import", "--dry-run", "--jobs", "1", "--failures", failed}
	for _, tag := range []string{"v1", "v2", "v3", "v4"} {
		args = append(args, registry.Host+"/team/app:"+tag)
	}
	var stdout, stderr bytes.Buffer
	if code := run(ctx, args, strings.NewReader(""), &stdout, &stderr); code != exitSome {
		t.Errorf("exit code %d", code)
	}
	if s := stderr.String(); !strings.Contains(s, "1 dry run, 3 not tried; ") || strings.Contains(s, "failed") {
		t.Errorf("it says %s", s)
	}
	written, err := os.ReadFile(failed)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"v2", "v3", "v4"} {
		if !strings.Contains(string(written), registry.Host+"/team/app:"+tag+" # interrupted\n") {
			t.Errorf("%s is not among %q", tag, written)
		}
	}
}
