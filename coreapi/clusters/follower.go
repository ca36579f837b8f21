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
	"k8s.io/client-go/util/workqueue"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/relay"
)

const (
	// writers is how many goroutines store pods, for each cluster.
	writers = 8
	// tick is how often a cluster's state and credential are checked.
	tick = 10 * time.Second
	// seenEvery is how often the time of the last contact is stored.
	seenEvery = time.Minute
	// maxBackoff is the longest wait between two attempts to reach a cluster.
	maxBackoff = 30 * time.Second
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
	clusters *Clusters
	source   Source
	news     chan struct{} // holds a token when the state must be stored without delay

	mu        sync.Mutex
	server    string
	synced    bool      // all pods were stored once, maybe by an earlier process
	connected bool      // a watch is open
	seen      time.Time // the last time when one was; zero for never
	fault     error     // why none is open
	pods      int
}

func newFollower(c *Clusters, s Source) *follower {
	return &follower{clusters: c, source: s, news: make(chan struct{}, 1)}
}

// changed has the state stored without delay.
func (f *follower) changed() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

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

// doubt says why what is known may be out of date; "" if it is not.
func (f *follower) doubt(now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	why := ""
	if f.fault != nil {
		why = ": " + f.fault.Error()
	}
	switch {
	case !f.synced:
		return fmt.Sprintf("the pods of cluster %s are not known yet%s", f.source.Name, why)
	case !f.connected && now.Sub(f.seen) > 2*tick:
		return fmt.Sprintf("the pods of cluster %s are those of %s ago%s", f.source.Name, age(now.Sub(f.seen)), why)
	}
	return ""
}

// opened and closed note that a watch was opened or closed.
func (f *follower) opened() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		f.changed()
	}
	f.connected, f.fault = true, nil
}

func (f *follower) closed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.connected {
		f.connected, f.seen = false, f.clusters.clock.Now()
	}
	if err != nil {
		if f.fault == nil {
			f.changed()
		}
		f.fault = errors.New(printable.Line(err.Error(), maxText))
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
		f.closed(err)
		if errors.Is(err, errChanged) {
			slog.Info("Following a cluster anew", "cluster", f.source.Name, "why", err)
			wait = time.Second
			continue
		}
		if ctx.Err() != nil {
			return
		}
		slog.Warn("A cluster cannot be followed, and is tried again", "cluster", f.source.Name, "err", err)
		if f.clusters.clock.Since(started) > maxBackoff {
			wait = time.Second
		}
		if !sleep(ctx, f.clusters.clock, wait) {
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// session follows the cluster with one credential, until the credential changes (errChanged) or ctx is done.
func (f *follower) session(ctx context.Context) error {
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
	f.mu.Unlock()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w := newWriter(f)
	lw := f.listerWatcher(client)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Pod{},
		Handler:       w,
		Transform:     reduce,
	})
	w.store = store

	var all sync.WaitGroup
	defer all.Wait()
	if w.nodes, err = f.followNodes(ctx, client, &all, w.moved); err != nil {
		return err
	}
	all.Go(func() { informer.RunWithContext(ctx) })
	all.Go(func() { w.run(ctx) })
	all.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			w.begin(ctx)
		}
	})
	ticker := f.clusters.clock.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C():
			if now, err := f.source.Connect(); err == nil && !sameWay(config, now) {
				end(errChanged)
				return errChanged
			}
		}
	}
}

// clientOf returns a client of the API of a cluster.
func clientOf(config *restclient.Config) (kubernetes.Interface, error) {
	config = restclient.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.UserAgent = "tidewaiter"
	return kubernetes.NewForConfig(config)
}

// listerWatcher reads the pods of the cluster, and notes whether it can.
func (f *follower) listerWatcher(client kubernetes.Interface) cache.ListerWatcher {
	selected := fields.Everything()
	for _, namespace := range f.source.ExcludedNamespaces {
		selected = fields.AndSelectors(selected, fields.OneTermNotEqualSelector("metadata.namespace", namespace))
	}
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selected.String()
			list, err := pods.List(ctx, o)
			if err != nil {
				f.closed(fmt.Errorf("listing its pods: %w", err))
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selected.String()
			w, err := pods.Watch(ctx, o)
			if err != nil {
				f.closed(fmt.Errorf("watching its pods: %w", err))
				return nil, err
			}
			f.opened()
			return relay.New(w, func(e watch.Event) watch.Event { return e }, func() { f.closed(nil) }), nil
		},
	}
}

// report stores the state of the cluster until ctx is done, and at the end.
func (f *follower) report(ctx context.Context) {
	last := context.WithoutCancel(ctx)
	ticker := f.clusters.clock.NewTicker(tick)
	defer ticker.Stop()
	for {
		if err := f.store(last); err != nil {
			slog.Error("The state of a cluster cannot be stored", "cluster", f.source.Name, "err", err)
		}
		if ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		case <-f.news:
		}
	}
}

// store stores the state of the cluster if it has changed.
func (f *follower) store(ctx context.Context) error {
	f.mu.Lock()
	now := f.clusters.clock.Now()
	if f.connected {
		f.seen = now
	}
	state := ClusterStatus{Pods: int32(f.pods)}
	if !f.seen.IsZero() {
		state.LastSeen = &metav1.Time{Time: f.seen.Truncate(time.Second)}
	}
	synced := metav1.Condition{Type: ConditionSynced, Status: metav1.ConditionTrue, Reason: reasonRead, Message: "all pods have been read"}
	if !f.synced {
		synced = metav1.Condition{Type: ConditionSynced, Status: metav1.ConditionUnknown, Reason: reasonConnecting, Message: "the pods have not been read yet"}
	}
	reachable := metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionTrue, Reason: reasonFollowing, Message: "changes are told as they happen"}
	switch {
	case f.connected:
	case f.fault != nil:
		reachable = metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionFalse, Reason: reasonUnreachable, Message: f.fault.Error()}
	default:
		reachable = metav1.Condition{Type: ConditionReachable, Status: metav1.ConditionUnknown, Reason: reasonConnecting, Message: "the cluster has not answered yet"}
	}
	spec := ClusterSpec{Server: f.server, ExcludedNamespaces: f.source.ExcludedNamespaces}
	f.mu.Unlock()
	return write(ctx, f.clusters.clusters, f.source.Name, func(before *Cluster) *Cluster {
		after := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: f.source.Name}}
		if before != nil {
			after = before.DeepCopy()
		}
		if spec.Server != "" {
			after.Spec = spec
		}
		changed := after.Status.Pods != state.Pods
		for _, c := range []metav1.Condition{synced, reachable} {
			c.LastTransitionTime = metav1.NewTime(now)
			changed = meta.SetStatusCondition(&after.Status.Conditions, c) || changed
		}
		after.Status.Pods = state.Pods
		if old := after.Status.LastSeen; state.LastSeen != nil && (changed || old == nil || state.LastSeen.Sub(old.Time) >= seenEvery) {
			after.Status.LastSeen = state.LastSeen
		}
		return after
	})
}

// writer stores the pods that an informer reports.
type writer struct {
	follower *follower
	store    cache.Store
	nodes    cache.Store // nil if they may not be read
	queue    workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	stored  map[string]struct{} // pods that are stored as the cluster has them
	begun   bool                // initial is known
	initial map[string]struct{} // pods that were there at the beginning, here or in the cluster, and are not stored or deleted yet
}

func newWriter(f *follower) *writer {
	return &writer{
		follower: f,
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		stored:   map[string]struct{}{},
	}
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

// run stores what is queued until ctx is done.
func (w *writer) run(ctx context.Context) {
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for {
				k, shutdown := w.queue.Get()
				if shutdown {
					return
				}
				if err := w.write(ctx, k); err == nil {
					w.queue.Forget(k)
					w.done(k)
				} else if ctx.Err() == nil {
					slog.Error("A pod of a cluster cannot be stored, and is tried again", "cluster", w.follower.source.Name, "pod", k, "err", err)
					w.queue.AddRateLimited(k)
				}
				w.queue.Done(k)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	all.Wait()
}

// begin is called when the informer knows all pods. It deletes stored pods that are gone. Once all others are
// stored, the cluster is synced.
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
	w.mu.Lock()
	for k := range w.stored { // since they were queued
		delete(known, k)
	}
	maps.Copy(known, gone)
	w.initial, w.begun = known, true
	w.mu.Unlock()
	for k := range gone {
		w.queue.Add(k)
	}
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
	full := podName(w.follower.source.Name, namespace, name)
	if !exists {
		if err := remove(ctx, c.pods, full); err != nil {
			return err
		}
		w.mu.Lock()
		delete(w.stored, k)
		w.mu.Unlock()
		return nil
	}
	spec := obj.(*pod).spec()
	spec.Cluster, spec.Platform = w.follower.source.Name, w.platform(spec.NodeName)
	err = write(ctx, c.pods, full, func(before *ClusterPod) *ClusterPod {
		after := &ClusterPod{ObjectMeta: metav1.ObjectMeta{Name: full}}
		if before != nil {
			after.ObjectMeta = *before.DeepCopy().GetObjectMeta().(*metav1.ObjectMeta)
		}
		after.Spec = spec
		return after
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.stored[k] = struct{}{}
	w.mu.Unlock()
	return nil
}

// podName is the name of a ClusterPod. None of its parts has a colon.
func podName(cluster, namespace, pod string) string { return cluster + ":" + namespace + ":" + pod }

// alike reports whether two states of a pod would be stored as the same.
func alike(a, b *pod) bool {
	return a.uid == b.uid && a.node == b.node && a.account == b.account && slices.Equal(a.containers, b.containers)
}
