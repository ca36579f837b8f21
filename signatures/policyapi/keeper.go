package policyapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// maxPolicies bounds the objects of both kinds, with those that show files. OpenShift's list of one
// kind may hold as many.
const maxPolicies = 1000

const (
	// pageSize is how many objects are read at a time.
	pageSize = 50
	// retryAfter is the time after which failed reads and writes of objects are tried again.
	retryAfter = 10 * time.Second
)

// Keeper keeps policies in force: those of files, and the objects that clients have written.
// NewKeeper makes one, Storage gives it the objects.
type Keeper struct {
	live  *signatures.Live
	clock clock.WithTicker
	// changed is called each time that other policies come into force.
	changed func()
	// The stores of both kinds, which write without the checks that clients meet.
	cluster, namespaced stores
	wake                chan struct{}
	ready               chan struct{} // closed once the objects are in force

	loading sync.Mutex // held while objects are read and put in force

	changes Changes    // nil before Follow
	polling sync.Mutex // held while changes are asked
	behind  bool       // there are changes that are not in force

	mu sync.Mutex
	// revisions at which the keeper wrote a status, and of which changes have not told
	own   map[int64]struct{}
	files *policy.Set
	// why the last read of the objects failed; errNotLoaded before the first
	loaded error
	faults map[types.NamespacedName]fault // why objects are not in force
	tally  tally

	uncovered bool // as was logged

	exceptions *metrics.GaugeVec
	// the states of exceptions when they were last told, by what names them; Run alone uses it
	told map[string]string
}

// stores are where the keeper reads and writes objects of a kind, and where it writes their status.
type stores struct{ objects, status *genericregistry.Store }

// fault says why an object is not in force.
type fault struct{ reason, message string }

var errNotLoaded = errors.New("the policies in the API are still being read")

// NewKeeper makes a Keeper of live, whose Set holds the policies of files, nil if there are none.
// Each time that other policies come into force, or what they cover has to be counted again,
// changed is called; it must not wait. registerMetrics registers its metrics: nil for nowhere.
func NewKeeper(live *signatures.Live, c clock.WithTicker, changed func(), registerMetrics func(...metrics.Registerable)) *Keeper {
	k := &Keeper{exceptions: newExceptionsMetric(registerMetrics), live: live, files: live.Set(), clock: c, changed: changed, wake: make(chan struct{}, 1), ready: make(chan struct{}), loaded: errNotLoaded}
	live.Written = k.Written
	return k
}

// Load reads the objects and puts their policies in force, beside those of files. A file's policy
// goes before an object of its name. If the objects cannot be read, the policies in force stay.
func (k *Keeper) Load(ctx context.Context) error {
	k.loading.Lock()
	defer k.loading.Unlock()
	k.mu.Lock()
	policies, faults := k.files.Policies(), map[types.NamespacedName]fault{}
	k.mu.Unlock()
	files := len(policies)
	err := k.each(ctx, func(o object) {
		if o.GetAnnotations()[FileAnnotation] != "" {
			return
		}
		if i := slices.IndexFunc(policies[:files], func(p *policy.Policy) bool { return p.Key() == keyOf(o) }); i >= 0 {
			faults[keyOf(o)] = fault{ReasonNameTaken, fmt.Sprintf("%s has a policy of this name, which is in force instead: rename one of them", fileOf(policies[i]))}
			return
		}
		p, err := policy.New(o.GetNamespace(), o.GetName(), o.spec())
		if err != nil {
			faults[keyOf(o)] = fault{ReasonInvalid, fmt.Sprintf("an older version accepted it, but this one cannot use it, so nothing that it covers is trusted: %v", err)}
			p = policy.Nobody(o.GetNamespace(), o.GetName(), o.spec())
		}
		p.Admission = admissionOf(o)
		policies = append(policies, p)
	})
	var set *policy.Set
	if err == nil && len(policies) > 0 {
		set, err = policy.NewSet(policies)
	}
	if err != nil {
		err = fmt.Errorf("reading the policies in the API; those in force stay: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
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
	k.faults = faults
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
	return nil
}

// Ready is closed once the objects are in force for the first time.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Loaded returns why the objects could not be read; nil when they are in force.
func (k *Keeper) Loaded() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loaded
}

// Changes reports changes of the objects, by any writer.
type Changes interface {
	// CatchUp returns when Any will count all changes that were reported to anybody before the
	// call.
	CatchUp(context.Context) error
	// Any reports whether there were changes since the call before, other than at revisions that
	// own accepts.
	Any(ctx context.Context, own func(rev int64) bool) (bool, error)
	// Ready is signalled when Any may have something to tell.
	Ready() <-chan struct{}
}

// Follow has policies in force that another server has written: before the next verdict, and before
// long. Call it before Load.
func (k *Keeper) Follow(changes Changes) {
	k.changes = changes
	k.live.Current = k.Current
}

// Current puts in force what anybody has written before the call.
func (k *Keeper) Current(ctx context.Context) error {
	if k.changes == nil {
		return nil
	}
	if err := k.changes.CatchUp(ctx); err != nil {
		return err
	}
	k.polling.Lock()
	defer k.polling.Unlock()
	changed, err := k.changes.Any(ctx, k.wrote)
	k.behind = k.behind || changed || err != nil
	if err != nil || !k.behind {
		return err
	}
	err = k.Load(context.Background()) // which a caller that goes away does not end for the others
	k.behind = err != nil
	return err
}

// maxOwn bounds Keeper.own. A forgotten revision costs a read of the objects.
const maxOwn = 2 * maxPolicies

// writes notes a revision at which the keeper wrote a status.
func (k *Keeper) writes(o object) {
	rev, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own == nil || len(k.own) >= maxOwn {
		k.own = map[int64]struct{}{}
	}
	k.own[rev] = struct{}{}
}

// wrote tells, once, whether the keeper wrote a status at a revision.
func (k *Keeper) wrote(rev int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, own := k.own[rev]
	delete(k.own, rev)
	return own
}

// followChanges calls Current when there are changes, until ctx is done.
func (k *Keeper) followChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changes.Ready():
			_ = k.Current(ctx) // Load logs the error, and the next verdict tries again
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

// written puts in force what a client has written, before the client is answered.
func (k *Keeper) written() { _ = k.Load(context.Background()) } // which logs the error

// Run shows the files as objects and keeps the status of all of them until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	if k.changes != nil {
		var following sync.WaitGroup
		defer following.Wait()
		following.Go(func() { k.followChanges(ctx) })
	}
	logged := map[types.NamespacedName]string{}
	for ctx.Err() == nil {
		err := k.Loaded()
		if err != nil {
			err = k.Load(ctx)
		}
		if err == nil {
			err = k.show(ctx, logged)
		}
		if err != nil && ctx.Err() == nil {
			slog.Error("Updating the objects of policy files failed, will retry", "after", retryAfter, "err", err)
			k.sleep(ctx, retryAfter)
			continue
		}
		k.sleep(ctx, k.reportExceptions(k.live.Set().Policies()))
	}
}

// sleep returns when something has changed, or after d unless d is zero.
func (k *Keeper) sleep(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		timer := k.clock.NewTimer(d)
		defer timer.Stop()
		after = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-after:
	case <-k.wake:
	}
}

// awake makes Run look again.
func (k *Keeper) awake() {
	select {
	case k.wake <- struct{}{}:
	default: // told already
	}
}

type objectList interface {
	runtime.Object
	metav1.ListInterface
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

// with returns the policies in force with p among them. An error tells that p cannot be in force
// together with the others.
func (k *Keeper) with(p *policy.Policy) (*policy.Set, error) {
	return k.live.Set().With(p)
}

// full reports whether there are as many policies as are allowed.
func (k *Keeper) full() bool { return len(k.live.Set().Policies()) >= maxPolicies }

// fromFile returns the policy of that name that a file holds, nil if none does.
func (k *Keeper) fromFile(key types.NamespacedName) *policy.Policy {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.files.Policies() {
		if p.Key() == key {
			return p
		}
	}
	return nil
}

func fileOf(p *policy.Policy) string { return fmt.Sprintf("%s document %d", p.File, p.Document) }
