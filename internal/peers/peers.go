// Package peers knows which of several servers with the same objects are alive, and which of them
// owns work that only one may do at a time, such as sending requests to a registry.
//
// Each server holds a Lease, as kube-apiservers do. Each server computes the owner from the names
// of the living servers (rendezvous hashing, Thaler and Ravishankar, 1998), so they need not
// negotiate. When a server goes, only its own work gets another owner; when a server comes, only
// the work that it gets.
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
	// LeaderLease is the Lease of the leader. If a server of an earlier release holds it, that server
	// does all work.
	LeaderLease = "tidewaiter"
	// leasePrefix begins the names of the servers' Leases, which are in kube-system and have the
	// label of kube-apiserver's.
	leasePrefix = "tidewaiter-server-"
	leaseLabel  = "apiserver.kubernetes.io/identity"
	leaseOf     = "tidewaiter"

	// A server counts as gone when its Lease was not renewed for duration. A server that could not
	// renew its own Lease for deadline begins no more work. deadline is shorter than duration, so that
	// clocks of different speeds do no harm.
	duration = 10 * time.Second
	deadline = 7 * time.Second
	renewal  = 2 * time.Second
	// joining is how long a new server begins no work, so that all others see its Lease first.
	joining = 3 * time.Second
	// forgotten is how long after its last renewal the Lease of a server is deleted.
	forgotten = time.Minute
	// look is the pause between two looks for servers that are gone.
	look = time.Second

	// askedHosts is the annotation of a server's Lease with the hosts to which it sends requests, and
	// anyHost if there are more than maxAsked.
	askedHosts = "tidewaiter.dev/asked-hosts"
	anyHost    = "*"
	maxAsked   = 64
	// readsCompressed is the annotation of the Lease of a server that reads compressed values of
	// etcd.
	readsCompressed = "tidewaiter.dev/reads-compressed"
	// pausedHosts is the annotation with the hosts that have requested a pause from the server, each
	// as host=seconds with the seconds that are left. It has at most maxAsked hosts. A pause counts
	// for at most maxPause.
	pausedHosts = "tidewaiter.dev/paused-hosts"
	maxPause    = time.Hour
	maxHeard    = 16 * maxAsked // bounds the pauses that other servers report
	// announced is the annotation with what a server tells the others, of at most maxAnnounced bytes.
	announced    = "tidewaiter.dev/lost-registries"
	maxAnnounced = 16 << 10
	// askedFor is how long after its last request to a host a server counts as using the host.
	askedFor = 10 * time.Second
)

// Peers are the servers with the same objects, as one of them sees them. It is safe for concurrent
// use.
type Peers struct {
	self  string
	clock clock.WithTicker

	mu      sync.Mutex
	seen    map[string]*peer // by name; they are removed when they are forgotten
	joined  time.Time        // when the server saw its own Lease; zero before
	leader  string           // "" if there is none
	changed []func()
	state   string // the state at the last call of changed
	// when the last request was sent to a host; at most maxAsked hosts, and anyHost
	asked map[string]time.Time
	// end of the pause that a host has requested from this server; at most maxAsked
	ownPauses   map[string]time.Time
	otherPauses map[string]time.Time // the same, as other servers report it; at most maxHeard
}

// peer is a server, as far as this one knows it.
type peer struct {
	lease   *coordinationv1.Lease // nil if no Lease of the server has been seen
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
	// Kubernetes' controllers have names of this form. Each start has a new name, because the work of
	// the earlier start has ended.
	return &Peers{self: host + "_" + string(uuid.NewUUID()), clock: c, seen: map[string]*peer{}, asked: map[string]time.Time{}, ownPauses: map[string]time.Time{}, otherPauses: map[string]time.Time{}}, nil
}

// Self is the name of this server.
func (p *Peers) Self() string { return p.self }

// Lives reports whether the server with a name may still be at work.
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

// Owns reports whether this server owns the work that a key names. At most one server owns it,
// except for some seconds when servers come and go.
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

// takesPart reports whether this server may begin work. The caller holds mu.
func (p *Peers) takesPart(now time.Time) bool {
	own := p.seen[p.self]
	if own == nil || own.lease == nil || p.joined.IsZero() || now.Sub(p.joined) < joining || now.Sub(own.lease.Spec.RenewTime.Time) >= deadline {
		return false
	}
	leads := p.seen[p.leader]
	return p.leader == "" || leads != nil && leads.lease != nil
}

// Sharing returns how many servers use a host now, including this one, which is about to send a
// request and need not own the host. The next renewal of its Lease announces that to the others;
// until then, all living servers count.
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

// asking returns how many hosts this server uses. The caller holds mu.
func (p *Peers) asking(now time.Time) int {
	maps.DeleteFunc(p.asked, func(_ string, at time.Time) bool { return now.Sub(at) >= askedFor })
	return len(p.asked)
}

func (s *peer) asksFor(host string) bool {
	return slices.ContainsFunc(s.asks, func(asked string) bool { return asked == host || asked == anyHost })
}

// Paused records that a host has requested a pause from this server. The next renewal of its Lease
// announces that to the others.
func (p *Peers) Paused(host string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause(p.ownPauses, host, p.clock.Now(), d, maxAsked)
}

// PauseLeft returns the rest of the longest pause that a host has requested from other servers.
func (p *Peers) PauseLeft(host string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.otherPauses[host].Sub(p.clock.Now())
}

// pause records a pause of a host unless a longer one is recorded. until has at most limit hosts.
func pause(until map[string]time.Time, host string, now time.Time, d time.Duration, limit int) {
	maps.DeleteFunc(until, func(_ string, at time.Time) bool { return !at.After(now) })
	if at := now.Add(min(d, maxPause)); at.After(now) && at.After(until[host]) && (len(until) < limit || !until[host].IsZero()) {
		until[host] = at
	}
}

// writePauses returns the annotation for pauses. Hosts have no spaces or equals signs.
func writePauses(until map[string]time.Time, now time.Time) string {
	var text []string
	for _, host := range slices.Sorted(maps.Keys(until)) {
		if left := until[host].Sub(now); left > 0 {
			text = append(text, fmt.Sprintf("%s=%d", host, int(math.Ceil(left.Seconds()))))
		}
	}
	return strings.Join(text, " ")
}

// readPauses parses the annotation that writePauses returns, and calls pause with each host, but at
// most maxAsked. It skips invalid parts.
func readPauses(text string, pause func(host string, d time.Duration)) {
	fields := strings.Fields(text)
	for _, field := range fields[:min(len(fields), maxAsked)] {
		host, seconds, _ := strings.Cut(field, "=")
		if n, err := strconv.ParseUint(seconds, 10, 31); err == nil && n > 0 && host != "" {
			pause(host, time.Duration(n)*time.Second)
		}
	}
}

// mark sets the label and the annotations of this server's Lease, which has a text for the others.
func (p *Peers) mark(l *coordinationv1.Lease, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.Labels = map[string]string{leaseLabel: leaseOf}
	l.Annotations = map[string]string{readsCompressed: "true"}
	if p.asking(p.clock.Now()) > 0 { // hosts have no spaces
		l.Annotations[askedHosts] = strings.Join(slices.Sorted(maps.Keys(p.asked)), " ")
	}
	if pauses := writePauses(p.ownPauses, p.clock.Now()); pauses != "" {
		l.Annotations[pausedHosts] = pauses
	}
	if text != "" && len(text) <= maxAnnounced {
		l.Annotations[announced] = text
	}
}

// Announced returns what the other living servers announce.
func (p *Peers) Announced() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	for _, name := range slices.Sorted(maps.Keys(p.seen)) {
		if s := p.seen[name]; name != p.self && s.lease != nil && s.lives(now) {
			if says := s.lease.Annotations[announced]; says != "" && len(says) <= maxAnnounced {
				all = append(all, says)
			}
		}
	}
	return all
}

// AllReadCompressed reports whether this server and all others that may be at work read compressed
// values of etcd: a server of an earlier release does not, and may run during an upgrade.
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

// OnChange registers a function that is called when the results of the other methods may have
// changed.
func (p *Peers) OnChange(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = append(p.changed, f)
}

// Run makes this server one of the peers while work runs. work must end when ctx is done. Each
// renewal of the Lease announces the text that announce returns to the other servers, unless it is
// empty or has more than 16 KiB. announce is called without locks.
func (p *Peers) Run(ctx context.Context, client kubernetes.Interface, announce func() string, work func(context.Context) error) error {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	// Follow only the Leases of servers and of the leader: a list of all Leases fails if it has one
	// that cannot be read.
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
	holder := lease.NewController(p.clock, client, p.self, int32(duration.Seconds()), nil, renewal, leasePrefix+id, metav1.NamespaceSystem, func(l *coordinationv1.Lease) error {
		p.mark(l, announce())
		return nil
	})
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
	holder.Stop() // deletes the Lease, so that the others need not wait
	return err
}

// see records a Lease that was created or updated.
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
			readPauses(l.Annotations[pausedHosts], func(host string, d time.Duration) { pause(p.otherPauses, host, now, d, maxHeard) })
		}
	}
	p.mu.Unlock()
	p.notify()
}

// lost records that a Lease was deleted.
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

// notify calls the functions of OnChange if there is a change.
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

// lookEvery regularly looks for servers that are gone, and deletes Leases that forget returns,
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
			// All servers try this, and each tries again at its next look.
			_ = client.CoordinationV1().Leases(l.Namespace).Delete(ctx, l.Name, *metav1.NewRVDeletionPrecondition(l.ResourceVersion))
		}
	}
}

// forget returns the Leases that were not renewed for forgotten. It removes servers without a Lease
// after the same time.
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
