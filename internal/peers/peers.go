// Package peers knows which of several servers with the same objects live, and which of them does
// what one of them alone may do at a time, such as asking a registry.
//
// Each server holds a Lease, as kube-apiservers do. Whose turn it is follows from the names of
// those that live (rendezvous hashing, Thaler and Ravishankar, 1998), so servers do not talk about
// it, and only what belonged to a server that goes, or will belong to one that comes, changes
// hands.
package peers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const (
	// LeaderLease is the Lease of the server that leads. A server of an earlier release that holds
	// it does everything.
	LeaderLease = "tidewaiter"
	// leasePrefix begins the names of the servers' Leases, which are in kube-system and have the
	// label of kube-apiserver's.
	leasePrefix = "tidewaiter-server-"
	leaseLabel  = "apiserver.kubernetes.io/identity"
	leaseOf     = "tidewaiter"

	// A server is gone when its Lease was not renewed for duration. One that could not renew its
	// own for deadline begins nothing more, so that clocks which run differently fast do no harm.
	duration = 10 * time.Second
	deadline = 7 * time.Second
	renewal  = 2 * time.Second
	// joining is how long a new server begins nothing, until all others have seen its Lease.
	joining = 3 * time.Second
	// forgotten is when the Lease of a server that is gone is deleted.
	forgotten = time.Minute
	// look is how often is looked whether a server is gone.
	look = time.Second

	// askedHosts is the annotation of a server's Lease that names the hosts which it asks, and
	// anyHost if they are more than maxAsked.
	askedHosts = "tidewaiter.dev/asked-hosts"
	anyHost    = "*"
	maxAsked   = 64
	// readsCompressed is the annotation of the Lease of a server that reads compressed values of
	// etcd.
	readsCompressed = "tidewaiter.dev/reads-compressed"
	// pausedHosts is the annotation that names the hosts which have asked the server for a pause,
	// each with the seconds that are left of it, as host=seconds. At most maxAsked are named, and
	// nobody is believed for longer than maxPause.
	pausedHosts = "tidewaiter.dev/paused-hosts"
	maxPause    = time.Hour
	maxHeard    = 16 * maxAsked // pauses that other servers know
	// askedFor is how long after a request a server counts as one that asks the host.
	askedFor = 10 * time.Second
)

// Peers are the servers, as one of them knows them. It is safe for concurrent use.
type Peers struct {
	self  string
	clock clock.WithTicker

	mu      sync.Mutex
	seen    map[string]*peer // by name; they are removed when they are forgotten
	joined  time.Time        // when the server saw its own Lease; zero before
	leader  string           // "" if nobody leads
	changed []func()
	state   string // what changed was last called for
	// hosts and when they were asked last; at most maxAsked and anyHost
	asked map[string]time.Time
	// hosts and until when they asked this server for a pause; at most maxAsked
	told  map[string]time.Time
	heard map[string]time.Time // the same of the other servers; at most maxHeard
}

// peer is what is known of a server.
type peer struct {
	lease   *coordinationv1.Lease // nil for one that only others have named
	renewed time.Time             // by the clock of this server
	asks    []string              // hosts
}

// New returns the Peers of a server that is about to start. Clock is for tests; nil is the real
// one.
func New(c clock.WithTicker) (*Peers, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	c = cmp.Or[clock.WithTicker](c, clock.RealClock{})
	// Kubernetes' controllers name themselves so. Each start has another name: what an earlier one
	// began has ended.
	return &Peers{self: host + "_" + string(uuid.NewUUID()), clock: c, seen: map[string]*peer{}, asked: map[string]time.Time{}, told: map[string]time.Time{}, heard: map[string]time.Time{}}, nil
}

// Self is the name of this server.
func (p *Peers) Self() string { return p.self }

// Lives reports whether the server of a name may still be at work.
func (p *Peers) Lives(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.seen[name]
	if s == nil { // its Lease may be on the way
		s = &peer{renewed: p.clock.Now()}
		p.seen[name] = s
	}
	return s.lives(p.clock.Now())
}

func (s *peer) lives(now time.Time) bool { return now.Sub(s.renewed) < duration }

// Owns reports whether what a key names is for this server to do. At most one server is told so,
// but for the seconds in which servers come and go.
func (p *Peers) Owns(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if !p.takesPart(now) {
		return false
	}
	first, highest := "", uint64(0)
	for name, s := range p.seen {
		if s.lease == nil || !s.lives(now) {
			continue
		}
		sum := sha256.Sum256([]byte(name + "\x00" + key))
		if rank := binary.BigEndian.Uint64(sum[:]); first == "" || rank > highest {
			first, highest = name, rank
		}
	}
	return first == p.self
}

// takesPart reports whether this server may begin something. mu is held.
func (p *Peers) takesPart(now time.Time) bool {
	own := p.seen[p.self]
	if own == nil || own.lease == nil || p.joined.IsZero() || now.Sub(p.joined) < joining || now.Sub(own.lease.Spec.RenewTime.Time) >= deadline {
		return false
	}
	leads := p.seen[p.leader]
	return p.leader == "" || leads != nil && leads.lease != nil
}

// Sharing returns how many servers ask a host now. This server is about to, and does not need to
// own the host. Until the others know that it asks, which takes as long as a renewal of its Lease,
// all of them count.
func (p *Peers) Sharing(host string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if _, known := p.asked[host]; known || p.asking(now) < maxAsked {
		p.asked[host] = now
	} else {
		p.asked[anyHost] = now
	}
	known := p.seen[p.self] != nil && p.seen[p.self].asksFor(host)
	n := 1
	for name, s := range p.seen {
		if name != p.self && s.lease != nil && s.lives(now) && (!known || s.asksFor(host)) {
			n++
		}
	}
	return n
}

// asking returns how many hosts this server asks. mu is held.
func (p *Peers) asking(now time.Time) int {
	maps.DeleteFunc(p.asked, func(_ string, at time.Time) bool { return now.Sub(at) >= askedFor })
	return len(p.asked)
}

func (s *peer) asksFor(host string) bool {
	return slices.ContainsFunc(s.asks, func(asked string) bool { return asked == host || asked == anyHost })
}

// Paused notes that a host has asked this server for a pause from now on, which the others know
// after a renewal of its Lease.
func (p *Peers) Paused(host string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause(p.told, host, p.clock.Now(), d, maxAsked)
}

// PauseLeft returns for how long a host is not to be asked, by what it has asked the other servers
// for.
func (p *Peers) PauseLeft(host string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[host].Sub(p.clock.Now())
}

// pause notes a pause of a host if it is the longest. Of most hosts others are not noted.
func pause(until map[string]time.Time, host string, now time.Time, d time.Duration, most int) {
	maps.DeleteFunc(until, func(_ string, at time.Time) bool { return !at.After(now) })
	if at := now.Add(min(d, maxPause)); at.After(now) && at.After(until[host]) && (len(until) < most || !until[host].IsZero()) {
		until[host] = at
	}
}

// writePauses is the annotation for pauses. No host has a space or an equals sign in it.
func writePauses(until map[string]time.Time, now time.Time) string {
	var text []string
	for _, host := range slices.Sorted(maps.Keys(until)) {
		if left := until[host].Sub(now); left > 0 {
			text = append(text, fmt.Sprintf("%s=%d", host, int(math.Ceil(left.Seconds()))))
		}
	}
	return strings.Join(text, " ")
}

// readPauses calls pause with what writePauses has written, for at most maxAsked hosts. What it has
// not written is passed over.
func readPauses(text string, pause func(host string, d time.Duration)) {
	fields := strings.Fields(text)
	for _, field := range fields[:min(len(fields), maxAsked)] {
		host, seconds, _ := strings.Cut(field, "=")
		if n, err := strconv.ParseUint(seconds, 10, 31); err == nil && n > 0 && host != "" {
			pause(host, time.Duration(n)*time.Second)
		}
	}
}

// mark completes the Lease of this server.
func (p *Peers) mark(l *coordinationv1.Lease) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.Labels = map[string]string{leaseLabel: leaseOf}
	l.Annotations = map[string]string{readsCompressed: "true"}
	if p.asking(p.clock.Now()) > 0 { // no host has a space in it
		l.Annotations[askedHosts] = strings.Join(slices.Sorted(maps.Keys(p.asked)), " ")
	}
	if pauses := writePauses(p.told, p.clock.Now()); pauses != "" {
		l.Annotations[pausedHosts] = pauses
	}
	return nil
}

// AllReadCompressed reports whether this server and all others that may be at work read compressed
// values of etcd: one of an earlier release, which is being replaced, does not.
func (p *Peers) AllReadCompressed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for _, s := range p.seen {
		if s.lives(now) && (s.lease == nil || s.lease.Annotations[readsCompressed] == "") {
			return false
		}
	}
	return p.takesPart(now)
}

// OnChange has f called when other answers may be given than before.
func (p *Peers) OnChange(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = append(p.changed, f)
}

// Run makes this server one of them for as long as work runs, which is to end when ctx is done.
func (p *Peers) Run(ctx context.Context, client kubernetes.Interface, work func(context.Context) error) error {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	// The Leases of servers and the leader's alone: another one that cannot be read fails a list of
	// all.
	followed := []informers.SharedInformerFactory{}
	for _, only := range []internalinterfaces.TweakListOptionsFunc{
		func(o *metav1.ListOptions) { o.LabelSelector = leaseLabel + "=" + leaseOf },
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + LeaderLease },
	} {
		shared := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceSystem), informers.WithTweakListOptions(only))
		if _, err := shared.Coordination().V1().Leases().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { p.see(o) },
			UpdateFunc: func(_, o any) { p.see(o) },
			DeleteFunc: p.lost,
		}); err != nil {
			return err
		}
		followed = append(followed, shared)
	}
	_, id, _ := strings.Cut(p.self, "_")
	holder := lease.NewController(p.clock, client, p.self, int32(duration.Seconds()), nil, renewal, leasePrefix+id, metav1.NamespaceSystem, p.mark)
	for _, shared := range followed {
		shared.Start(keeping.Done())
	}
	var running sync.WaitGroup
	running.Go(func() { holder.Run(keeping) })
	running.Go(func() { p.lookEvery(keeping, client) })
	err := work(ctx)
	stop()
	running.Wait()
	for _, shared := range followed {
		shared.Shutdown()
	}
	holder.Stop() // the others need not wait
	return err
}

// see takes a Lease.
func (p *Peers) see(o any) {
	l, ok := o.(*coordinationv1.Lease)
	if !ok {
		return
	}
	name := ptr.Deref(l.Spec.HolderIdentity, "")
	p.mu.Lock()
	switch s := p.seen[name]; {
	case l.Name == LeaderLease:
		p.leader = name
	case name == "" || l.Labels[leaseLabel] != leaseOf || l.Spec.RenewTime == nil:
	case s == nil || s.lease == nil || !s.lease.Spec.RenewTime.Equal(l.Spec.RenewTime):
		now := p.clock.Now()
		asks := strings.Fields(l.Annotations[askedHosts])
		p.seen[name] = &peer{lease: l, renewed: now, asks: asks[:min(len(asks), maxAsked+1)]}
		if name == p.self && p.joined.IsZero() {
			p.joined = now
		}
		if name != p.self {
			readPauses(l.Annotations[pausedHosts], func(host string, d time.Duration) { pause(p.heard, host, now, d, maxHeard) })
		}
	}
	p.mu.Unlock()
	p.notify()
}

// lost takes a Lease that was deleted.
func (p *Peers) lost(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	l, ok := o.(*coordinationv1.Lease)
	if !ok {
		return
	}
	p.mu.Lock()
	if l.Name == LeaderLease {
		p.leader = ""
	}
	maps.DeleteFunc(p.seen, func(_ string, s *peer) bool { return s.lease != nil && s.lease.Name == l.Name })
	if p.seen[p.self] == nil {
		p.joined = time.Time{}
	}
	p.mu.Unlock()
	p.notify()
}

// notify calls the functions that wait for a change, if there is one.
func (p *Peers) notify() {
	p.mu.Lock()
	now, servers := p.clock.Now(), 0
	var living []string
	for name, s := range p.seen {
		if s.lives(now) {
			living = append(living, name)
			if s.lease != nil {
				servers++
			}
		}
	}
	slices.Sort(living)
	state := strings.Join(living, " ")
	if !p.takesPart(now) {
		state, servers = "", 0
	}
	var changed []func()
	if state != p.state {
		p.state, changed = state, slices.Clone(p.changed)
		slog.Info("This server shares the imports with others", "servers", servers)
	}
	p.mu.Unlock()
	for _, f := range changed {
		f()
	}
}

// lookEvery finds servers that are gone, and deletes the Leases of those that have been for long,
// until ctx is done.
func (p *Peers) lookEvery(ctx context.Context, client kubernetes.Interface) {
	ticker := p.clock.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		p.notify()
		for _, l := range p.forget() {
			// The others try, too, and what fails is tried again at the next look.
			_ = client.CoordinationV1().Leases(l.Namespace).Delete(ctx, l.Name, *metav1.NewRVDeletionPrecondition(l.ResourceVersion))
		}
	}
}

// forget returns the Leases of the servers that have been gone for long, and removes those without.
func (p *Peers) forget() (leases []*coordinationv1.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for name, s := range p.seen {
		if now.Sub(s.renewed) < forgotten || name == p.self {
			continue
		}
		if s.lease != nil {
			leases = append(leases, s.lease)
		} else {
			delete(p.seen, name)
		}
	}
	return leases
}
