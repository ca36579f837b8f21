package e2e

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // registers the driver "sqlite3"

	"tidewaiter/e2e/harness"
	"tidewaiter/e2e/images"
	"tidewaiter/e2e/registry"
)

// Killing whoever writes, in the middle of a bulk import, loses no image that
// was acknowledged and leaves a sound database; the import run again finishes.
func TestKillDuringBulkImport(t *testing.T) {
	const n, killAfter = 600, 150
	r := registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, n)
	r.PushAll(t, "team/app", imgs)
	repository := r.Host + "/team/app"

	for name, tc := range map[string]struct {
		// start makes a data directory and an import into it, and says which
		// process to kill.
		start func(t *testing.T, dataDir string) (importing *harness.Process, kill func())
	}{
		"server": {func(t *testing.T, dataDir string) (*harness.Process, func()) {
			s := harness.StartServerOn(t, dataDir)
			p := harness.Start(t, harness.ImportCommand(t, "--kubeconfig", s.Kubeconfig, "--all-tags", repository))
			return p, func() { s.Kill(t) }
		}},
		"import without a server": {func(t *testing.T, dataDir string) (*harness.Process, func()) {
			p := harness.Start(t, harness.ImportCommand(t, "--data-dir", dataDir, "--all-tags", repository))
			return p, func() { p.Kill(t) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir := filepath.Join(t.TempDir(), "data")
			p, kill := tc.start(t, dataDir)
			p.Stdout.Await(t, "150 acknowledged images", func(out string) bool { return len(acknowledged(out)) >= killAfter })
			kill()
			if code := p.Wait(t); code == 0 {
				t.Fatalf("the import was over before the kill: %d acknowledged", len(acknowledged(p.Stdout.String())))
			}
			promised := acknowledged(p.Stdout.String())
			t.Logf("killed after %d of %d acknowledged images", len(promised), n)
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
			s.Import(t, "--all-tags", repository)
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

// acknowledged are the digests an import has said are done. A line that was
// cut off in the middle promises nothing.
func acknowledged(out string) []string {
	end := strings.LastIndexByte(out, '\n') + 1
	return digests(out[:end])
}

// checkIntegrity has SQLite verify the whole database. It opens a copy of the
// connection's world, as any program would: whatever is in the write-ahead log
// is recovered first.
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
