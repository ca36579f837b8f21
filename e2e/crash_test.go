package e2e

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // registers the driver "sqlite3"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// Killing whoever writes, in the middle of a bulk import, loses no image that
// was acknowledged and leaves a sound database; the import run again finishes.
func TestKillDuringBulkImport(t *testing.T) {
	t.Parallel()
	const n, killAfter = 300, 80
	r := registry.Start(t, registry.Distribution)
	r.PushAll(t, "team/app", images.Numbered(t, n))
	references := r.References("team/app", n)

	for name, tc := range map[string]struct {
		// start makes a data directory and imports into it, and says how to
		// kill the process that writes.
		start func(t *testing.T, dataDir string) (importing []*harness.Process, kill func())
	}{
		"server": {func(t *testing.T, dataDir string) ([]*harness.Process, func()) {
			s := harness.StartServerOn(t, dataDir)
			importing := startImports(t, 4, references, "--kubeconfig", s.Kubeconfig)
			return importing, func() {
				s.Kill(t)
				for _, p := range importing { // which would wait for the server
					p.Kill(t)
				}
			}
		}},
		"import without a server": {func(t *testing.T, dataDir string) ([]*harness.Process, func()) {
			p := startImports(t, 1, references, "--data-dir", dataDir, "--create-data-dir")
			return p, func() { p[0].Kill(t) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir := filepath.Join(t.TempDir(), "data")
			importing, kill := tc.start(t, dataDir)
			harness.Eventually(t, func() error {
				got := len(acknowledged(importing))
				if got < killAfter && !importing[0].Running() {
					t.Fatalf("the import ended after %d images, with exit code %d: %s", got, importing[0].Wait(t), importing[0].Stderr)
				}
				if got < killAfter {
					return fmt.Errorf("%d images are acknowledged, %d are wanted before the kill", got, killAfter)
				}
				return nil
			})
			kill()
			for _, p := range importing {
				if code := p.Wait(t); code == 0 {
					t.Errorf("an import was over before the kill")
				}
			}
			promised := acknowledged(importing)
			t.Logf("killed when %d of %d images were acknowledged", len(promised), n)
			checkIntegrity(t, dataDir)

			s := harness.StartServerOn(t, dataDir)
			stored := map[string]bool{}
			for _, name := range imageNames(t, s) {
				stored[name] = true
			}
			for _, digest := range promised {
				if !stored[digest] {
					t.Errorf("%s was acknowledged and is gone", digest)
				}
			}
			for _, p := range startImports(t, 4, references, "--kubeconfig", s.Kubeconfig) {
				if code := p.Wait(t); code != 0 {
					t.Errorf("running the import again: exit code %d: %s", code, p.Stderr)
				}
			}
			if got := len(imageNames(t, s)); got != n {
				t.Errorf("after the import ran again %d images are stored, want %d", got, n)
			}
			if code := s.Terminate(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			checkIntegrity(t, dataDir)
		})
	}
}

// startImports imports references with several processes at a time, as several
// people would: one process asks a registry for no more than its share.
func startImports(t *testing.T, processes int, references []string, target ...string) []*harness.Process {
	t.Helper()
	var out []*harness.Process
	for part := range slices.Chunk(references, (len(references)+processes-1)/processes) {
		c := harness.ImportCommand(t, append(target, "-f", "-")...)
		c.Stdin = strings.Join(part, "\n")
		out = append(out, harness.Start(t, c))
	}
	return out
}

// acknowledged are the digests that imports have said are done. A line that was
// cut off in the middle promises nothing.
func acknowledged(importing []*harness.Process) []string {
	var out []string
	for _, p := range importing {
		written := p.Stdout.String()
		out = append(out, digests(written[:strings.LastIndexByte(written, '\n')+1])...)
	}
	return out
}

// checkIntegrity has SQLite verify the whole database, after it recovered what
// is in the write-ahead log, as it does for whoever opens the file first.
func checkIntegrity(t *testing.T, dataDir string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dataDir, "tidewaiter.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("PRAGMA integrity_check")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var said []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		said = append(said, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(said) != "[ok]" {
		t.Errorf("integrity_check: %q", said)
	}
}
