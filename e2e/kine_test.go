//go:build nightly

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// TestKine: what stands in for etcd over PostgreSQL, or SQLite, passes Kubernetes' tests of
// storage, and servers over it agree; also where each has a kine of its own over one database.
func TestKine(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]func(*testing.T) string{
		"PostgreSQL": func(t *testing.T) string {
			return harness.KineEndpoint(harness.StartPostgres(t, "-c", "fsync=off").Address)
		},
		"SQLite": func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "kine.db") },
	} {
		t.Run(name, func(t *testing.T) {
			database := endpoint(t)
			servers, _ := harness.StartKine(t, database)
			// A copy's history begins at kine's first write of its own, after which nothing is at
			// revision 1.
			storageSuite(t, servers, []string{
				"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
				"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
			})
			r := &replicas{Replicas: harness.StartReplicas(t, 2, "--etcd-servers", servers)}
			if name == "PostgreSQL" {
				another, _ := harness.StartKine(t, database)
				r.Servers[1].Kill(t)
				r.reachBy(1, another)
				r.Restart(t, 1)
			}
			r.connect(t)
			r.create(t, 0, "a", "b")
			r.awaitLeases(t, 1, "a", "b")
			r.create(t, 1, "c")
			r.awaitLeases(t, 0, "a", "b", "c")
			r.Servers[0].Kill(t)
			r.create(t, 1, "d")
			r.Restart(t, 0)
			r.awaitLeases(t, 0, "a", "b", "c", "d")
		})
	}
}
