package e2e

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Litestream copies the log of a running server to another place, through a server's
// end and its next start. What it restores, `tidewaiter restore` takes, with the
// tables that Litestream keeps in the database.
func TestLitestream(t *testing.T) {
	t.Parallel()
	const batch = 40
	dir := t.TempDir()
	replica := filepath.Join(dir, "replica")
	s := harness.StartServerOn(t, filepath.Join(dir, "data"))
	database := filepath.Join(s.DataDir, "tidewaiter.db")
	leases := 0
	create := func() {
		t.Helper()
		var list strings.Builder
		for range batch {
			fmt.Fprintf(&list, "---\n{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: berth-%d}}\n", leases)
			leases++
		}
		s.KubectlStdin(t, list.String(), "create", "-f", "-")
	}
	create()

	config := filepath.Join(dir, "litestream.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "dbs:\n- path: %s\n  monitor-interval: 100ms\n  replicas:\n  - {type: file, path: %s, sync-interval: 100ms}\n", database, replica), 0o600); err != nil {
		t.Fatal(err)
	}
	litestream := harness.Start(t, harness.Command{Path: harness.Tool(t, "litestream"), Args: []string{"replicate", "-config", config}})
	replicated := filepath.Join(dir, "replicated.db")
	// awaitReplica restores until the copy has every lease.
	awaitReplica := func() {
		t.Helper()
		harness.Eventually(t, func() error {
			if !litestream.Running() {
				t.Fatalf("litestream has ended: %s %s", litestream.Stdout, litestream.Stderr)
			}
			os.Remove(replicated)
			r := harness.Run(t, harness.Command{Path: harness.Tool(t, "litestream"), Args: []string{"restore", "-o", replicated, "file://" + replica}})
			if r.Code != 0 {
				return fmt.Errorf("litestream restore: %s", r.Stderr)
			}
			copied, err := sql.Open("sqlite3", "file:"+replicated+"?immutable=1")
			if err != nil {
				return err
			}
			defer copied.Close()
			var n int
			if err := copied.QueryRow("SELECT count(*) FROM objects WHERE key LIKE '%/berth-%'").Scan(&n); err != nil {
				return err
			}
			if n != leases {
				return fmt.Errorf("the replica has %d leases of %d", n, leases)
			}
			return nil
		})
	}
	awaitReplica()
	create()
	if code := s.Terminate(t); code != 0 {
		t.Fatalf("the server ended with %d: %s", code, s.Logs())
	}
	s = harness.StartServerOn(t, s.DataDir)
	create()
	awaitReplica()
	harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"db", "check", "--data-dir", s.DataDir}})
	harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"backup", filepath.Join(dir, "backup.db"), "--data-dir", s.DataDir}})

	// The machine is lost.
	s.Kill(t)
	litestream.Kill(t)
	elsewhere := filepath.Join(dir, "elsewhere")
	harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"restore", replicated, "--data-dir", elsewhere}})
	s = harness.StartServerOn(t, elsewhere)
	if got := strings.Count(s.Kubectl(t, "get", "leases", "-o", "name"), "/berth-"); got != leases {
		t.Errorf("%d leases are restored, want %d", got, leases)
	}
}
