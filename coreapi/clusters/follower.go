package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/relay"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

const (
	// userAgent is the user agent of requests to clusters.
	userAgent = "tidewaiter"
	// writers is how many goroutines store pods, for each cluster.
	writers = 8
	// tick is how often a cluster's state and credential are checked.
	tick = 10 * time.Second
	// seenEvery is how often the time of the last contact is stored.
	seenEvery = time.Minute
	// maxBackoff is the longest wait between two attempts to reach a cluster.
	maxBackoff = 30 * time.Second
	// beatEvery is the time between two requests that check whether a cluster still answers, and
	// beatPatience how long an answer may take.
	beatEvery    = 2 * time.Second
	beatPatience = 3 * time.Second
	// fresh is how old the last answer may be. If it is older, it is unknown what is used there,
	// and all is read again.
	fresh = 5 * time.Second
)

// Reasons of the conditions of a Cluster.
const (
	reasonFollowing   = "Following"
	reasonConnecting  = "Connecting"
	reasonUnreachable = "Unreachable"
	reasonRead        = "PodsRead"
)

// follower follows the pods of one cluster.
type follower struct {
	trouble warn.Trouble

	clusters *Clusters
	source   Source
	state    *reconcile.Controller[string] // stores the state

	workloads []*workloads

	mu         sync.Mutex
	server     string
	end        time.Time // of the credential; zero if it has none, or none that is known
	endKnown   bool
	synced     bool // all pods were stored once, maybe by an earlier process
	watchState      // of the pods
	// the last answer while what was stored was what the cluster has; zero for never
	seen  time.Time
	pods  int
	fills int64 // of the store, when it began to store pods
	// told are the pods that were reported to the observer in earlier sessions, and not reported as
	// gone. Only the sessions use it, one after the other.
	told map[string]struct{}
}

func newFollower(c *Clusters, s Source) *follower {
	f := &follower{clusters: c, source: s}
	f.state = reconcile.New(f, reconcile.Options[string]{Task: "storing the state of a cluster", Clock: c.clock})
	for _, kind := range s.Workloads {
		f.workloads = append(f.workloads, &workloads{Workload: kind, follower: f})
	}
	return f
}

// changed has the state stored without delay.
func (f *follower) changed() { f.state.Add(f.source.Name) }

// restore takes over the state that an earlier process stored.
func (f *follower) restore(s *ClusterStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced, f.pods = meta.IsStatusConditionTrue(s.Conditions, ConditionSynced), int(s.Pods)
	if s.LastSeen != nil {
		f.seen = s.LastSeen.Time
	}
}

func (f *follower) isSynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced
}

// staleReason returns why the known pods may be out of date, or "".
func (f *follower) staleReason(now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(now)
	why := ""
	if f.fault != nil {
		why = ": " + f.fault.Error()
	}
	switch {
	case !f.synced:
		return fmt.Sprintf("the pods of cluster %s are not known yet%s", f.source.Name, why)
	case f.fills != f.clusters.fills():
		return fmt.Sprintf("the pods of cluster %s are read again: %v", f.source.Name, errFilled)
	case !f.current || now.Sub(f.seen) > fresh:
		return fmt.Sprintf("the pods of cluster %s are those of %s ago%s", f.source.Name, age(now.Sub(f.seen)), why)
	}
	return ""
}

// touch notes that the server's own pods are up to date while their changes are followed: there is
// no network between them and the server. The caller holds mu.
func (f *follower) touch(now time.Time) {
	if f.source.own != nil && f.current && f.open {
		f.seen = now
	}
}

// away notes that the cluster could not be followed, and why. New data counts once everything has
// been read.
func (f *follower) away(err error) {
	f.mu.Lock()
	if f.touch(f.clusters.clock.Now()); f.current {
		f.clusters.observer.Away(f.source.Name, f.seen)
	}
	f.mu.Unlock()
	f.closed(&f.watchState, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = false
	for _, w := range f.workloads {
		w.current, w.open = false, false
	}
}

// answered notes that the cluster has answered. It returns false if the pods were not followed for
// too long meanwhile.
func (f *follower) answered(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current && f.open {
		if now.Sub(f.seen) > fresh {
			return false
		}
		f.seen = now
	}
	return true
}

// beats sends requests to the cluster until it has not answered for too long, or ctx is done: a
// watch does not notice a connection that hangs. It requests a pod, because another server at the
// same address may answer without knowing the pods.
func (f *follower) beats(ctx context.Context, list cache.ListWithContextFunc) error {
	c := f.clusters.clock
	for last := c.Now(); ; {
		patient, done := context.WithTimeout(ctx, beatPatience)
		_, err := list(patient, metav1.ListOptions{Limit: 1})
		done()
		now := c.Now()
		switch silent := now.Sub(last); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case silent > fresh && err == nil: // changes that arrived meanwhile may not be stored yet
			return fmt.Errorf("it did not answer for %s", age(silent))
		case silent > fresh:
			return fmt.Errorf("checking whether it answers: %w", err)
		case err != nil:
		case !f.answered(now):
			return errors.New("its pods could not be followed for a while")
		default:
			last = now
		}
		if !sleep(ctx, c, beatEvery) {
			return context.Cause(ctx)
		}
	}
}

// run follows the cluster until ctx is done.
func (f *follower) run(ctx context.Context) {
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reporting.Go(func() { f.report(ctx) })
	wait := time.Second
	for ctx.Err() == nil {
		started := f.clusters.clock.Now()
		err := f.session(ctx)
		f.away(err)
		if errors.Is(err, errChanged) || errors.Is(err, errFilled) {
			slog.Info("Following a cluster again from the beginning", "cluster", f.source.Name, "why", err)
			wait = time.Second
			continue
		}
		if ctx.Err() != nil {
			return
		}
		f.trouble.Begin("", "A cluster cannot be followed; its pods are not updated until it answers again", "cluster", f.source.Name, "err", err)
		if f.clusters.clock.Since(started) > maxBackoff {
			wait = time.Second
		}
		if !sleep(ctx, f.clusters.clock, wait) {
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// connection is how a cluster is reached with one credential.
type connection struct {
	config *restclient.Config
	client kubernetes.Interface
}

// podClient reads the pods of a cluster.
type podClient struct {
	list  cache.ListWithContextFunc
	watch cache.WatchFuncWithContext
}

// session follows the cluster with one credential, until the credential changes (errChanged), the
// store is filled anew (errFilled) or ctx is done.
func (f *follower) session(ctx context.Context) error {
	f.mu.Lock()
	f.fills = f.clusters.fills()
	f.mu.Unlock()
	if f.source.own != nil {
		return f.followPods(ctx, ownClient(f.source.own), nil)
	}
	config, err := f.source.Connect()
	if err != nil {
		return err
	}
	client, err := clientOf(config)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.server = config.Host
	f.end, f.endKnown = credentialEnd(config)
	f.mu.Unlock()
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	return f.followPods(ctx, podClient{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, o) },
	}, &connection{config, client})
}

// followPods follows the pods of the cluster and, by a connection, its nodes and workloads. It ends
// as session does.
func (f *follower) followPods(ctx context.Context, pods podClient, c *connection) (err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w := newWriter(f)
	defer func() { f.told = w.left() }() // after all has ended
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: f.listWatch(&f.watchState, pods.list, pods.watch),
		ObjectType:    &corev1.Pod{},
		Handler:       w,
		Transform:     reduce,
	})
	w.store = store

	var all sync.WaitGroup
	defer all.Wait()
	if c != nil {
		if w.nodes, err = f.followNodes(ctx, c.client, &all, w.moved); err != nil {
			return err
		}
		if err := f.followWorkloads(ctx, c.config, all.Go); err != nil {
			return err
		}
	}
	all.Go(func() { informer.RunWithContext(ctx) })
	all.Go(func() { _ = w.queue.Run(ctx) })
	if c != nil {
		all.Go(func() { end(f.beats(ctx, pods.list)) })
	}
	all.Go(func() {
		select {
		case <-informer.HasSyncedChecker().Done():
			w.begin(ctx)
		case <-ctx.Done():
		}
	})
	ticker := f.clusters.clock.NewTicker(tick)
	defer ticker.Stop()
	var seen *restclient.Config // at the last look
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C():
			if f.fills != f.clusters.fills() {
				end(errFilled)
				return errFilled
			}
			if c == nil {
				continue
			}
			now, err := f.source.Connect()
			// A change counts at the second look that finds the same: the first may have found a
			// file that was half written.
			if err == nil && !sameWay(c.config, now) && seen != nil && sameWay(seen, now) {
				end(errChanged)
				return errChanged
			}
			if seen = now; err != nil {
				seen = nil
			}
		}
	}
}

// clientOf returns a client of the API of a cluster.
func clientOf(config *restclient.Config) (kubernetes.Interface, error) {
	config = restclient.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.UserAgent = userAgent
	return kubernetes.NewForConfig(config)
}

// listWatch lists and watches what is followed of a cluster, and notes whether it can.
func (f *follower) listWatch(of *watchState, list cache.ListWithContextFunc, open cache.WatchFuncWithContext) cache.ListerWatcher {
	selected := fields.Everything()
	for _, namespace := range f.source.ExcludedNamespaces {
		selected = fields.AndSelectors(selected, fields.OneTermNotEqualSelector("metadata.namespace", namespace))
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selected.String()
			all, err := list(ctx, o)
			if err != nil {
				f.closed(of, fmt.Errorf("listing them: %w", err))
			}
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selected.String()
			w, err := open(ctx, o)
			if err != nil {
				f.closed(of, fmt.Errorf("watching them: %w", err))
				return nil, err
			}
			return relay.New(w, func(e watch.Event) watch.Event { return e }, f.opened(of)), nil
		},
	}
}

// report stores the state of the cluster until ctx is done, and at the end.
func (f *follower) report(ctx context.Context) {
	f.changed()
	_ = f.state.Run(ctx)
	if err := f.store(context.WithoutCancel(ctx)); err != nil {
		slog.Error("The state of a cluster cannot be stored", "cluster", f.source.Name, "err", err)
	}
}

// Reconcile is part of [reconcile.Reconciler].
func (f *follower) Reconcile(ctx context.Context, _ string) (time.Duration, error) {
	return tick, f.store(context.WithoutCancel(ctx))
}

// store stores the state of the cluster if it has changed.
func (f *follower) store(ctx context.Context) error {
	f.mu.Lock()
	now := f.clusters.clock.Now()
	f.touch(now)
	state := ClusterStatus{Pods: int32(f.pods)}
	if !f.seen.IsZero() {
		state.LastSeen = &metav1.Time{Time: f.seen.Truncate(time.Second)}
	}
	synced := metav1.Condition{Type: ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonRead, Message: "all pods have been read"}
	if !f.synced {
		synced = metav1.Condition{Type: ConditionSynced, Status: metav1.ConditionUnknown, Reason: reasonConnecting, Message: "the pods have not been read yet"}
	}
	reachable := metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionTrue, Reason: reasonFollowing, Message: "changes are followed live"}
	switch {
	case f.open:
		f.trouble.End("", "A cluster is followed again", "cluster", f.source.Name)
	case f.fault != nil:
		reachable = metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionFalse, Reason: reasonUnreachable, Message: f.fault.Error()}
	default:
		reachable = metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionUnknown, Reason: reasonConnecting, Message: "the cluster has not answered yet"}
	}
	spec := ClusterSpec{Server: f.server, ExcludedNamespaces: f.source.ExcludedNamespaces}
	conditions := []metav1.Condition{synced, reachable}
	if f.server != "" {
		conditions = append(conditions, credentialCondition(f.end, f.endKnown, now))
	}
	f.mu.Unlock()
	return write(ctx, f.clusters.clusters, f.source.Name, func(before *Cluster) (*Cluster, error) {
		after := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: f.source.Name}}
		if before != nil {
			after = before.DeepCopy()
		}
		if spec.Server != "" {
			after.Spec = spec
		}
		changed := after.Status.Pods != state.Pods
		for _, c := range conditions {
			c.LastTransitionTime = metav1.NewTime(now)
			changed = meta.SetStatusCondition(&after.Status.Conditions, c) || changed
		}
		after.Status.Pods = state.Pods
		if old := after.Status.LastSeen; state.LastSeen != nil && (changed || old == nil || state.LastSeen.Sub(old.Time) >= seenEvery) {
			after.Status.LastSeen = state.LastSeen
		}
		return after, nil
	})
}

// writer stores the pods that an informer reports.
type writer struct {
	follower *follower
	store    cache.Store
	nodes    cache.Store                   // nil if they may not be read
	queue    *reconcile.Controller[string] // of pods

	mu     sync.Mutex
	stored map[string]struct{} // pods that are stored as the cluster has them
	begun  bool                // initial is known
	// pods that were there at the beginning, here or in the cluster, and are not stored or deleted
	// yet
	initial map[string]struct{}
}

func newWriter(f *follower) *writer {
	w := &writer{follower: f, stored: map[string]struct{}{}}
	w.queue = reconcile.New(w, reconcile.Options[string]{Task: "storing the pods of cluster " + f.source.Name, Workers: writers, Retry: 10 * time.Millisecond})
	return w
}

// OnAdd is part of cache.ResourceEventHandler.
func (w *writer) OnAdd(obj any, _ bool) { w.queue.Add(key(obj)) }

// OnUpdate is part of cache.ResourceEventHandler. Most changes of a pod do not concern its images.
func (w *writer) OnUpdate(before, after any) {
	if a, ok := before.(*pod); ok && alike(a, after.(*pod)) {
		return
	}
	w.queue.Add(key(after))
}

// OnDelete is part of cache.ResourceEventHandler.
func (w *writer) OnDelete(obj any) { w.queue.Add(key(obj)) }

// key is the namespace and the name of a pod, as the informer's store has it.
func key(obj any) string {
	k, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(obj) // the informer has computed it before
	return k
}

// Reconcile is part of [reconcile.Reconciler]: it stores a pod.
func (w *writer) Reconcile(ctx context.Context, k string) (time.Duration, error) {
	err := w.write(ctx, k)
	if err == nil {
		w.done(k)
	}
	return 0, err
}

// left returns the pods that were reported to the observer, and not reported as gone.
func (w *writer) left() map[string]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.stored
	if maps.Copy(all, w.initial); !w.begun {
		maps.Copy(all, w.follower.told)
	}
	return all
}

// begin is called when the informer knows all pods. It deletes stored pods that are gone, and pods
// that were reported to the observer: another server may have deleted these from the store. Once
// all others are stored, the cluster is synced.
func (w *writer) begin(ctx context.Context) {
	known := map[string]struct{}{}
	for _, k := range w.store.ListKeys() {
		known[k] = struct{}{}
	}
	gone := map[string]struct{}{}
	c, name := w.follower.clusters, w.follower.source.Name
	if !c.persist(ctx, "reading the stored pods of "+name, func() error {
		return c.each(ctx, name, func(p *ClusterPod) error {
			k := p.Spec.Namespace + "/" + p.Spec.Name
			if _, ok := known[k]; !ok {
				gone[k] = struct{}{}
			}
			return nil
		})
	}) {
		return
	}
	for k := range w.follower.told {
		if _, ok := known[k]; !ok {
			gone[k] = struct{}{}
		}
	}
	w.mu.Lock()
	for k := range w.stored { // since they were queued
		delete(known, k)
	}
	maps.Copy(known, gone)
	w.initial, w.begun, w.follower.told = known, true, nil
	for k := range known {
		// also known ones: some may be gone by now, and no event would report them
		w.queue.Add(k)
	}
	w.mu.Unlock()
	w.done("")
}

// done is called when a pod is stored as the cluster has it.
func (w *writer) done(k string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.initial, k)
	if w.begun && len(w.initial) == 0 {
		w.initial = nil // an emptied map would keep its memory
		f := w.follower
		f.mu.Lock()
		if !f.synced {
			f.changed()
		}
		f.synced, f.pods = true, len(w.stored)
		if !f.current {
			f.current, f.seen = true, f.clusters.clock.Now()
			f.clusters.observer.Current(f.source.Name, f.seen)
		}
		f.mu.Unlock()
	}
}

// write stores a pod as the informer knows it, or deletes it.
func (w *writer) write(ctx context.Context, k string) error {
	obj, exists, err := w.store.GetByKey(k)
	if err != nil {
		return err
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(k)
	if err != nil {
		return nil // key made it
	}
	c := w.follower.clusters
	full := w.follower.source.Name + ":" + namespace + ":" + name // none of the parts has a colon
	if !exists {
		if err := remove(ctx, c.pods, full); err != nil {
			return err
		}
		c.observer.Pod(w.follower.source.Name, namespace, name, nil)
		w.mu.Lock()
		delete(w.stored, k)
		w.mu.Unlock()
		return nil
	}
	spec := obj.(*pod).spec()
	spec.Cluster, spec.Platform = w.follower.source.Name, w.platform(spec.NodeName)
	err = write(ctx, c.pods, full, func(before *ClusterPod) (*ClusterPod, error) {
		after := &ClusterPod{ObjectMeta: metav1.ObjectMeta{Name: full}}
		if before != nil {
			after.ObjectMeta = *before.DeepCopy().GetObjectMeta().(*metav1.ObjectMeta)
		}
		after.Spec = spec
		return after, nil
	})
	if err != nil {
		return err
	}
	c.observer.Pod(w.follower.source.Name, namespace, name, &spec)
	w.mu.Lock()
	w.stored[k] = struct{}{}
	w.mu.Unlock()
	return nil
}

// alike reports whether two states of a pod would be stored as the same.
func alike(a, b *pod) bool {
	return a.uid == b.uid && a.node == b.node && a.account == b.account && a.owner == b.owner && a.finished == b.finished &&
		slices.Equal(a.containers, b.containers) &&
		// a restart changes when a container is known to have started first
		slices.EqualFunc(a.started, b.started, func(a, b int64) bool { return (a == 0) == (b == 0) })
}
