package compare

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

var measureReplicas = flag.Bool("replicas", false, "TestReplicas: measure with -objects and -rounds; without it, few objects show that the comparison works")

// TestReplicas measures three servers over an etcd of three members beside one over SQLite alone, all on this machine, and
// prints a table. Requests go to the three in turn.
func TestReplicas(t *testing.T) {
	l, times := smallLoad, 1
	if *measureReplicas {
		l, times = wholeLoad(), *rounds
	}
	var all [][]figures
	var notes []string
	for i := range times {
		t.Run(fmt.Sprintf("round=%d", i+1), func(t *testing.T) {
			alone := imageServer(t, harness.Binary(t))
			etcd := harness.StartEtcd(t, 3)
			replicas := harness.StartReplicas(t, 3, "--etcd-servers", etcd.Servers)
			replicas.AwaitShared(t, 3)
			all = append(all, round(t, l, i, []*server{alone, replicaServer(t, etcd, replicas)}))
			notes = append(notes, replicaNotes(t, etcd, replicas), etcdAlone(t, l))
		})
	}
	if t.Failed() {
		return
	}
	report(t, l, []string{"SQLite alone", "3 servers, 3 members"}, all)
	fmt.Println(strings.Join(notes, "\n"))
}

// replicaServer is several servers as one. Processor time and memory are those of all, and of etcd.
func replicaServer(t testing.TB, etcd *harness.Etcd, r *harness.Replicas) *server {
	t.Helper()
	processes := slices.Clone(etcd.Members())
	var collections []string
	for _, s := range r.Servers {
		processes = append(processes, s.Process())
		collections = append(collections, s.Config(t).Host+imagesPath)
	}
	s := newServer(t, r.Servers[0].Config(t), imagesPath, image, processes...)
	s.client.collections = collections
	return s
}

// replicaNotes says what each server and member occupies, and how long it takes until there is a new server, a server that was
// away, and another leader.
func replicaNotes(t testing.TB, etcd *harness.Etcd, r *harness.Replicas) string {
	t.Helper()
	var servers, members []string
	for _, s := range r.Servers {
		servers = append(servers, fmt.Sprintf("%.0f", mebibytes(t, s.Process())))
	}
	for _, m := range etcd.Members() {
		members = append(members, fmt.Sprintf("%.0f", mebibytes(t, m)))
	}
	begun := time.Now()
	fresh := harness.StartServerOn(t, filepath.Join(t.TempDir(), "data"), "--etcd-servers", etcd.Servers, "--pki-dir", r.PKIDir)
	filled := time.Since(begun)
	fresh.Kill(t)

	leader := r.Leader(t)
	r.Servers[leader].Kill(t)
	begun = time.Now()
	r.Leader(t)
	led := time.Since(begun)
	begun = time.Now()
	r.Restart(t, leader)
	return fmt.Sprintf("memory of each server %s MiB, of each member of etcd %s MiB; a new server is ready after %.1f s, one that was away after %.1f s; another leads %.1f s after the leader was killed",
		strings.Join(servers, ", "), strings.Join(members, ", "), filled.Seconds(), time.Since(begun).Seconds(), led.Seconds())
}

// etcdAlone says what three members of etcd do in a second when nothing else runs here, as a server asks them: the least that
// a creation and a read cost. A server answers several reads that wait at once with one question.
func etcdAlone(t testing.TB, l load) string {
	t.Helper()
	etcd := harness.StartEtcd(t, 3)
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(etcd.Servers, ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rate := func(n int, do func(i int) error) float64 {
		begun := time.Now()
		if err := concurrently(n, *connections, do); err != nil {
			t.Fatal(err)
		}
		return float64(n) / time.Since(begun).Seconds()
	}
	ask := func(int) error {
		_, err := c.Get(t.Context(), "/tidewaiter/", clientv3.WithLimit(1), clientv3.WithKeysOnly())
		return err
	}
	rate(1, ask) // there is a leader
	writes := rate(l.objects, func(i int) error {
		o := image(i)
		_, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(o.name), "=", 0)).Then(clientv3.OpPut(o.name, string(o.body))).Commit()
		return err
	})
	return fmt.Sprintf("etcd of three members alone: %.0f writes/s of the same bytes, %.0f linearizable reads of nothing/s", writes, rate(l.gets, ask))
}
