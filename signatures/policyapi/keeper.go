package policyapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// maxPolicies bounds the objects of both kinds, including those that show files. OpenShift's list
// of one kind may have as many.
const maxPolicies = 1000

const (
	// pageSize is how many objects are read at a time.
	pageSize = 50
	// retryAfter is the time after which failed reads and writes of objects are tried again.
	retryAfter = 10 * time.Second
	// together is how long changes are collected before the status of all objects is updated.
	together = 100 * time.Millisecond
)

// Keeper keeps policies in force: those of files, and the objects that clients have written.
// [New] makes one.
type Keeper struct {
	live  *signatures.Live
	clock clock.WithTicker
	// changed is called each time the policies in force change.
	changed func()
	// The stores of both kinds, which write without the checks for clients.
	cluster, namespaced stores
	queue               *reconcile.Controller[string]
	ready               chan struct{} // closed once the objects are in force

	loading sync.Mutex // held while objects are read and put in force

	changes Changes    // nil if no other server writes
	polling sync.Mutex // held while changes are read
	// Objects with changes that are not in force yet; behindOfAll is true if there may be others.
	behind      map[types.NamespacedName]struct{}
	behindOfAll bool

	mu    sync.Mutex
	files *policy.Set
	// why the last read of the objects failed; errNotLoaded before the first read
	loaded  error
	objects map[types.NamespacedName]*entry
	faults  map[types.NamespacedName]fault // why objects are not in force
	tally   tally

	uncovered bool // the state that was logged

	exceptions *metrics.GaugeVec
	// the states of exceptions that were logged last; only Run uses it
	told map[string]string
	// the warnings about policies that were logged; only Run uses it
	logged map[types.NamespacedName]string
}

// stores are the keeper's stores for the objects of a kind and for their status.
type stores struct{ objects, status *genericregistry.Store }

// fault says why an object is not in force.
type fault struct{ reason, message string }

var errNotLoaded = errors.New("the policies in the API are still being read")

func newKeeper(o Options) *Keeper {
	k := &Keeper{exceptions: newExceptionsMetric(o.Registerer), live: o.Live, files: o.Live.Set(), clock: o.Clock, changed: o.Changed, ready: make(chan struct{}), loaded: errNotLoaded, objects: map[types.NamespacedName]*entry{}, logged: map[types.NamespacedName]string{}}
	k.queue = reconcile.New(k, reconcile.Options[string]{Task: "updating the objects of policies", Retry: retryAfter, MaxRetry: retryAfter, Clock: o.Clock})
	return k
}

// Load reads the objects and puts their policies in force, beside those of files. A file's policy
// takes precedence over an object with the same name. If the objects cannot be read, the policies
// in force stay.
func (k *Keeper) Load(ctx context.Context) error {
	k.loading.Lock()
	defer k.loading.Unlock()
	return k.load(ctx)
}

// load is Load for callers that hold loading.
func (k *Keeper) load(ctx context.Context) error {
	read := map[types.NamespacedName]*entry{}
	err := k.each(ctx, func(o object) { read[keyOf(o)] = k.entryOf(o) })
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.objects = read
	}
	return k.putAll(err)
}

// refresh puts changes of some objects in force. It reads no others.
func (k *Keeper) refresh(ctx context.Context, keys ...types.NamespacedName) error {
	k.loading.Lock()
	defer k.loading.Unlock()
	if k.Loaded() != nil {
		return k.load(ctx)
	}
	read := map[types.NamespacedName]*entry{}
	for _, key := range keys {
		o, err := k.stores(key).objects.Get(request.WithNamespace(ctx, key.Namespace), key.Name, &metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			read[key] = nil
		case err != nil:
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.putAll(err)
		default:
			if e := k.entryOf(o.(object)); !k.knows(key, e.revision) {
				read[key] = e
			}
		}
	}
	if len(read) == 0 {
		return nil
	}
	return k.putSome(read)
}

// putSome notes the latest entries of some objects, nil for one that is gone, and puts in force
// what differs. The caller holds loading.
func (k *Keeper) putSome(read map[types.NamespacedName]*entry) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	set, faults := k.live.Set(), maps.Clone(k.faults)
	var err error
	for key, e := range read {
		k.note(key, e)
		p, f := k.effective(key)
		if delete(faults, key); f.reason != "" {
			faults[key] = f
		}
		if before := set.Named(key); err == nil && p != before {
			if p != nil {
				set, err = set.With(p)
			} else {
				set, _ = set.Without(key)
			}
		}
	}
	if err != nil { // one by one may be refused although all together are accepted
		return k.putAll(nil)
	}
	k.replace(set, faults)
	return nil
}

// effective returns the policy in force with a name, nil for none, and why an object of that name
// is not in force. The caller holds mu.
func (k *Keeper) effective(key types.NamespacedName) (p *policy.Policy, f fault) {
	e, file := k.objects[key], k.files.Named(key)
	switch {
	case file != nil && e != nil && e.shows == "":
		return file, fault{ReasonNameTaken, fmt.Sprintf("%s has a policy of this name, which is in force instead: rename one of them", fileOf(file))}
	case file == nil && e != nil && e.shows == "":
		return e.policy, e.fault
	}
	return file, f
}

// putAll puts the policies of files and of all objects in force. err is why the objects could not
// be read. The caller holds loading and mu.
func (k *Keeper) putAll(err error) error {
	policies, faults := k.files.Policies(), map[types.NamespacedName]fault{}
	for key := range k.objects {
		p, f := k.effective(key)
		if f.reason != "" {
			faults[key] = f
		}
		if p != nil && k.files.Named(key) == nil {
			policies = append(policies, p)
		}
	}
	var set *policy.Set
	if err == nil {
		set, err = policy.NewSet(policies)
	}
	if err != nil {
		err = fmt.Errorf("reading the policies in the API; those in force stay: %w", err)
	}
	before := k.loaded
	if k.loaded = err; err != nil {
		if before == nil || before.Error() != err.Error() {
			slog.Error("Policies cannot be read", "err", err)
		}
		return err
	}
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
	k.replace(set, faults)
	return nil
}

// replace puts a Set in force. The caller holds mu.
func (k *Keeper) replace(set *policy.Set, faults map[types.NamespacedName]fault) {
	k.faults = faults
	if set.Len() == 0 {
		set = nil
	}
	if uncovered := set.Uncovered(""); uncovered != k.uncovered {
		if k.uncovered = uncovered; uncovered {
			slog.Warn("Policies are enforced, but images that none of them covers are admitted: no ClusterImagePolicy has the scope \"*\"")
		}
	}
	if set.Hash() != k.live.Set().Hash() {
		k.live.Replace(set)
		k.changed()
	}
	k.awake()
}

// Ready is closed once the objects are in force for the first time.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Loaded returns why the objects could not be read; nil if they are in force.
func (k *Keeper) Loaded() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loaded
}

// Changes reports changes of the objects, by any writer.
type Changes interface {
	// CatchUp waits until Since will report all changes that were acknowledged before the call.
	CatchUp(context.Context) error
	// Since calls visit with each change since the previous call. lost is true if it may have missed
	// changes.
	Since(ctx context.Context, visit func(namespace, name string, rev int64)) (lost bool, err error)
	// Ready is signalled when Since may have changes to report.
	Ready() <-chan struct{}
}

// Current puts every policy in force that was written before the call. After an error the caller
// must not judge, because the policies in force may be out of date.
func (k *Keeper) Current(ctx context.Context) error {
	if k.changes == nil {
		return nil
	}
	if err := k.changes.CatchUp(ctx); err != nil {
		return err
	}
	k.polling.Lock()
	defer k.polling.Unlock()
	lost, err := k.changes.Since(ctx, func(namespace, name string, rev int64) {
		if key := (types.NamespacedName{Namespace: namespace, Name: name}); !k.knows(key, rev) {
			if k.behind == nil {
				k.behind = map[types.NamespacedName]struct{}{}
			}
			k.behind[key] = struct{}{}
		}
	})
	// Reading more names than there can be objects costs more than reading all objects.
	k.behindOfAll = k.behindOfAll || lost || err != nil || len(k.behind) > maxPolicies
	if err != nil {
		return err
	}
	// The end of one caller's context must not fail the others.
	ctx = context.Background()
	switch {
	case k.behindOfAll:
		err = k.Load(ctx)
	case len(k.behind) > 0:
		err = k.refresh(ctx, slices.Collect(maps.Keys(k.behind))...)
	}
	if err == nil {
		k.behind, k.behindOfAll = nil, false
	}
	return err
}

// Verify judges an image by the policies in force. Call Current before.
func (k *Keeper) Verify(_ context.Context, image *imagev1.Image, indexes func(repository string) ([]*imagev1.Image, error)) (covered bool) {
	return k.live.Verify(image, indexes)
}

// followChanges calls Current when there are changes, until ctx is done.
func (k *Keeper) followChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changes.Ready():
			_ = k.Current(ctx) // it logs the error, and the next verdict tries again
		}
	}
}

// SetFiles puts other policies of files in force.
func (k *Keeper) SetFiles(ctx context.Context, files *policy.Set) error {
	k.mu.Lock()
	k.files = files
	k.mu.Unlock()
	return k.Load(ctx)
}

// written puts an object that a client has written in force, before the client gets the answer.
func (k *Keeper) written(o runtime.Object) {
	_ = k.refresh(context.Background(), keyOf(o.(object))) // it logs the error
}

// Run shows files as objects and updates the status of all objects until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	if k.changes != nil {
		var following sync.WaitGroup
		defer following.Wait()
		following.Go(func() { k.followChanges(ctx) })
	}
	k.awake()
	_ = k.queue.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler]. It updates all objects.
func (k *Keeper) Reconcile(ctx context.Context, _ string) (again time.Duration, err error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-k.clock.After(together):
	}
	if err = k.Loaded(); err != nil {
		err = k.Load(ctx)
	}
	if err == nil {
		err = k.show(ctx)
	}
	if err != nil {
		return 0, err
	}
	return k.reportExceptions(k.live.Set().Policies()), nil
}

// awake makes Run update all objects again.
func (k *Keeper) awake() { k.queue.Add("") }

type objectList interface {
	runtime.Object
	metav1.ListInterface
}

// stores returns the stores of the kind of a policy.
func (k *Keeper) stores(key types.NamespacedName) stores {
	if key.Namespace != "" {
		return k.namespaced
	}
	return k.cluster
}

// each reads all objects, a page at a time.
func (k *Keeper) each(ctx context.Context, use func(object)) error {
	ctx = request.WithNamespace(ctx, metav1.NamespaceAll) // a request would say so
	for _, kind := range []stores{k.cluster, k.namespaced} {
		err := pages.Each(ctx, metav1.ListOptions{Limit: pageSize}, func(ctx context.Context, o metav1.ListOptions) (objectList, error) {
			list, err := kind.objects.List(ctx, &internalversion.ListOptions{Limit: o.Limit, Continue: o.Continue})
			if err != nil {
				return nil, err
			}
			return list.(objectList), nil
		}, func(list objectList) error {
			return meta.EachListItem(list, func(o runtime.Object) error { use(o.(object)); return nil })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// full reports whether the number of policies has reached its limit.
func (k *Keeper) full() bool { return k.live.Set().Len() >= maxPolicies }

// fromFile returns the policy of that name from a file, nil if there is none.
func (k *Keeper) fromFile(key types.NamespacedName) *policy.Policy {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.files.Named(key)
}

func fileOf(p *policy.Policy) string { return fmt.Sprintf("%s document %d", p.File, p.Document) }
