package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

var (
	faultImages = flag.Int("replicas-images", 300, "how many Images are in the store of TestReplicasUnderFaults from the start")
	faultSeed   = flag.Uint64("replicas-seed", 0, "draw the faults of TestReplicasUnderFaults as a run did that printed this seed")
)

// underFaults are three servers over three members of etcd, and what goes on while they are
// disturbed.
type underFaults struct {
	*replicas
	t         *testing.T
	ctx       context.Context // until nothing more is begun
	random    *rand.Rand      // of the faults alone
	clocks    []*harness.Clock
	cut       []func(bool) // a server from etcd
	from      *registry.Registry
	limited   *limitedRegistry
	refs      []string // tags of from
	mu        sync.Mutex
	digests   []string // to which the tags lead
	counts    []tried  // of the Images that were there from the start
	streams   []string // that were answered as created
	policy    string   // whether the policy is there: "", "there", "gone"
	policyKey string
	tallies   sync.Map // of what went on: a name and an *atomic.Int64
	running   sync.WaitGroup
}

// tried is a count that one client raises: the last that was answered and the last that was sent.
type tried struct{ answered, sent int }

// count counts something that went on.
func (u *underFaults) count(what string) {
	n, _ := u.tallies.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// counted returns how often something went on.
func (u *underFaults) counted(what string) int64 {
	n, _ := u.tallies.LoadOrStore(what, new(atomic.Int64))
	return n.(*atomic.Int64).Load()
}

// every calls do again and again with a random server until nothing more is begun. It counts the
// errors.
func (u *underFaults) every(pause time.Duration, what string, do func(at int) error) {
	u.running.Go(func() {
		for u.ctx.Err() == nil {
			if err := do(rand.IntN(3)); err != nil {
				u.count(what + " failed")
			} else {
				u.count(what)
			}
			select {
			case <-u.ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// rest is a server's client. A request that has begun ends also when nothing more is begun.
func (u *underFaults) rest(at int) rest.Interface { return u.clients[at].CoreV1().RESTClient() }

const (
	groupPath    = "/apis/image.openshift.io/v1"
	policiesPath = "/apis/config.openshift.io/v1/clusterimagepolicies"
)

// baseImage is an Image that prune keeps.
func baseImage(i int) (name string, body []byte) {
	name = fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Appendf(nil, "base %d", i)))
	body, err := json.Marshal(map[string]any{
		"apiVersion": "image.openshift.io/v1", "kind": "Image",
		"metadata": map[string]any{"name": name, "annotations": map[string]string{
			"tidewaiter.dev/prune": "disabled", "example.com/count": "0", "example.com/padding": strings.Repeat(name, 20)}},
		"dockerImageReference": "registry.example.com/base/app@" + name,
	})
	if err != nil {
		panic(err)
	}
	return name, body
}

// limitedRegistry is in front of a registry, and counts what it is asked.
type limitedRegistry struct {
	host string
	mu   sync.Mutex
	at   []time.Time
}

// allowed is how many requests a second the servers may send to a limitedRegistry together.
const allowed = 20

func limit(t *testing.T, behind *registry.Registry) *limitedRegistry {
	t.Helper()
	l := &limitedRegistry{}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind.Host})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		l.mu.Lock()
		l.at = append(l.at, time.Now())
		l.mu.Unlock()
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(front.Close)
	l.host = strings.TrimPrefix(front.URL, "http://")
	return l
}

// rates are the requests a second over all the time, and in the worst ten seconds.
func (l *limitedRegistry) rates() (average, worst float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.at) < 2 {
		return 0, 0
	}
	const window = 10 * time.Second
	first := 0
	for i, at := range l.at {
		for at.Sub(l.at[first]) > window {
			first++
		}
		worst = max(worst, float64(i-first+1)/window.Seconds())
	}
	return float64(len(l.at)) / max(l.at[len(l.at)-1].Sub(l.at[0]), window).Seconds(), worst
}

// TestReplicasUnderFaults: three servers and three members of etcd are killed, ended, stopped and
// cut off, and clocks are set, while Images are written and read, registries tell of pushes, and
// imports, policies, streams, prune, a followed cluster, watches and a rate limit go on. No answer
// is wrong meanwhile. In the end all servers have the same objects as etcd, byte by byte, and what
// was answered.
func TestReplicasUnderFaults(t *testing.T) {
	t.Parallel()
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("the same faults again: -replicas-seed %d", seed)
	const tags = 20
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	u := &underFaults{t: t, ctx: ctx, random: rand.New(rand.NewPCG(seed, 0)), digests: make([]string, tags), counts: make([]tried, *faultImages)}
	u.from = registry.Start(t, registry.Distribution)
	u.limited = limit(t, u.from)
	pushed := images.Numbered(t, 2*tags)
	for i := range tags {
		u.refs = append(u.refs, u.from.Push(t, fmt.Sprintf("team/app:%d", i), pushed[i]))
		u.digests[i] = images.Digest(t, pushed[i]).String()
	}
	cluster := harness.StartServer(t)
	pods, err := kubernetes.NewForConfig(cluster.Config(t))
	must(t, err)

	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "hook-secret"), []byte(hookSecret+"\n"), 0o600))
	config := filepath.Join(dir, "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "receivers:\n- {name: script, type: generic, hosts: [%q, %q], secretFile: hook-secret}\nregistries:\n- {prefix: %q, requestsPerSecond: %d}\nclusters:\n- {name: prod, kubeconfig: %q, importRunning: false}\n",
		u.from.Host, u.limited.host, u.limited.host, allowed, cluster.Kubeconfig), 0o600))
	e := harness.StartPartitionedEtcd(t, 3)
	u.replicas = &replicas{etcd: e, Replicas: harness.StartReplicas(t, 3, append(e.Flags(), "--config", config)...)}
	for i := range u.Servers {
		proxied, cut := through(t, e.Servers)
		u.cut = append(u.cut, cut)
		u.clocks = append(u.clocks, harness.NewClock(t))
		u.Env[i] = u.clocks[i].Env(t, harness.Binary(t))
		u.Servers[i].Kill(t)
		u.reachBy(i, proxied)
		u.Restart(t, i)
	}
	u.connect(t)
	u.AwaitShared(t, 3)

	filling := time.Now()
	u.fill()
	t.Logf("%d Images were created in %s", *faultImages, time.Since(filling).Round(time.Second))
	informed := u.inform()
	u.policyKey = publicKeyData(t)
	u.begin(pushed)
	var ran []*ranPod
	u.running.Go(func() { ran = runsPods(ctx, t, pods) })
	// A test that has failed has begun nothing more, either.
	defer u.running.Wait()
	defer stop()

	checkCounters := u.keepCounting(t)
	disturbances := u.disturb(*killFor)
	checkCounters()
	stop()
	u.running.Wait()
	t.Logf("%d disturbances: %s", len(disturbances), strings.Join(disturbances, ", "))
	u.check(ran, informed)
	u.report()
}

// fill creates the Images that are there from the start, at all servers.
func (u *underFaults) fill() {
	const atATime = 16
	var creating sync.WaitGroup
	for w := range atATime {
		creating.Go(func() {
			for i := w; i < len(u.counts); i += atATime {
				_, body := baseImage(i)
				err := u.rest(i%3).Post().AbsPath(imagesPath).SetHeader("Content-Type", "application/json").Body(body).Do(u.ctx).Error()
				if err != nil {
					u.t.Errorf("creating an Image: %v", err)
					return
				}
			}
		})
	}
	creating.Wait()
}

// inform starts an informer of Images at each server.
func (u *underFaults) inform() (all []cache.SharedIndexInformer) {
	for _, s := range u.Servers {
		client, err := metadata.NewForConfig(s.Config(u.t))
		must(u.t, err)
		f := metadatainformer.NewSharedInformerFactory(client, 0)
		all = append(all, f.ForResource(imageResource).Informer())
		f.Start(u.t.Context().Done())
	}
	return all
}

// begin lets all go on that is not a fault. Each tag moves to and fro between two images.
func (u *underFaults) begin(pushed []v1.Image) {
	t := u.t
	const workers = 4
	for w := range workers {
		u.every(10*time.Millisecond, "an Image was written", func(at int) error { return u.raise(at, w, workers) })
	}
	u.every(250*time.Millisecond, "pages of Images were listed", u.listPages)
	u.every(time.Second, "a policy was written", u.turnPolicy)
	u.every(500*time.Millisecond, "a stream was created", u.createStream)
	for w := range 3 {
		u.every(20*time.Millisecond, "an image was imported", func(at int) error { return u.importLimited(at, w, u.refs[rand.IntN(len(u.refs))]) })
	}
	u.every(5*time.Second, "prune ended", func(at int) error {
		got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"prune", "--confirm", "--grace", "0s", "--keep-younger-than", "0s", "--keep-tag-revisions", "1",
			"--without-workloads", "--kubeconfig", u.Servers[at].Kubeconfig}})
		if got.Code != 0 {
			return errors.New(got.Stderr)
		}
		return nil
	})
	// Tags move in their order, and each is told of until one of the servers takes that.
	u.running.Go(func() {
		for n := 0; u.ctx.Err() == nil; n++ {
			i := n % len(u.refs)
			image := pushed[(n+len(u.refs))%len(pushed)]
			u.from.Push(t, fmt.Sprintf("team/app:%d", i), image)
			u.mu.Lock()
			u.digests[i] = images.Digest(t, image).String()
			u.mu.Unlock()
			u.tell(u.refs[i])
			select {
			case <-u.ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	for range 4 {
		u.running.Go(func() {
			for u.ctx.Err() == nil {
				u.tell(u.refs[rand.IntN(len(u.refs))])
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

// tell tells servers of a push until one takes it, as registries do.
func (u *underFaults) tell(ref string) {
	for u.t.Context().Err() == nil {
		if u.told(u.t, rand.IntN(3), ref) == http.StatusAccepted {
			u.count("a webhook was taken")
			return
		}
		u.count("a webhook was taken failed")
		time.Sleep(200 * time.Millisecond)
	}
}

// raise raises the count of an Image that this worker alone writes, and reads it at another server.
func (u *underFaults) raise(at, worker, workers int) error {
	if len(u.counts) < workers {
		return nil
	}
	i := rand.IntN(len(u.counts)/workers)*workers + worker
	name, _ := baseImage(i)
	c := &u.counts[i]
	c.sent++
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/count":"%d"}}}`, c.sent)
	err := u.rest(at).Patch(types.MergePatchType).AbsPath(imagesPath, name).Body(patch).Do(u.t.Context()).Error()
	if err == nil {
		c.answered = c.sent
	}
	raw, readErr := u.rest((at+1)%3).Get().AbsPath(imagesPath, name).DoRaw(u.t.Context())
	if readErr == nil {
		u.count("an Image was read")
		u.checkCount((at+1)%3, name, raw, *c)
	} else if apierrors.IsNotFound(readErr) {
		u.t.Errorf("server %d has no %s", (at+1)%3, name)
	}
	return errors.Join(err, readErr)
}

// checkCount wants an Image to have a count that was sent, and none that is older than what was
// answered.
func (u *underFaults) checkCount(at int, name string, raw []byte, c tried) {
	var image metav1.PartialObjectMetadata
	must(u.t, json.Unmarshal(raw, &image))
	if n, err := strconv.Atoi(image.Annotations["example.com/count"]); err != nil || n < c.answered || n > c.sent {
		u.t.Errorf("server %d has the count %q of %s, after %d was answered and %d was sent", at, image.Annotations["example.com/count"], name, c.answered, c.sent)
	}
}

// listPages lists all Images by pages, each of another server: they are one list.
func (u *underFaults) listPages(at int) error {
	var list metav1.PartialObjectMetadataList
	seen := 0
	for next := ""; ; at = (at + 1) % 3 {
		raw, err := u.rest(at).Get().AbsPath(imagesPath).Param("limit", "500").Param("continue", next).DoRaw(u.t.Context())
		if apierrors.IsResourceExpired(err) {
			return nil // a server was filled anew
		} else if err != nil {
			return err
		}
		list = metav1.PartialObjectMetadataList{}
		must(u.t, json.Unmarshal(raw, &list))
		for _, item := range list.Items {
			if item.Annotations["tidewaiter.dev/prune"] == "disabled" {
				seen++
			}
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	if seen != len(u.counts) {
		u.t.Errorf("the pages of a list have %d Images of the %d that are never deleted", seen, len(u.counts))
	}
	return nil
}

// turnPolicy creates the policy if it is not there, and deletes it otherwise. What another server
// then says about a pod goes by that.
func (u *underFaults) turnPolicy(at int) error {
	const scope = "registry.example.com/base/app"
	var err error
	if u.policy != "there" {
		body := fmt.Appendf(nil, `{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":"base"},"spec":{"scopes":[%q],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":%q}}}}}`, scope, u.policyKey)
		err = u.rest(at).Post().AbsPath(policiesPath).SetHeader("Content-Type", "application/json").Body(body).Do(u.t.Context()).Error()
		if apierrors.IsAlreadyExists(err) { // by an attempt that was not answered
			err = nil
		}
		if err == nil {
			u.policy = "there"
		}
	} else {
		err = u.rest(at).Delete().AbsPath(policiesPath, "base").Do(u.t.Context()).Error()
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			u.policy = "gone"
		}
	}
	if err != nil {
		return err
	}
	other := (at + 1) % 3
	name, _ := baseImage(0)
	allowed, message, err := u.admits(u.t, other, scope+"@"+name)
	if err != nil {
		return err
	}
	if allowed != (u.policy == "gone") {
		u.t.Errorf("after the policy is %s, server %d admits a pod: %v, %s", u.policy, other, allowed, message)
	}
	return nil
}

// createStream creates a stream that follows a tag.
func (u *underFaults) createStream(at int) error {
	name := fmt.Sprintf("follows-%d", u.counted("a stream was created")+u.counted("a stream was created failed"))
	body := fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":%q},"spec":{"tags":[{"name":"prod","from":{"kind":"DockerImage","name":%q}}]}}`, name, u.refs[rand.IntN(len(u.refs))])
	err := u.rest(at).Post().AbsPath(groupPath, "namespaces/default/imagestreams").SetHeader("Content-Type", "application/json").Body(body).Do(u.t.Context()).Error()
	if err == nil {
		u.streams = append(u.streams, name)
		if err := u.rest((at+1)%3).Get().AbsPath(groupPath, "namespaces/default/imagestreams", name).Do(u.t.Context()).Error(); apierrors.IsNotFound(err) {
			u.t.Errorf("server %d has no stream %s, which was created before", (at+1)%3, name)
		}
	}
	return err
}

// importLimited imports a tag from the registry whose rate is limited.
func (u *underFaults) importLimited(at, worker int, ref string) error {
	ref = strings.Replace(ref, u.from.Host, u.limited.host, 1)
	body := fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStreamImport","metadata":{"name":"imported-%d"},"spec":{"import":true,"images":[{"from":{"kind":"DockerImage","name":%q},"to":{"name":"latest"}}]},"status":{}}`, worker, ref)
	raw, err := u.rest(at).Post().AbsPath(groupPath, "namespaces/default/imagestreamimports").SetHeader("Content-Type", "application/json").Body(body).DoRaw(u.t.Context())
	if err != nil {
		return err
	}
	var answer struct {
		Status struct {
			Images []struct{ Status metav1.Status }
		}
	}
	if must(u.t, json.Unmarshal(raw, &answer)); len(answer.Status.Images) != 1 || answer.Status.Images[0].Status.Status != metav1.StatusSuccess {
		return fmt.Errorf("%s", raw)
	}
	return nil
}

// disturb disturbs servers and members for some time, but at least once in each way, and returns
// what it did.
func (u *underFaults) disturb(long time.Duration) (did []string) {
	t, begun := u.t, time.Now()
	most := 4 * time.Second // for which something is away
	if long >= 5*time.Minute {
		most = 20 * time.Second
	}
	away := func(begin, end func()) string {
		d := time.Second + time.Duration(u.random.Int64N(int64(most)))
		begin()
		time.Sleep(d)
		end()
		return " for " + d.Round(time.Second).String()
	}
	signal := func(p *harness.Process) string {
		return away(func() { p.Signal(t, syscall.SIGSTOP) }, func() { p.Signal(t, syscall.SIGCONT) })
	}
	ways := []struct {
		name string
		do   func(i int) string
	}{
		{"killed server", func(i int) string { u.Servers[i].Kill(t); u.Restart(t, i); return "" }},
		{"ended server", func(i int) string {
			if code := u.Servers[i].Terminate(t); code != 0 {
				t.Errorf("server %d ended with %d", i, code)
			}
			u.Restart(t, i)
			return ""
		}},
		{"stopped server", func(i int) string { return signal(u.Servers[i].Process()) }},
		{"cut off server", func(i int) string { return away(func() { u.cut[i](true) }, func() { u.cut[i](false) }) }},
		{"set the clock of server", func(i int) string {
			by := []time.Duration{-10 * time.Minute, 0, 10 * time.Minute}[u.random.IntN(3)]
			u.clocks[i].Set(t, by)
			return fmt.Sprintf(" by %s", by)
		}},
		{"killed member", func(i int) string { u.etcd.Restart(t, i); return "" }},
		{"stopped member", func(i int) string { return signal(u.etcd.Members()[i]) }},
		{"cut off member", func(i int) string { return away(func() { u.etcd.Cut(t, i, true) }, func() { u.etcd.Cut(t, i, false) }) }},
	}
	turn := u.random.Perm(len(ways))
	for len(did) < len(ways) || time.Since(begun) < long {
		time.Sleep(2 * time.Second)
		way, i := ways[turn[len(did)%len(turn)]], u.random.IntN(3)
		how := way.do(i)
		did = append(did, fmt.Sprintf("%s %d%s", way.name, i, how))
		if len(did)%len(turn) == 0 {
			turn = u.random.Perm(len(ways))
		}
	}
	for i := range u.clocks {
		u.clocks[i].Set(t, 0)
	}
	return did
}

// report says what went on, and wants something of each.
func (u *underFaults) report() {
	tallies := map[string]int64{}
	u.tallies.Range(func(name, n any) bool {
		tallies[name.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		u.t.Logf("%6d times %s", tallies[name], name)
		if well, failed := strings.CutSuffix(name, " failed"); failed && tallies[well] == 0 {
			u.t.Errorf("never %s", well)
		}
	}
	average, worst := u.limited.rates()
	u.t.Logf("the registry that allows %d requests a second got %.1f, and %.1f in the worst ten seconds", allowed, average, worst)
	if average > 1.25*allowed {
		u.t.Errorf("the registry that allows %d requests a second got %.1f", allowed, average)
	}
}

// check waits until nothing is left to do, and compares all objects.
func (u *underFaults) check(ran []*ranPod, informed []cache.SharedIndexInformer) {
	t := u.t
	u.confirmTags()
	for i, s := range u.Servers {
		(&hooked{Server: s}).awaitSpool(t, "an empty spool", func(list string) bool { return list == "" })
		u.checkTags(i)
		u.checkPods(i, ran)
	}
	u.checkStored()
	for i, informer := range informed {
		// A policy's last change may still be judging Images, so the list is read anew.
		harness.Eventually(t, func() error {
			raw, err := u.rest(i).Get().AbsPath(imagesPath).DoRaw(t.Context())
			if err != nil {
				return err
			}
			var list metav1.PartialObjectMetadataList
			must(t, json.Unmarshal(raw, &list))
			want := map[string]bool{}
			for _, item := range list.Items {
				want[item.Name+"@"+item.ResourceVersion] = true
			}
			have := informer.GetStore().List()
			for _, o := range have {
				if m := o.(*metav1.PartialObjectMetadata); !want[m.Name+"@"+m.ResourceVersion] {
					return fmt.Errorf("an informer at server %d has %s at %s, the server has not", i, m.Name, m.ResourceVersion)
				}
			}
			if len(have) != len(want) {
				return fmt.Errorf("an informer at server %d has %d Images, the server has %d", i, len(have), len(want))
			}
			return nil
		})
	}
	for i, s := range u.Servers {
		if code := s.Terminate(t); code != 0 {
			t.Errorf("server %d ended with %d", i, code)
		}
		if got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"db", "check", "--data-dir", s.DataDir}}); got.Code != 0 {
			t.Errorf("the copy of server %d: %s%s", i, got.Stdout, got.Stderr)
		}
	}
}

// confirmTags has both registries confirm all tags once more. A server that was cut off could not
// tell the others of earlier confirmations, and one with a wrong clock dated them wrongly.
func (u *underFaults) confirmTags() {
	for _, ref := range u.refs {
		u.tell(ref)
		harness.Eventually(u.t, func() error { return u.importLimited(0, 0, ref) })
	}
}

// checkTags wants each tag to lead where the registry has it lead.
func (u *underFaults) checkTags(at int) {
	for n, ref := range u.refs {
		raw, err := u.rest(at).Get().AbsPath(imagesPath).Param("fieldSelector", "references="+ref).DoRaw(u.t.Context())
		var list metav1.PartialObjectMetadataList
		must(u.t, errors.Join(err, json.Unmarshal(raw, &list)))
		if len(list.Items) != 1 || list.Items[0].Name != u.digests[n] {
			u.t.Errorf("server %d has %d images for %s, the registry has %s", at, len(list.Items), ref, u.digests[n])
		}
	}
}

// checkPods wants a server to know exactly the pods that run in the cluster.
func (u *underFaults) checkPods(at int, ran []*ranPod) {
	var want []string
	for _, p := range ran {
		if p.gone[0].IsZero() {
			want = append(want, "prod:payments:"+p.name)
		}
	}
	slices.Sort(want)
	harness.Eventually(u.t, func() error {
		got := u.Servers[at].TryKubectl(u.t, "get", "clusterpods", "--field-selector", "spec.cluster=prod", "-o", "jsonpath={.items[*].metadata.name}")
		have := strings.Fields(got.Stdout)
		for i, name := range have { // the container is part of the name
			have[i] = strings.Join(strings.SplitN(name, ":", 4)[:min(3, strings.Count(name, ":")+1)], ":")
		}
		if slices.Sort(have); got.Code != 0 || !slices.Equal(have, want) {
			return fmt.Errorf("server %d has the pods %q, the cluster runs %q; %s", at, have, want, got.Stderr)
		}
		return nil
	})
}

// checkStored compares all that is stored, kind by kind, as of one revision: the servers' answers
// byte by byte, and their revisions with those of etcd's keys. If that takes so long that etcd has
// forgotten the revision, it begins again.
func (u *underFaults) checkStored() {
	t := u.t
	var stored map[string]string
	var all map[string]map[string]metav1.PartialObjectMetadata // by the path of their kind, and by name
	harness.Eventually(t, func() (err error) {
		at := u.revision()
		stored = u.keysAt(at)
		all, err = u.sameAt(at)
		return err
	})
	objects := 0
	for path, items := range all {
		for name, item := range items {
			if key, ok := stored[item.ResourceVersion]; !ok || !strings.HasSuffix(key, "/"+name) {
				t.Errorf("%s %s is at revision %s, at which etcd has %q", path, name, item.ResourceVersion, key)
			}
			objects++
		}
	}
	t.Logf("%d objects are the same at all servers, and at the revisions of etcd's %d keys", objects, len(stored))
	for i, c := range u.counts {
		name, _ := baseImage(i)
		image, ok := all[imagesPath][name]
		if n, _ := strconv.Atoi(image.Annotations["example.com/count"]); !ok || n < c.answered || n > c.sent {
			t.Errorf("%s is there: %v, with the count %d, after %d was answered and %d was sent", name, ok, n, c.answered, c.sent)
		}
	}
	for _, name := range u.streams {
		if _, ok := all[groupPath+"/imagestreams"][name]; !ok {
			t.Errorf("the stream %s, which was answered as created, is lost", name)
		}
	}
	if _, there := all[policiesPath]["base"]; there != (u.policy == "there") && u.policy != "" {
		t.Errorf("the policy is there: %v; the last answer was %q", there, u.policy)
	}
}

// revision is the revision that a server has now.
func (u *underFaults) revision() string {
	head, err := u.rest(0).Get().AbsPath(imagesPath).Param("limit", "1").DoRaw(u.t.Context())
	var list metav1.PartialObjectMetadataList
	must(u.t, errors.Join(err, json.Unmarshal(head, &list)))
	return list.ResourceVersion
}

// keysAt returns etcd's keys at a revision, by the revision of their last write.
func (u *underFaults) keysAt(at string) map[string]string {
	t := u.t
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(u.etcd.Servers, ",")})
	must(t, err)
	defer client.Close()
	rev, err := strconv.ParseInt(at, 10, 64)
	must(t, err)
	stored := map[string]string{}
	for from, end := "/tidewaiter/", clientv3.GetPrefixRangeEnd("/tidewaiter/"); ; {
		page, err := client.Get(t.Context(), from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithRev(rev), clientv3.WithLimit(5000), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		must(t, err)
		for _, kv := range page.Kvs {
			stored[strconv.FormatInt(kv.ModRevision, 10)] = string(kv.Key)
		}
		if !page.More {
			return stored
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// sameAt returns the objects of each kind that all servers list at a revision, by the path of their
// kind and by name. It fails if the servers differ: they learn from each other when a registry last
// confirmed a tag.
func (u *underFaults) sameAt(at string) (map[string]map[string]metav1.PartialObjectMetadata, error) {
	all := map[string]map[string]metav1.PartialObjectMetadata{}
	for _, path := range u.storedKinds() {
		var first []byte
		for i := range u.Servers {
			raw, err := u.rest(i).Get().AbsPath(path).Param("resourceVersion", at).Param("resourceVersionMatch", "Exact").DoRaw(u.t.Context())
			if err != nil {
				return nil, fmt.Errorf("server %d lists %s at %s: %w", i, path, at, err)
			}
			if i == 0 {
				first = raw
			} else if !bytes.Equal(raw, first) {
				return nil, fmt.Errorf("server %d has other %s at revision %s: %s", i, path, at, firstDifference(raw, first))
			}
		}
		var list metav1.PartialObjectMetadataList
		must(u.t, json.Unmarshal(first, &list))
		all[path] = map[string]metav1.PartialObjectMetadata{}
		for _, item := range list.Items {
			all[path][item.Name] = item
		}
	}
	return all, nil
}

// storedKinds are the paths of all kinds that are stored: those that can be watched.
func (u *underFaults) storedKinds() (paths []string) {
	_, kinds, err := u.clients[0].Discovery().ServerGroupsAndResources()
	must(u.t, err)
	for _, of := range kinds {
		version, err := schema.ParseGroupVersion(of.GroupVersion)
		must(u.t, err)
		prefix := "/apis/" + of.GroupVersion
		if version.Group == "" {
			prefix = "/api/" + of.GroupVersion
		}
		for _, r := range of.APIResources {
			if slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "list") && !notStored[r.Name] {
				paths = append(paths, prefix+"/"+r.Name)
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// notStored are kinds that can be watched and are made of others.
var notStored = map[string]bool{}

// firstDifference shows where two texts begin to differ.
func firstDifference(a, b []byte) string {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	part := func(s []byte) []byte { return s[max(0, i-100):min(len(s), i+100)] }
	return fmt.Sprintf("%q instead of %q", part(a), part(b))
}
