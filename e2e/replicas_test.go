package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

var killFor = flag.Duration("replicas-killed-for", 30*time.Second, "how long TestReplicasUnderFaults disturbs servers and members of etcd; TestReplicasAreToldOfPushes does half as long")

// replicas are servers that share an etcd and their credentials.
type replicas struct {
	*harness.Replicas
	etcd    *harness.Etcd
	clients []kubernetes.Interface
}

// startReplicas starts n servers over an etcd of three members.
func startReplicas(t *testing.T, n int, args ...string) *replicas {
	t.Helper()
	return startReplicasOn(t, harness.StartEtcd(t, 3), n, args...)
}

// startReplicasOn starts n servers over an etcd.
func startReplicasOn(t *testing.T, e *harness.Etcd, n int, args ...string) *replicas {
	t.Helper()
	r := &replicas{etcd: e, Replicas: harness.StartReplicas(t, n, append(e.Flags(), args...)...)}
	r.connect(t)
	return r
}

// connect makes a client of each server.
func (r *replicas) connect(t *testing.T) {
	t.Helper()
	for _, s := range r.Servers {
		c := s.Config(t)
		c.Timeout, c.WarningHandler = 30*time.Second, rest.NoWarnings{}
		client, err := kubernetes.NewForConfig(c)
		must(t, err)
		r.clients = append(r.clients, client)
	}
}

// reachBy has a server reach etcd at another address when it is started again.
func (r *replicas) reachBy(i int, servers string) {
	r.Args[i][slices.Index(r.Args[i], "--etcd-servers")+1] = servers
}

// revision is a resourceVersion as a number; 0 if it is none.
func revision(resourceVersion string) uint64 {
	n, _ := strconv.ParseUint(resourceVersion, 10, 64)
	return n
}

// counter is a Lease that counts.
func counter(name string, n int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{LeaseTransitions: &n}}
}

// TestReplicas: what is written at one of three servers is read at the others at once, at the same
// revision; lists and informers agree; a policy that is written at one decides at the next answer
// of another.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3)
	ctx := t.Context()
	informed := make([]cache.SharedIndexInformer, 3)
	for i, c := range r.clients {
		f := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("default"))
		informed[i] = f.Coordination().V1().Leases().Informer()
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
	}
	const n = 60
	for i := range n {
		at, other, third := r.clients[i%3], r.clients[(i+1)%3], r.clients[(i+2)%3]
		name := fmt.Sprintf("c-%02d", i)
		made, err := at.CoordinationV1().Leases("default").Create(ctx, counter(name, 0), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := other.CoordinationV1().Leases("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil || got.ResourceVersion != made.ResourceVersion {
			t.Fatalf("%s was written at %s, the next server has %s, %v", name, made.ResourceVersion, got.ResourceVersion, err)
		}
		*got.Spec.LeaseTransitions = 1
		if got, err = other.CoordinationV1().Leases("default").Update(ctx, got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := at.CoordinationV1().Leases("default").Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Fatalf("an update of what has changed at another server: %v", err)
		}
		list, err := third.CoordinationV1().Leases("default").List(ctx, metav1.ListOptions{Limit: 10})
		if err != nil || revision(list.ResourceVersion) < revision(got.ResourceVersion) {
			t.Fatalf("a list after revision %s is of %s, %v", got.ResourceVersion, list.ResourceVersion, err)
		}
		for list.Continue != "" { // a page of another server's list
			if list, err = at.CoordinationV1().Leases("default").List(ctx, metav1.ListOptions{Limit: 10, Continue: list.Continue}); err != nil {
				t.Fatal(err)
			}
		}
	}
	harness.Eventually(t, func() error {
		for i, inf := range informed {
			if have := inf.GetStore().List(); len(have) != n || slices.ContainsFunc(have, func(o any) bool { return *o.(*coordinationv1.Lease).Spec.LeaseTransitions != 1 }) {
				return fmt.Errorf("the informer at server %d has %d of %d", i, len(have), n)
			}
		}
		return nil
	})

	for i, s := range r.Servers {
		// what looks into its file sees the copy, which has what was just read
		list, err := r.clients[i].CoordinationV1().Leases("default").List(ctx, metav1.ListOptions{})
		must(t, err)
		file, err := sql.Open("sqlite3", "file:"+filepath.Join(s.DataDir, "tidewaiter.db")+"?mode=ro")
		must(t, err)
		var have int
		err = file.QueryRow("SELECT count(*) FROM objects WHERE key LIKE '%/leases/default/c-%'").Scan(&have)
		must(t, errors.Join(err, file.Close()))
		stats := harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"db", "stats", "--data-dir", s.DataDir}})
		if counted := regexp.MustCompile(`leases\S*\s+(\d+)`).FindStringSubmatch(stats); have != n || len(list.Items) != n || counted == nil {
			t.Errorf("server %d lists %d, and its file has %d of %d:\n%s", i, len(list.Items), have, n, stats)
		}
	}

	// What the alerts about several servers name, each of them has.
	named := slices.DeleteFunc(metricsOf(alertRules(t)...), func(name string) bool { return !isOfReplicas(name) })
	for i, s := range r.Servers {
		have := s.Kubectl(t, "get", "--raw", "/metrics")
		if len(named) < 4 || slices.ContainsFunc(named, func(name string) bool { return !strings.Contains(have, "\n"+name+" ") }) {
			t.Errorf("server %d has not all of %q", i, named)
		}
	}

	public := publicKeyData(t)
	for i, s := range r.Servers {
		name, other := fmt.Sprintf("judged-%d", i), r.Servers[(i+1)%3]
		s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":%[1]q},"spec":{"scopes":["registry.example.com/team/%[1]s"],
			"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":%q}}}}}`, name, public), "create", "-f", "-")
		other.KubectlStdin(t, plainImage(name), "create", "-f", "-")
		if got := other.Kubectl(t, "get", "images", "--field-selector", "signatures.verified=Unsigned", "-o", "name"); !strings.Contains(got, name) {
			t.Errorf("%s is not judged by the policy that another server was given before: %q", name, got)
		}
	}
}

// publicKeyData is a public key as a policy names it.
func publicKeyData(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	must(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// keepCounting writes and reads counters at random servers. The function that it returns stops
// that, and compares what was answered with what each server has in the end: no write that was
// answered is lost, no read is older than what was answered before it, and no update undoes
// another.
func (r *replicas) keepCounting(t *testing.T) (check func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	const workers = 6
	var reads, writes, failures, stale atomic.Int64
	var shared atomic.Int64 // updates of the shared counter that were answered
	var unknown atomic.Int64
	leases := func() (int, interface {
		Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error)
		Create(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error)
		Update(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error)
	}) {
		i := rand.IntN(len(r.clients))
		return i, r.clients[i].CoordinationV1().Leases("default")
	}
	if _, err := r.clients[0].CoordinationV1().Leases("default").Create(ctx, counter("shared", 0), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made := make([][]string, workers) // what was answered as created
	last := make([]int32, workers)    // the last answered count
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			own := fmt.Sprintf("own-%d", w)
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("new-%d-%d", w, n)
				if _, c := leases(); true {
					if _, err := c.Create(ctx, counter(name, 0), metav1.CreateOptions{}); err == nil {
						made[w] = append(made[w], name)
						writes.Add(1)
						if at, c := leases(); true {
							if _, err := c.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
								stale.Add(1)
								t.Errorf("server %d has no %s, which was created before", at, name)
							} else if err == nil {
								reads.Add(1)
							}
						}
					} else {
						failures.Add(1)
					}
				}
				at, c := leases()
				have, err := c.Get(ctx, own, metav1.GetOptions{})
				switch {
				case apierrors.IsNotFound(err) && last[w] == 0:
					if _, err = c.Create(ctx, counter(own, 1), metav1.CreateOptions{}); err == nil {
						last[w] = 1
						writes.Add(1)
					}
				case err == nil:
					reads.Add(1)
					if n := *have.Spec.LeaseTransitions; n < last[w] {
						stale.Add(1)
						t.Errorf("server %d has %d of %s, after %d was answered", at, n, own, last[w])
					}
					*have.Spec.LeaseTransitions++
					if have, err = c.Update(ctx, have, metav1.UpdateOptions{}); err == nil {
						last[w] = *have.Spec.LeaseTransitions
						writes.Add(1)
					}
				case apierrors.IsNotFound(err):
					t.Errorf("server %d has no %s, after %d was answered", at, own, last[w])
				}
				if err != nil {
					failures.Add(1)
				}
				_, c = leases()
				if have, err = c.Get(ctx, "shared", metav1.GetOptions{}); err != nil {
					failures.Add(1)
					continue
				}
				*have.Spec.LeaseTransitions++
				switch _, err = c.Update(ctx, have, metav1.UpdateOptions{}); {
				case err == nil:
					shared.Add(1)
				case !apierrors.IsConflict(err):
					unknown.Add(1)
				}
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return func() {
		t.Helper()
		stop()
		running.Wait()
		t.Logf("%d writes and %d reads were answered, %d stale, %d requests failed; the shared counter: %d updates answered, %d unknown",
			writes.Load(), reads.Load(), stale.Load(), failures.Load(), shared.Load(), unknown.Load())
		if writes.Load() == 0 || reads.Load() == 0 || shared.Load() == 0 {
			t.Error("nothing was answered")
		}
		for i, c := range r.clients {
			var list *coordinationv1.LeaseList
			harness.Eventually(t, func() (err error) {
				list, err = c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
				return err
			})
			all := map[string]int32{}
			for _, l := range list.Items {
				all[l.Name] = *l.Spec.LeaseTransitions
			}
			for w := range workers {
				for _, name := range made[w] {
					if _, ok := all[name]; !ok {
						t.Errorf("server %d has lost %s", i, name)
					}
				}
				if n := all[fmt.Sprintf("own-%d", w)]; n < last[w] {
					t.Errorf("server %d has %d of own-%d, after %d was answered", i, n, w, last[w])
				}
			}
			if n := int64(all["shared"]); n < shared.Load() || n > shared.Load()+unknown.Load() {
				t.Errorf("server %d has %d in the shared counter, after %d answered and %d unknown updates", i, n, shared.Load(), unknown.Load())
			}
		}
		// What was not answered may still have reached etcd between two lists.
		harness.Eventually(t, func() error {
			var first []string
			for i, c := range r.clients {
				list, err := c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				names := make([]string, len(list.Items))
				for j, l := range list.Items {
					names[j] = fmt.Sprintf("%s@%s=%d", l.Name, l.ResourceVersion, *l.Spec.LeaseTransitions)
				}
				if slices.Sort(names); i == 0 {
					first = names
				} else if !slices.Equal(first, names) {
					return fmt.Errorf("server %d has another %d objects than server 0, which has %d", i, len(names), len(first))
				}
			}
			return nil
		})
	}
}

// told tells a server by its receiver "script" that references were pushed, and returns the status.
func (r *replicas) told(t *testing.T, i int, references ...string) int {
	t.Helper()
	body := fmt.Sprintf(`{"references":["%s"]}`, strings.Join(references, `","`))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.Servers[i].URL+"/hooks/script", strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+hookSecret)
	req.Header.Set("Content-Type", "application/json")
	resp, err := told.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

var told = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 32}}

// hookedConfig is a configuration with the receiver "script" for registries.
func hookedConfig(t *testing.T, more string, hosts ...string) (file string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "hook-secret"), []byte(hookSecret+"\n"), 0o600))
	file = filepath.Join(dir, "tidewaiter.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, "ownPodsOnly: true\nreceivers:\n- {name: script, type: generic, hosts: [\"%s\"], secretFile: hook-secret}\n%s", strings.Join(hosts, `","`), more), 0o600))
	return file
}

// importers are the servers that have imported from a registry.
func (r *replicas) importers(host string) (importers []int) {
	line := regexp.MustCompile(`Imported.* reference="?` + regexp.QuoteMeta(host) + "/")
	for i, s := range r.Servers {
		if line.MatchString(s.Logs()) {
			importers = append(importers, i)
		}
	}
	return importers
}

// TestReplicasShareRegistries: whichever of three servers is told of pushes, the images of a
// registry are imported by one of them, and by another soon after that one has vanished.
func TestReplicasShareRegistries(t *testing.T) {
	t.Parallel()
	const registries, tags = 4, 3
	pushed := images.Numbered(t, registries*tags+1)
	var hosts, refs []string
	var all []*registry.Registry
	for i := range registries {
		from := registry.Start(t, registry.Distribution)
		for j := range tags {
			refs = append(refs, from.Push(t, fmt.Sprintf("team/app:%d", j), pushed[i*tags+j]))
		}
		hosts, all = append(hosts, from.Host), append(all, from)
	}
	r := startReplicas(t, 3, "--config", hookedConfig(t, "", hosts...))
	r.AwaitShared(t, 3)
	for i, ref := range refs {
		if status := r.told(t, i%3, ref); status != http.StatusAccepted {
			t.Fatalf("the webhook's answer is %d", status)
		}
	}
	for _, s := range r.Servers {
		(&hooked{Server: s}).awaitEmptySpool(t)
		(&hooked{Server: s}).awaitStored(t, pushed[:registries*tags]...)
	}
	for _, host := range hosts {
		if by := r.importers(host); len(by) != 1 {
			t.Errorf("the images of %s were imported by servers %v", host, by)
		} else {
			t.Logf("the images of %s were imported by server %d", host, by[0])
		}
	}
	// An ImageStreamImport asks the registry from the server that gets it. Its Lease says so, and
	// it has no other Lease.
	look := fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStreamImport","metadata":{"name":"app"},"spec":{"import":false,
		"images":[{"from":{"kind":"DockerImage","name":%q}}]},"status":{}}`, refs[0])
	askers, names := map[string]bool{}, map[string]bool{}
	harness.Eventually(t, func() error {
		for _, c := range r.clients {
			asked := c.CoreV1().RESTClient().Post().AbsPath("/apis/image.openshift.io/v1/namespaces/default/imagestreamimports").SetHeader("Content-Type", "application/json").Body(look).Do(t.Context()).Error()
			leases, err := c.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
			if err = errors.Join(asked, err); err != nil {
				return err
			}
			for _, l := range leases.Items {
				names[l.Name] = true
				if slices.Contains(strings.Fields(l.Annotations["tidewaiter.dev/asked-hosts"]), hosts[0]) {
					askers[l.Name] = true
				}
			}
		}
		if len(askers) < 3 {
			return fmt.Errorf("of the servers that ask %s only the Leases %v say so", hosts[0], askers)
		}
		return nil
	})
	if len(names) != 4 { // and the leader's
		t.Errorf("three servers have the Leases %v", names)
	}
	owner := r.importers(hosts[0])[0]
	r.Servers[owner].Kill(t)
	killed, other := time.Now(), (owner+1)%3
	if status := r.told(t, other, all[0].Push(t, "team/app:new", pushed[registries*tags])); status != http.StatusAccepted {
		t.Fatalf("the webhook's answer is %d", status)
	}
	(&hooked{Server: r.Servers[other]}).awaitStored(t, pushed[registries*tags])
	t.Logf("a push to the registry of a server that was killed is imported after %s", time.Since(killed))
}

// TestReplicasKeepAPause: what a registry asks one of three servers for, to leave it alone for an
// hour (429), the others do, too.
func TestReplicasKeepAPause(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3)
	r.AwaitShared(t, 3)
	r.keepAPause(t)
}

// keepAPause lets a registry ask the first server for a pause, and wants all to keep it.
func (r *replicas) keepAPause(t *testing.T) {
	t.Helper()
	from := registry.Start(t, registry.Distribution)
	from.Push(t, "team/app:0", images.Numbered(t, 1)[0])
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: from.Host})
	var refused atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.URL.Path, "/manifests/") && !refused.Swap(true) {
			// it would answer the next one
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		behind.ServeHTTP(w, req)
	}))
	defer front.Close()
	look := fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStreamImport","metadata":{"name":"app"},"spec":{"import":false,
		"images":[{"from":{"kind":"DockerImage","name":"%s/team/app:0"}}]},"status":{}}`, strings.TrimPrefix(front.URL, "http://"))
	ask := func(i int) (answer metav1.Status) {
		t.Helper()
		raw, err := r.clients[i].CoreV1().RESTClient().Post().AbsPath("/apis/image.openshift.io/v1/namespaces/default/imagestreamimports").SetHeader("Content-Type", "application/json").Body(look).DoRaw(t.Context())
		var all struct {
			Status struct {
				Images []struct{ Status metav1.Status }
			}
		}
		if must(t, err); json.Unmarshal(raw, &all) != nil || len(all.Status.Images) != 1 {
			t.Fatalf("server %d: %s", i, raw)
		}
		return all.Status.Images[0].Status
	}
	if got := ask(0); got.Reason != metav1.StatusReasonTooManyRequests {
		t.Fatalf("server 0, which the registry has refused: %+v", got)
	}
	for i := range r.Servers {
		harness.Eventually(t, func() error {
			if got := ask(i); got.Reason != metav1.StatusReasonTooManyRequests || !strings.Contains(got.Message, "asked for a pause") {
				return fmt.Errorf("server %d asks the registry: %+v", i, got)
			}
			return nil
		})
	}
}

// TestReplicasFollowACluster: three servers follow a cluster and have each pod once. What runs
// there is imported by one of them, and is deleted at none, also after the one that leads has
// vanished.
func TestReplicasFollowACluster(t *testing.T) {
	t.Parallel()
	from, pushed := registry.Start(t, registry.Distribution), images.Numbered(t, 2)
	cluster := harness.StartServer(t)
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- {name: prod, kubeconfig: %q}\n", cluster.Kubeconfig), 0o600))
	r := startReplicas(t, 3, "--config", config)
	r.AwaitShared(t, 3)
	for i, image := range pushed {
		name, digest := fmt.Sprintf("app-%d", i), images.Digest(t, image).String()
		ref := from.Push(t, "team/"+name+":1", image)
		cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"main","image":%q}]}}`, name, ref), "create", "-n", "payments", "-f", "-")
		cluster.Kubectl(t, "patch", "pod", name, "-n", "payments", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
			`{"status":{"containerStatuses":[{"name":"main","image":"x","imageID":"%s/team/%s@%s","ready":true,"restartCount":0}]}}`, from.Host, name, digest))
		for _, s := range r.Servers {
			if !s.Process().Running() {
				continue
			}
			(&hooked{Server: s}).awaitStored(t, image)
			harness.Eventually(t, func() error {
				got := s.Kubectl(t, "get", "clusterpods", "--field-selector", "image="+ref, "--no-headers")
				if strings.Count(got, "\n") != 1 || !strings.Contains(got, "prod:payments:"+name) || !strings.Contains(got, digest[:19]) {
					return fmt.Errorf("the pods of %s: %q", ref, got)
				}
				return nil
			})
			if got := s.TryKubectl(t, "delete", "image", digest); got.Code == 0 || !strings.Contains(got.Stderr, "prod/payments/"+name) {
				t.Errorf("an image that runs in a cluster is deleted: %s%s", got.Stdout, got.Stderr)
			}
		}
		if by := r.importers(from.Host); i == 0 && len(by) != 1 {
			t.Errorf("what runs was imported by servers %v", by)
		}
		if i == 0 {
			r.Servers[r.Leader(t)].Kill(t)
		}
	}
}

// TestReplicasShareTheSpool: what one server was told of another imports, when the first is gone
// with its data directory. All servers show the same queue.
func TestReplicasShareTheSpool(t *testing.T) {
	t.Parallel()
	from := registry.Start(t, registry.Distribution)
	pushed := images.Numbered(t, 4)
	first := from.Push(t, "team/app:0", pushed[0])
	r := startReplicas(t, 2, "--config", hookedConfig(t, fmt.Sprintf("sweep: {repositories: [%q]}\n", from.Host+"/team/app"), from.Host))
	hooked := []*hooked{{Server: r.Servers[0]}, {Server: r.Servers[1]}}
	hooked[1].awaitStored(t, pushed[0]) // by the sweep
	r.AwaitShared(t, 2)
	for i := range hooked { // one of them does not import
		if status := r.told(t, i, from.Push(t, fmt.Sprintf("team/app:%d", i+1), pushed[i+1])); status != http.StatusAccepted {
			t.Fatalf("the webhook's answer is %d", status)
		}
		hooked[i].awaitStored(t, pushed[i+1])
		hooked[i].awaitEmptySpool(t)
	}

	// The registry is away while its server is told of a push, and vanishes with its disk.
	by := r.importers(from.Host)
	if len(by) != 1 {
		t.Fatalf("the images were imported by servers %v", by)
	}
	from.Push(t, "team/app:new", pushed[3])
	from.Stop(t)
	if status := r.told(t, by[0], from.Host+"/team/app:new", first); status != http.StatusAccepted {
		t.Fatalf("the webhook's answer is %d", status)
	}
	for _, h := range hooked {
		h.awaitSpool(t, "two jobs that failed", func(list string) bool { return strings.Count(list, "unreachable") == 2 })
		h.awaitMetrics(t, `tidewaiter_queue_jobs{receiver="script",state="dead"} 0`)
	}
	r.Servers[by[0]].Kill(t)
	must(t, os.RemoveAll(r.Servers[by[0]].DataDir))
	from.Resume(t)
	hooked[1-by[0]].awaitStored(t, pushed[3])
	hooked[1-by[0]].awaitEmptySpool(t)
}

// TestReplicasHandOver: when the server that leads vanishes, another leads. A busy machine takes
// longer than the 15 seconds that make bench-replicas measures.
func TestReplicasHandOver(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 2)
	r.Servers[r.Leader(t)].Kill(t)
	killed := time.Now()
	r.Leader(t)
	t.Logf("the other server leads after %s", time.Since(killed))
}

// beforeTheFill are the cases that begin at revision 1 of an etcd, which is earlier than the fill
// of a copy: its history begins there, and the answer is 410.
var beforeTheFill = []string{
	"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=false,_sendInitialEvents=false,_RV=1",
	"TestUpstreamOnEtcd/WatchSemantics/allowWatchBookmarks=true,_sendInitialEvents=false,_RV=1",
}

// TestStorageSuiteOnEtcd runs Kubernetes' tests of storage over an etcd.
func TestStorageSuiteOnEtcd(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 1, "--unsafe-no-fsync")
	storageSuite(t, e.Servers, beforeTheFill)
}

// storageSuite runs Kubernetes' tests of storage over an etcd, or what stands in for it, and wants
// all to pass but some.
func storageSuite(t *testing.T, servers string, but []string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubestore.test")
	harness.MustRun(t, harness.Command{Path: "go", Args: []string{"test", "-c", "-vet=off", "-o", program, "./db/kubestore"}, Dir: ".."})
	r := harness.Run(t, harness.Command{
		Path: "go", Args: []string{"tool", "test2json", program, "-test.run", "^TestUpstreamOnEtcd$", "-test.v=test2json"}, Dir: "../db/kubestore",
		Env: []string{"TIDEWAITER_TEST_ETCD_SERVERS=" + servers},
	})
	passed, failed := 0, []string{}
	for line := range strings.Lines(r.Stdout) {
		var event struct{ Action, Test string }
		if err := json.Unmarshal([]byte(line), &event); err != nil || event.Test == "" {
			continue
		}
		switch event.Action {
		case "pass":
			passed++
		case "fail", "skip":
			failed = append(failed, event.Test)
		}
	}
	// A case fails with those that it is part of.
	failed = slices.DeleteFunc(failed, func(name string) bool {
		return slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
	slices.Sort(failed)
	if passed < 280 || !slices.Equal(failed, but) {
		t.Errorf("%d cases pass, and these do not: %q; want %q\n%s", passed, failed, but, r.Stderr)
	}
	t.Logf("%d cases pass", passed)
}

// through forwards to the servers of an etcd, and holds everything back while it is cut.
func through(t *testing.T, servers string) (proxied string, cut func(bool)) {
	t.Helper()
	var mu sync.Mutex
	isCut, conns := false, map[net.Conn]bool{}
	forward := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		_, _ = io.Copy(to, from)
	}
	var addresses []string
	for server := range strings.SplitSeq(servers, ",") {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		t.Cleanup(func() { l.Close() })
		addresses = append(addresses, "http://"+l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				mu.Lock()
				held := isCut
				conns[c] = true
				mu.Unlock()
				if held {
					continue // it is answered by nobody
				}
				to, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
				if err != nil {
					c.Close()
					continue
				}
				go forward(to, c)
				go forward(c, to)
			}
		}()
	}
	return strings.Join(addresses, ","), func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		isCut = on
		for c := range conns {
			c.Close()
		}
		clear(conns)
	}
}

// TestReplicasAreToldOfPushes: registries tell any of three servers of pushes, again where they get
// no answer, while servers and members of etcd are killed and stopped, and a server is cut off from
// etcd. In the end each server has what the registry has, at the same revisions, and nothing waits.
func TestReplicasAreToldOfPushes(t *testing.T) {
	t.Parallel()
	// As many webhooks as most may wait for an answer: a third of all while a server is stopped.
	const tags, perSecond, most = 40, 100, 2000
	from := registry.Start(t, registry.Distribution)
	pushed := images.Numbered(t, 2*tags)
	var refs []string
	digests := make([]string, tags) // that the tags lead to
	for i := range tags {
		refs = append(refs, from.Push(t, fmt.Sprintf("team/app:%d", i), pushed[i]))
		digests[i] = images.Digest(t, pushed[i]).String()
	}
	r := startReplicas(t, 3, "--config", hookedConfig(t, "", from.Host))
	proxied, cut := through(t, r.etcd.Servers)
	r.Servers[0].Kill(t)
	r.reachBy(0, proxied)
	r.Restart(t, 0)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sending sync.WaitGroup
	var taken, refused atomic.Int64
	tell := func(i int) {
		for t.Context().Err() == nil {
			if r.told(t, rand.IntN(3), refs[i]) == http.StatusAccepted {
				taken.Add(1)
				return
			}
			refused.Add(1)
			time.Sleep(200 * time.Millisecond) // as registries do
		}
	}
	places := make(chan struct{}, most)
	begun, full := time.Now(), 0
	sending.Go(func() {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			<-tick.C
			select {
			case places <- struct{}{}:
			default:
				full++ // so many wait for answers
				places <- struct{}{}
			}
			sending.Go(func() {
				i := rand.IntN(tags)
				if n%perSecond == 0 { // a tag moves
					i = n / perSecond % tags
					from.Push(t, fmt.Sprintf("team/app:%d", i), pushed[tags+i])
					digests[i] = images.Digest(t, pushed[tags+i]).String()
				}
				tell(i)
				<-places
			})
		}
	})
	disturbed := 0
	for begun := time.Now(); disturbed < 4 || time.Since(begun) < *killFor/2; disturbed++ {
		// each kind once, on a slow machine, too
		time.Sleep(2 * time.Second)
		switch i := rand.IntN(3); disturbed % 4 {
		case 0:
			r.Servers[i].Kill(t)
			r.Restart(t, i)
		case 1:
			r.etcd.Restart(t, i)
		case 2:
			cut(true)
			time.Sleep(3 * time.Second)
			cut(false)
		case 3:
			pause := 3 * time.Second
			if *killFor >= 5*time.Minute && disturbed%20 == 3 {
				pause = time.Minute
			}
			r.Servers[i].Signal(t, syscall.SIGSTOP)
			time.Sleep(pause)
			r.Servers[i].Signal(t, syscall.SIGCONT)
		}
	}
	stop()
	sent := time.Since(begun)
	sending.Wait()
	t.Logf("%d disturbances: %d webhooks were taken, %.0f a second, %d times one was not; %d times all places were taken", disturbed, taken.Load(), float64(taken.Load())/sent.Seconds(), refused.Load(), full)

	var first []string
	for i, c := range r.clients {
		(&hooked{Server: r.Servers[i]}).awaitEmptySpool(t)
		var all []string
		for n, ref := range refs {
			raw, err := c.CoreV1().RESTClient().Get().AbsPath("/apis/image.openshift.io/v1/images").Param("fieldSelector", "references="+ref).DoRaw(t.Context())
			var list struct {
				Items []metav1.PartialObjectMetadata
			}
			must(t, errors.Join(err, json.Unmarshal(raw, &list)))
			if len(list.Items) != 1 || list.Items[0].Name != digests[n] {
				t.Errorf("server %d has %d images for %s, the registry has %s", i, len(list.Items), ref, digests[n])
				continue
			}
			all = append(all, list.Items[0].Name+"@"+list.Items[0].ResourceVersion)
		}
		if first == nil {
			first = all
		} else if !slices.Equal(first, all) {
			t.Errorf("server %d has other objects than server 0", i)
		}
	}
}
