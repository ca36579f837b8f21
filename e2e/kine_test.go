//go:build nightly

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// startKine starts a stand-in for etcd over a SQL database, or several over the same, and returns
// what --etcd-servers takes.
func startKine(t *testing.T, endpoint string) (servers string) {
	t.Helper()
	address := "127.0.0.1:" + harness.FreePort(t)
	harness.Start(t, harness.Command{Path: harness.Tool(t, "kine"), Dir: t.TempDir(), Args: []string{"--endpoint", endpoint, "--listen-address", address, "--metrics-bind-address", "0", "--datastore-poll-interval", "100ms"}})
	return "http://" + address
}

// startPostgres starts a PostgreSQL with an empty database, if the machine has one, and returns
// kine's endpoint.
func startPostgres(t *testing.T) (endpoint string) {
	t.Helper()
	p := newPostgres(t)
	p.run(t, "initdb", "-D", p.data, "-U", "kine", "-A", "trust", "--no-sync")
	p.start(t, "-c", "fsync=off")
	return kineOver("127.0.0.1:" + p.port)
}

// kineOver is kine's endpoint of a PostgreSQL at an address.
func kineOver(address string) string {
	return fmt.Sprintf("postgres://kine@%s/kine?sslmode=disable", address)
}

// TestKine: what stands in for etcd over PostgreSQL, or SQLite, passes Kubernetes' tests of
// storage, and servers over it agree; also where each has a kine of its own over one database.
func TestKine(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]func(*testing.T) string{
		"PostgreSQL": startPostgres,
		"SQLite":     func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "kine.db") },
	} {
		t.Run(name, func(t *testing.T) {
			database := endpoint(t)
			servers := startKine(t, database)
			// A copy's history begins at kine's first write of its own, after which nothing is at
			// revision 1.
			storageSuite(t, servers, []string{
				"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
				"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
			})
			r := &replicas{Replicas: harness.StartReplicas(t, 2, "--etcd-servers", servers)}
			if name == "PostgreSQL" {
				r.Servers[1].Kill(t)
				r.reachBy(1, startKine(t, database))
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
