package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// peersTest has servers that see each other's Leases at once.
type peersTest struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	all   []*Peers
}

func newTest(t *testing.T, n int) *peersTest {
	w := &peersTest{t, clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), nil}
	for range n {
		p, err := New(w.clock)
		if err != nil {
			t.Fatal(err)
		}
		w.all = append(w.all, p)
	}
	return w
}

// show shows a Lease to all servers.
func (w *peersTest) show(name, holder string) {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: w.clock.Now()}}}
	if holder != "" {
		l.Spec.HolderIdentity = ptr.To(holder)
	}
	if name != LeaderLease {
		l.Labels = map[string]string{leaseLabel: leaseOf}
	}
	for _, p := range w.all {
		p.see(l)
	}
}

// renewFor lets servers renew their Leases once a second, for some seconds.
func (w *peersTest) renewFor(seconds int, servers ...int) {
	for range seconds {
		for _, i := range servers {
			w.show(fmt.Sprint(leasePrefix, i), w.all[i].self)
		}
		w.clock.Step(time.Second)
	}
}

const keys = 300

// owners returns the server that owns each key, -1 for none. It fails the test if two servers own
// one key.
func (w *peersTest) owners() (owners [keys]int) {
	w.t.Helper()
	for k := range owners {
		owners[k] = -1
		for i, p := range w.all {
			if !p.Owns(fmt.Sprintf("registry-%d.example.com", k)) {
				continue
			}
			if owners[k] >= 0 {
				w.t.Fatalf("key %d has two owners", k)
			}
			owners[k] = i
		}
	}
	return owners
}

func count(owners [keys]int, of int) (n int) {
	for _, i := range owners {
		if i == of {
			n++
		}
	}
	return n
}

// TestEachKeyHasOneOwner: each key has one owner among the living servers, and each server has a
// share of the keys. The keys of a server that vanishes have no owner until the server counts as
// gone, also for itself. All other keys keep their owners. The same holds when a server comes.
func TestEachKeyHasOneOwner(t *testing.T) {
	w := newTest(t, 3)
	w.renewFor(1, 0, 1)
	if n := count(w.owners(), -1); n != keys {
		t.Errorf("servers that others may not have seen yet own %d keys", keys-n)
	}
	w.renewFor(3, 0, 1)
	byTwo := w.owners()
	for i := range 2 {
		if n := count(byTwo, i); n < keys/4 || n+count(byTwo, 1-i) != keys {
			t.Errorf("server %d of 2 owns %d of %d keys", i, n, keys)
		}
	}

	w.renewFor(1, 0, 1, 2)
	for k, i := range w.owners() {
		if i >= 0 && i != byTwo[k] {
			t.Errorf("key %d went from %d to %d while another server came", k, byTwo[k], i)
		}
	}
	w.renewFor(3, 0, 1, 2)
	byThree := w.owners()
	if n := count(byThree, 2); n < keys/5 {
		t.Errorf("the third server owns %d of %d keys", n, keys)
	}
	for k, i := range byThree {
		if i != 2 && i != byTwo[k] {
			t.Errorf("key %d went from %d to %d because of another server", k, byTwo[k], i)
		}
	}

	w.renewFor(8, 0, 1) // server 2 is cut off
	for k, i := range w.owners() {
		if byThree[k] == 2 && i != -1 || byThree[k] != 2 && i != byThree[k] {
			t.Errorf("key %d went from %d to %d before the server was gone", k, byThree[k], i)
		}
	}
	if !w.all[0].Lives(w.all[2].self) {
		t.Error("a server that could not renew its Lease for 8 s is gone")
	}
	w.renewFor(3, 0, 1)
	if w.owners() != byTwo {
		t.Error("the others do not own the keys of a server that is gone")
	}
	if w.all[0].Lives(w.all[2].self) {
		t.Error("a server that could not renew its Lease for 11 s lives")
	}

	w.renewFor(50, 0, 1)
	if gone := w.all[0].forget(); len(gone) != 1 || *gone[0].Spec.HolderIdentity != w.all[2].self {
		t.Errorf("the Leases to be deleted: %v", gone)
	}
}

// TestUnseenServer: a name without a Lease may belong to a server whose Lease is about to come.
func TestUnseenServer(t *testing.T) {
	w := newTest(t, 1)
	w.renewFor(4, 0)
	p := w.all[0]
	if !p.Lives("unseen") || count(w.owners(), 0) != keys {
		t.Error("a server that was not seen yet counts as gone, or owns keys")
	}
	w.renewFor(11, 0)
	if p.Lives("unseen") {
		t.Error("a server without a Lease lives for ever")
	}
	w.renewFor(60, 0)
	if leases := p.forget(); len(leases) != 0 || p.seen["unseen"] != nil {
		t.Error("a server without a Lease is not forgotten")
	}
}

// TestLeaderOfAnEarlierRelease: if a server of an earlier release leads, it does all work.
func TestLeaderOfAnEarlierRelease(t *testing.T) {
	w := newTest(t, 2)
	w.show(LeaderLease, "earlier")
	w.renewFor(5, 0, 1)
	if n := count(w.owners(), -1); n != keys {
		t.Errorf("beside a leader of an earlier release, others own %d keys", keys-n)
	}
	w.show(LeaderLease, "")
	if count(w.owners(), -1) != 0 {
		t.Error("a key has no owner although there is no leader")
	}
	w.show(LeaderLease, w.all[1].self)
	if count(w.owners(), -1) != 0 {
		t.Error("a key has no owner although one of the servers leads")
	}
}

// running is a running server.
type running struct {
	*Peers
	changes atomic.Int64
	stop    context.CancelFunc
	done    chan error
}

func start(t *testing.T, client kubernetes.Interface) *running {
	t.Helper()
	p, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &running{Peers: p, stop: stop, done: make(chan error, 1)}
	p.OnChange(func() { r.changes.Add(1) })
	go func() {
		r.done <- p.Run(ctx, client, func() string {
			p.Owns("registry.example.com")
			return "[a loss]"
		}, func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	return r
}

// end stops a server.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}

func (r *running) owned() (n int) {
	for k := range keys {
		if r.Owns(fmt.Sprint(k)) {
			n++
		}
	}
	return n
}

// TestRun: running servers hold Leases and see each other. When their work has ended, their Leases
// are deleted.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		a, b := start(t, client), start(t, client)
		time.Sleep(5 * time.Second)
		if x, y := a.owned(), b.owned(); x == 0 || y == 0 || x+y != keys {
			t.Errorf("of %d keys one owns %d, the other %d", keys, x, y)
		}
		time.Sleep(time.Minute)
		before := b.changes.Load()
		if x := a.owned(); x == 0 || before == 0 {
			t.Errorf("after a minute one owns %d keys; changes: %d", x, before)
		}
		if says := b.Announced(); !slices.Equal(says, []string{"[a loss]"}) {
			t.Errorf("one announces %q to the other", says)
		}
		a.end(t)
		synctest.Wait()
		if n := b.owned(); n != keys || b.changes.Load() != before+1 {
			t.Errorf("when the other has left, it owns %d of %d keys; changes: %d, then %d", n, keys, before, b.changes.Load())
		}
		b.end(t)
		if list, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("Leases are left: %v, %v", list, err)
		}
	})
}

// TestServersOfTwoReleases: servers write compressed values only after all servers that may be at
// work can read them.
func TestServersOfTwoReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		a := start(t, client)
		if a.AllReadCompressed() {
			t.Error("a server that has seen no Lease, not even its own, expects all to read compressed values")
		}
		time.Sleep(5 * time.Second)
		if !a.AllReadCompressed() {
			t.Error("a server alone does not read its own values")
		}
		leases := client.CoordinationV1().Leases("kube-system")
		old := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: leasePrefix + "old", Namespace: "kube-system", Labels: map[string]string{leaseLabel: leaseOf}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("old"), RenewTime: &metav1.MicroTime{Time: time.Now()}},
		}
		if _, err := leases.Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if a.AllReadCompressed() {
			t.Error("compressed values are allowed beside a server of an earlier release")
		}
		time.Sleep(duration + look)
		if !a.AllReadCompressed() {
			t.Error("compressed values are not allowed although the server of an earlier release is gone")
		}
		a.end(t)
	})
}

// TestUnreadableLeaseStopsNoServer: servers do not list all Leases, because such a list fails if
// one Lease cannot be read.
func TestUnreadableLeaseStopsNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			r := action.(clienttesting.ListAction).GetListRestrictions()
			switch {
			case !r.Fields.Empty(): // there is no leader
				return true, &coordinationv1.LeaseList{}, nil
			case r.Labels.Empty():
				return true, nil, errors.New("failed to read one or more leases")
			}
			return false, nil, nil
		})
		client.PrependWatchReactor("leases", func(action clienttesting.Action) (bool, watch.Interface, error) {
			// a fake client ignores field selectors
			return !action.(clienttesting.WatchAction).GetWatchRestrictions().Fields.Empty(), watch.NewFake(), nil
		})
		a := start(t, client)
		time.Sleep(5 * time.Second)
		if !a.Owns("registry.example.com") {
			t.Error("the server owns no keys")
		}
		a.end(t)
	})
}

// TestServersShareAPause: after a renewal of its Lease, the other servers know the pause that a
// registry has requested from a server, even after the server has gone. The pause ends on time for
// them, too.
func TestServersShareAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		a, b := start(t, client), start(t, client)
		const host = "registry.example.com:5000"
		time.Sleep(5 * time.Second)
		a.Paused(host, time.Hour)
		a.Paused(host, time.Minute)
		begun := time.Now()
		time.Sleep(3 * time.Second)
		if a.PauseLeft(host) > 0 {
			t.Error("a server gets its own pause back")
		}
		left := func(when string) {
			t.Helper()
			if got, want := b.PauseLeft(host), time.Hour-time.Since(begun); got < want || got > want+time.Second {
				t.Errorf("%s: the rest of the pause is %s, want %s", when, got, want)
			}
		}
		left("soon")
		for i := range 2 * maxAsked {
			a.Paused(fmt.Sprint("host-", i), 2*time.Hour)
		}
		time.Sleep(3 * time.Second)
		left("later")
		if len(a.ownPauses) != maxAsked || len(b.otherPauses) != maxAsked {
			t.Errorf("%d pauses are reported, and %d are received, want %d", len(a.ownPauses), len(b.otherPauses), maxAsked)
		}
		a.end(t)
		time.Sleep(30 * time.Minute)
		left("after the server has ended")
		time.Sleep(30 * time.Minute)
		if got := b.PauseLeft(host); got > 0 {
			t.Errorf("after an hour the rest of the pause is %s", got)
		}
		b.end(t)
	})
}

// FuzzReadPauses: any annotation pauses a bounded number of hosts for a bounded time. readPauses
// reads what writePauses writes.
func FuzzReadPauses(f *testing.F) {
	for _, seed := range []string{"", "registry.example.com:5000=60", "a=1 b=86400", "a=99999999999 =5 b=-1 c d=x", strings.Repeat("h=1 ", 2*maxAsked)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		now, n := time.Unix(0, 0), 0
		until := map[string]time.Time{}
		readPauses(text, func(host string, d time.Duration) {
			n++
			if d <= 0 || strings.ContainsFunc(host, unicode.IsSpace) {
				t.Errorf("%q pauses for %s", host, d)
			}
			pause(until, host, now, d, maxAsked)
			if until[host].Sub(now) > maxPause {
				t.Errorf("%q is paused for %s", host, until[host].Sub(now))
			}
		})
		again := map[string]time.Time{}
		readPauses(writePauses(until, now), func(host string, d time.Duration) { pause(again, host, now, d, maxAsked) })
		if n > maxAsked || !maps.Equal(until, again) {
			t.Errorf("%q pauses %d hosts, %v, and is read back as %v", text, n, until, again)
		}
	})
}

// TestServersShareAHost: a server counts the servers that use a host. Until they know that it uses
// the host, too, it counts all servers.
func TestServersShareAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		a, b, c := start(t, client), start(t, client), start(t, client)
		const host = "registry.example.com:5000"
		expect := func(when string, r *running, want int) {
			t.Helper()
			if got := r.Sharing(host); got != want {
				t.Errorf("%s: %d servers use the host, want %d", when, got, want)
			}
		}
		time.Sleep(5 * time.Second)
		expect("before the others know", a, 3)
		time.Sleep(3 * time.Second)
		expect("alone", a, 1)
		expect("the second, before the others know", b, 3)
		time.Sleep(3 * time.Second)
		expect("two", a, 2)
		expect("two", b, 2)
		time.Sleep(9 * time.Second)
		expect("the first goes on", a, 2)
		time.Sleep(5 * time.Second)
		expect("the second has ended", a, 1)

		for i := range 3 * maxAsked {
			b.Sharing(fmt.Sprint("host-", i))
		}
		if n := len(b.asked); n > maxAsked+1 {
			t.Errorf("%d hosts are remembered", n)
		}
		time.Sleep(3 * time.Second)
		expect("beside a server that uses more hosts than its Lease may name", a, 2)
		b.end(t)
		synctest.Wait()
		expect("beside a server that has left", a, 1)
		a.end(t)
		c.end(t)
	})
}

// What a server announces, the others know while it lives. A text that is too long is not
// announced.
func TestAnnounced(t *testing.T) {
	w := newTest(t, 2)
	says := "[a loss]"
	renew := func() {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leasePrefix + "0"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(w.all[0].self), RenewTime: &metav1.MicroTime{Time: w.clock.Now()}}}
		w.all[0].mark(l, says)
		for _, p := range w.all {
			p.see(l)
		}
	}
	renew()
	if own, other := w.all[0].Announced(), w.all[1].Announced(); len(own) != 0 || len(other) != 1 || other[0] != says {
		t.Errorf("announced are %q to itself and %q to the other", own, other)
	}
	w.clock.Step(duration)
	if all := w.all[1].Announced(); len(all) != 0 {
		t.Errorf("a server that is gone announces %q", all)
	}
	says = strings.Repeat("x", maxAnnounced+1)
	renew()
	if all := w.all[1].Announced(); len(all) != 0 {
		t.Errorf("%d bytes are announced", len(all[0]))
	}
}
