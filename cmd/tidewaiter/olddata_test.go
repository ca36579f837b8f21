package main

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// A database that an earlier version wrote is opened, and each question of
// testdata/VERSION/answers.txt is answered by the same objects as that version answered it: all
// objects of a kind, those with a verdict, and those that a tag leads to. To add a version, copy a
// backup of its demonstration, its policy with its key, and what it answers.
func TestOldDataDirectories(t *testing.T) {
	t.Parallel()
	versions, err := filepath.Glob("testdata/*/tidewaiter.db.gz")
	if err != nil || len(versions) == 0 {
		t.Fatalf("%q, %v", versions, err)
	}
	for _, packed := range versions {
		from := filepath.Dir(packed)
		t.Run(filepath.Base(from), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			unpack(t, packed, filepath.Join(dir, datafile.FileName))
			policy := filepath.Join(t.TempDir(), "policy.yaml")
			for _, name := range []string{"policy.yaml", "harbour-master.pub"} {
				text, err := os.ReadFile(filepath.Join(from, name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(filepath.Dir(policy), name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			client := kubernetes.NewForConfigOrDie(serveWith(t, server.Options{DataDir: dir, Policy: policy, Isolated: true}, listen(t))).RESTClient()
			answers, err := os.ReadFile(filepath.Join(from, "answers.txt"))
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			for line := range strings.Lines(string(answers)) {
				asked++
				question, names, _ := strings.Cut(strings.TrimSpace(line), " ")
				want := strings.Fields(names)
				var got []string
				t.Cleanup(func() {
					if t.Failed() && !slices.Equal(got, want) {
						t.Logf("%s: %q, want %q", question, got, want)
					}
				})
				servertest.Eventually(t, question, func() bool { // verdicts are brought up to date
					raw, err := client.Get().RequestURI(question).DoRaw(t.Context())
					var list struct {
						Items []struct{ Metadata struct{ Name string } }
					}
					if err != nil || json.Unmarshal(raw, &list) != nil {
						t.Fatalf("%s: %v, %.200s", question, err, raw)
					}
					got = nil
					for _, item := range list.Items {
						got = append(got, item.Metadata.Name)
					}
					slices.Sort(got)
					return slices.Equal(got, want)
				})
			}
			if asked < 10 {
				t.Errorf("%d questions", asked)
			}
		})
	}
}

// unpack writes what a file compressed with gzip holds to another.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	zip, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, zip); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
