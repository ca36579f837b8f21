package server

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/config"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/trustedroot"
)

func TestTrustedRootsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"- mirror: https://a.example\n  rootFile: config.yaml":                                   "file is required",
		"- file: a.json\n- file: a.json":                                                         "another entry",
		"- file: a.json\n  mirror: https://a.example":                                            "belong together",
		"- file: a.json\n  rootFile: config.yaml":                                                "belong together",
		"- file: a.json\n  mirror: https://user:secret@a.example\n  rootFile: config.yaml":       "without a password",
		"- file: a.json\n  mirror: file:///etc\n  rootFile: config.yaml":                         "http or https",
		"- file: a.json\n  mirror: https://a.example\n  rootFile: absent.json":                   "rootFile: ",
		"- file: a.json\n  mirrors: https://a.example":                                           "mirrors",
		"- file: a.json\n- file: b.json\n  mirror: https://a.example\n  rootFile: RELATIVE_SELF": "",
	} {
		file := servertest.WriteConfig(t, "")
		text = "trustedRoots:\n" + strings.NewReplacer("config.yaml", filepath.Base(file), "RELATIVE_SELF", filepath.Base(file)).Replace(text) + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file)
		var keeper *trustedroot.Keeper
		if err == nil {
			keeper, err = trustedRoots(c)
		}
		switch {
		case want == "" && (err != nil || len(keeper.Sources) != 2 || keeper.Sources[0].File != filepath.Join(filepath.Dir(file), "a.json")):
			t.Errorf("%s: %v, %+v", text, err, keeper)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A server starts without the repository if it has the trusted root from before, leaves it as it
// is, and tells its age. It says what is wrong if it has none.
func TestTrustedRootFromBefore(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	dir := t.TempDir()
	file, rootFile := filepath.Join(dir, "root.json"), filepath.Join(dir, "tuf.json")
	if err := os.WriteFile(rootFile, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &config.Config{TrustedRoots: []config.TrustedRoot{{File: file, Mirror: gone.URL, RootFile: rootFile}}}
	if err := (&Server{Config: c}).openTrustedRoots(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without a trusted root: %v", err)
	}
	before := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := os.WriteFile(file, []byte("from before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, before, before); err != nil {
		t.Fatal(err)
	}
	s := &Server{Config: c}
	if err := s.openTrustedRoots(t.Context()); err != nil || len(s.Tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(s.Tasks), err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Tasks[0].Run(ctx) }()
	servertest.Eventually(t, "a metric of the time before", func() bool { return ageOf(t, file) == float64(before.Unix()) })
	stop()
	<-ended
	if text, err := os.ReadFile(file); err != nil || string(text) != "from before" {
		t.Errorf("the file holds %q, %v", text, err)
	}
}

// ageOf is the metric of a file, 0 if there is none.
func ageOf(t *testing.T, file string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "tidewaiter_trusted_root_last_success_timestamp_seconds" && m.GetLabel()[0].GetValue() == file {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
