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

// TestReplicas measures three servers over an etcd of three members beside one over SQLite alone
// and three kube-apiservers over three members of their own, all on this machine, and prints a
// table. Requests go to the three in turn.
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
			servers := []*server{alone, replicaServer(t, replicas, etcd.Members()...)}
			peers := apiServers(t)
			all = append(all, round(t, l, i, append(slices.Clone(servers), peers)))
			for _, p := range peers.processes { // what follows measures without them
				p.Kill(t)
			}
			members := &server{processes: etcd.Members()}
			notes = append(notes, pricesOfGets(t, l, servers, members), pricesOfCreations(t, l, replicas, members), replicaNotes(t, etcd, replicas), etcdAlone(t, l))
		})
	}
	if t.Failed() {
		return
	}
	report(t, l, []string{"SQLite alone", "3 servers, 3 members", "3 kube-apiservers, 3 members, custom resource"}, all)
	fmt.Println(strings.Join(notes, "\n"))
}

// replicaServer is several servers as one. Processor time and memory are those of all, and of the
// members of etcd.
func replicaServer(t testing.TB, r *harness.Replicas, members ...*harness.Process) *server {
	t.Helper()
	processes := slices.Clone(members)
	var collections []string
	for _, s := range r.Servers {
		processes = append(processes, s.Process())
		collections = append(collections, s.Config(t).Host+imagesPath)
	}
	s := newServer(t, r.Servers[0].Config(t), imagesPath, image, processes...)
	s.client.collections = collections
	return s
}

const (
	customPath  = "/apis/" + customGroup + "/v1/images"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// definition lets kube-apiserver store any fields of a customImage.
var definition = object{"images." + customGroup, []byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"images.` + customGroup + `"},
	"spec":{"group":"` + customGroup + `","scope":"Cluster","names":{"plural":"images","singular":"image","kind":"Image","listKind":"ImageList"},
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)}

// apiServers are three kube-apiservers over three members of etcd as one server. They store Images
// as a custom resource.
func apiServers(t testing.TB) *server {
	t.Helper()
	etcd := harness.StartEtcd(t, 3)
	processes := slices.Clone(etcd.Members())
	clusters := harness.StartAPIServers(t, etcd, 3)
	config := clusters[0].Config(t)
	if err := newServer(t, config, definitions, nil).client.create(t.Context(), definition); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, config, customPath, customImage)
	for _, c := range clusters {
		processes = append(processes, c.Processes()...)
		s.client.collections = []string{c.URL + customPath}
		// Each learns of the definition by itself.
		harness.Eventually(t, func() error { return s.client.list(t.Context(), "identity") })
	}
	s.processes, s.client.collections = processes, nil
	for _, c := range clusters {
		s.client.collections = append(s.client.collections, c.URL+customPath)
	}
	return s
}

// replicaNotes says what each server and member occupies, and how long it takes until there is a
// new server, a server that was away, and another leader.
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

// pricesOfGets says what gets cost the servers and etcd's members, and what they would without a
// question to etcd: with resourceVersion=0 none is asked, but the object is decoded.
func pricesOfGets(t testing.TB, l load, servers []*server, members *server) string {
	t.Helper()
	names := make([]string, l.objects)
	for i := range names {
		names[i] = image(i).name
	}
	var said []string
	for _, query := range []string{"", "?resourceVersion=0"} {
		asked := members.processorTime(t)
		spent, used := map[*server]time.Duration{}, map[*server]time.Duration{}
		inTurn(l.parts, servers, func(s *server, part int) {
			before, begun := s.processorTime(t), time.Now()
			err := concurrently(l.gets/l.parts, *connections, func(i int) error {
				return s.client.get(t.Context(), names[(part+i)*7919%l.objects]+query)
			})
			if err != nil {
				t.Fatal(err)
			}
			spent[s] += time.Since(begun)
			used[s] += s.processorTime(t) - before
		})
		for i, s := range servers {
			said = append(said, fmt.Sprintf("gets%s %s: %.0f/s, %.2f ms of processor time each", query, []string{"alone", "of three"}[i],
				float64(l.gets)/spent[s].Seconds(), used[s].Seconds()*1000/float64(l.gets)))
		}
		said = append(said, fmt.Sprintf("of which the members use %.2f", (members.processorTime(t)-asked).Seconds()*1000/float64(l.gets)))
	}
	return strings.Join(said, "; ")
}

// pricesOfCreations says what creations at one of three servers cost it, the members, and each
// server that only follows.
func pricesOfCreations(t testing.TB, l load, r *harness.Replicas, members *server) string {
	t.Helper()
	asked := newServer(t, r.Servers[0].Config(t), imagesPath, image, r.Servers[0].Process())
	follow := &server{processes: []*harness.Process{r.Servers[1].Process(), r.Servers[2].Process()}}
	var created []object
	for i := range l.objects {
		created = append(created, image(l.objects+l.watched+i)) // none of which is there
	}
	all := []*server{asked, members, follow}
	var before []time.Duration
	for _, s := range all {
		before = append(before, s.processorTime(t))
	}
	begun := time.Now()
	err := concurrently(len(created), *connections, func(i int) error { return asked.client.create(t.Context(), created[i]) })
	took := time.Since(begun)
	if err != nil {
		t.Fatal(err)
	}
	asked.settle(t)
	follow.settle(t)
	each := func(i int) float64 {
		return (all[i].processorTime(t) - before[i]).Seconds() * 1000 / float64(len(created))
	}
	return fmt.Sprintf("creations at one of three: %.0f/s; processor time of it %.2f ms each, of the members %.2f, of each that follows %.2f",
		float64(len(created))/took.Seconds(), each(0), each(1), each(2)/2)
}

// etcdAlone says what three members of etcd do in a second when nothing else runs here, as a server
// asks them, and how much processor time of theirs that takes: the least that a creation and a read
// cost. A server answers several reads that wait at once with one question.
func etcdAlone(t testing.TB, l load) string {
	t.Helper()
	etcd := harness.StartEtcd(t, 3)
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(etcd.Servers, ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	members := &server{processes: etcd.Members()}
	measured := func(what string, n, atATime int, do func(i int) error) string {
		before, begun := members.processorTime(t), time.Now()
		if err := concurrently(n, atATime, do); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begun)
		return fmt.Sprintf("%.0f %s/s, %d at a time, %.2f ms of processor time each", float64(n)/took.Seconds(), what, atATime,
			(members.processorTime(t)-before).Seconds()*1000/float64(n))
	}
	ask := func(int) error {
		_, err := c.Get(t.Context(), "/tidewaiter/", clientv3.WithLimit(1), clientv3.WithKeysOnly())
		return err
	}
	if err := ask(0); err != nil { // there is a leader now
		t.Fatal(err)
	}
	return "etcd of three members alone: " + strings.Join([]string{
		measured("writes of the same bytes", l.objects, *connections, func(i int) error {
			o := image(i)
			_, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(o.name), "=", 0)).Then(clientv3.OpPut(o.name, string(o.body))).Commit()
			return err
		}),
		measured("linearizable reads of nothing", l.gets, *connections, ask),
		measured("of them", l.gets/4, 3, ask),
		measured("of them", l.gets/8, 1, ask),
	}, "; ")
}
