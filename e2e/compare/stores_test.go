//go:build nightly

package compare

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

var storeObjects = flag.Int("store-objects", 300, "how many Images TestStores creates over each store")

// TestStores measures three servers over an etcd of three members, and over kine and PostgreSQL. In
// the end each server has all Images, also one that was killed, and one that is new.
func TestStores(t *testing.T) {
	t.Run("etcd", func(t *testing.T) {
		etcd := harness.StartEtcd(t, 3, "--quota-backend-bytes", "8589934592")
		measureStore(t, etcd.Servers, func() {
			for _, m := range etcd.Members() {
				t.Logf("a member of etcd: %.0f MiB of memory", mebibytes(t, m))
			}
		})
	})
	t.Run("kine", func(t *testing.T) {
		postgres := harness.StartPostgres(t)
		servers, kine := harness.StartKine(t, harness.KineEndpoint(postgres.Address))
		measureStore(t, servers, func() {
			t.Logf("kine: %.0f MiB of memory; PostgreSQL: %.0f", mebibytes(t, kine), float64(postgres.Resident(t))/(1<<20))
		})
	})
}

// overStore are servers over a store, and the names of the Images that were created.
type overStore struct {
	*testing.T
	*harness.Replicas
	servers string // as --etcd-servers takes it
	names   []string
}

// measureStore logs figures of three servers over a store. memory logs that of the store.
func measureStore(t *testing.T, servers string, memory func()) {
	o := &overStore{t, harness.StartReplicas(t, 3, "--etcd-servers", servers), servers, make([]string, *storeObjects)}
	o.fill()
	memory()
	o.read()
	o.startAgain()
	memory()
	o.logSizes()
}

// timed logs how long some things take.
func (o *overStore) timed(what string, things int, do func() error) {
	o.Helper()
	begun := time.Now()
	if err := do(); err != nil {
		o.Fatalf("%s: %v", what, err)
	}
	took := time.Since(begun).Seconds()
	o.Logf("%s: %.1f s, %.0f a second", what, took, float64(things)/took)
}

func (o *overStore) create(at *server, what string, from, to int) {
	o.Helper()
	o.timed(what, to-from, func() error {
		return concurrently(to-from, *connections, func(i int) error {
			made := image(from + i)
			o.names[from+i] = made.name
			return at.client.create(o.Context(), made)
		})
	})
}

// fill creates all Images, most of them at one server while the others are away.
func (o *overStore) fill() {
	n := len(o.names)
	all, few := replicaServer(o, o.Replicas), min(n/10, 1000)
	o.create(all, "the first creations, at three servers", 0, few)
	o.Servers[1].Kill(o)
	o.Servers[2].Kill(o)
	one := newServer(o, o.Servers[0].Config(o), imagesPath, image)
	const parts = 8 // which show how the rate changes
	for part, most := 0, n-2*few; part < parts; part++ {
		o.create(one, "creations at one server, an eighth", few+most*part/parts, few+most*(part+1)/parts)
	}
	for i := 1; i < 3; i++ {
		o.timed("a server that was away is ready, with the Images that it lacked", n-2*few, func() error { o.Restart(o, i); return nil })
	}
	o.create(all, "the last creations, at three servers", n-few, n)
}

// read gets and lists Images, and watches while others are created.
func (o *overStore) read() {
	s, n := replicaServer(o, o.Replicas), len(o.names)
	o.timed("gets", n, func() error {
		return concurrently(n, *connections, func(int) error { return s.client.get(o.Context(), o.names[rand.IntN(n)]) })
	})
	o.timed("whole lists, one at each server", 3*n, func() error {
		return concurrently(3, 1, func(int) error { return s.client.list(o.Context(), "identity") })
	})
	const watchers, watched = 100, 200
	var created []object
	for i := range watched {
		created = append(created, image(n+i))
		o.names = append(o.names, created[i].name)
	}
	o.timed("events to 100 watchers", watchers*watched, func() error {
		_, err := s.client.watch(o.Context(), watchers, created)
		return err
	})
}

// startAgain starts a server again, and a new one, and has an informer list at each server.
func (o *overStore) startAgain() {
	o.timed("a server that was killed is ready", 1, func() error {
		o.Servers[0].Kill(o)
		o.Restart(o, 0)
		return nil
	})
	o.timed("a new server is ready, with all Images", len(o.names), func() error {
		o.Servers = append(o.Servers, harness.StartServerOn(o, filepath.Join(o.TempDir(), "data"), "--etcd-servers", o.servers, "--pki-dir", o.PKIDir))
		return nil
	})
	s := replicaServer(o, o.Replicas)
	o.timed("the list of an informer, one at each server", len(o.Servers)*len(o.names), func() error {
		return concurrently(len(o.Servers), 1, func(int) error {
			seen, err := s.client.watchList(o.Context())
			if err == nil && seen != len(o.names) {
				err = fmt.Errorf("it has %d Images of %d", seen, len(o.names))
			}
			return err
		})
	})
}

// logSizes logs what servers and store occupy.
func (o *overStore) logSizes() {
	for i, s := range o.Servers {
		files, err := filepath.Glob(filepath.Join(s.DataDir, "tidewaiter.db*"))
		if err != nil || len(files) == 0 {
			o.Fatalf("server %d has no database: %v", i, err)
		}
		var disk int64
		for _, file := range files {
			if info, err := os.Stat(file); err == nil {
				disk += info.Size()
			}
		}
		o.Logf("server %d: %.0f MiB of memory, %.0f of disk", i, mebibytes(o, s.Process()), float64(disk)/(1<<20))
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(o.servers, ",")})
	if err != nil {
		o.Fatal(err)
	}
	defer c.Close()
	for _, endpoint := range c.Endpoints() {
		status, err := c.Status(o.Context(), endpoint)
		if err != nil || status.DbSize <= 0 {
			o.Fatalf("%s does not say how much it occupies: %v", endpoint, err)
		}
		o.Logf("the store at %s: %.0f MiB of disk", endpoint, float64(status.DbSize)/(1<<20))
	}
}
