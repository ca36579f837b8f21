package imageruns

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/relay"
)

// Options are what a storage of stretches needs to know.
type Options struct {
	Images clusters.Images
	// Verdicts are the words for verdicts.
	Verdicts []string
	Clusters Clusters
	// Clock is the time.
	Clock clock.PassiveClock
}

// Clusters know for which times records are whole.
type Clusters interface {
	// Names are the clusters that are followed.
	Names() []string
	// Records returns for which times the records of each cluster are whole.
	Records(ctx context.Context) (map[string]clusters.ClusterRecords, error)
}

// New returns the storage for the server's own writes. scheme is a scheme that [Install] was called
// with.
func New(g generic.RESTOptionsGetter, scheme *runtime.Scheme) (*genericregistry.Store, error) {
	s := clusters.Strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, Namespaced: true}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ImageRun{} },
		NewListFunc:               func() runtime.Object { return &ImageRunList{} },
		DefaultQualifiedResource:  clusters.GroupVersion.WithResource(Resource).GroupResource(),
		SingularQualifiedResource: clusters.GroupVersion.WithResource("imagerun").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		PredicateFunc:             predicate,
		TableConvertor:            runTable,
	}
	// an AttrFunc is required, although the predicates have their own
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: predicate(nil, nil).GetAttrs, Indexers: indexers()}); err != nil {
		return nil, fmt.Errorf("%s: %w", Resource, err)
	}
	return store, nil
}

// REST is the storage for clients: what is not stored of a stretch is found when it is read.
type REST struct {
	*clusters.ReadOnlyREST
	Options
}

// NewREST returns the storage for clients, which reads from the server's own.
func NewREST(s *genericregistry.Store, o Options) *REST {
	return &REST{clusters.ReadOnly(s, "irun"), o}
}

// Get is part of rest.Getter.
func (r *REST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.ReadOnlyREST.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	records, err := r.Clusters.Records(ctx)
	if err != nil {
		return nil, err
	}
	describe(obj, records)
	return obj, nil
}

// List is part of rest.Lister. It warns about clusters whose records of the selected time are not
// complete.
func (r *REST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	o, err := r.read(ctx, o)
	if err != nil {
		return nil, err
	}
	obj, err := r.ReadOnlyREST.List(ctx, o)
	if err != nil {
		return nil, err
	}
	records, err := r.Clusters.Records(ctx)
	if err != nil {
		return nil, err
	}
	list := obj.(*ImageRunList)
	for i := range list.Items {
		describe(&list.Items[i], records)
	}
	s := newSelector(o.FieldSelector)
	cluster, _ := s.RequiresExactMatch(clusterField)
	for _, text := range s.window.Unknown(records, r.Clusters.Names(), cluster, r.Clock.Now()) {
		warning.AddWarning(ctx, "", text)
	}
	return list, nil
}

// Watch is part of rest.Watcher. An event shows what is known when it is sent.
func (r *REST) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	o, err := r.read(ctx, o)
	if err != nil {
		return nil, err
	}
	w, err := r.ReadOnlyREST.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return relay.New(w, func(e watch.Event) watch.Event {
		if e.Type == watch.Bookmark {
			return e
		}
		if shared, ok := e.Object.(runtime.CacheableObject); ok {
			e.Object = shared.GetObject()
		}
		if run, ok := e.Object.(*ImageRun); ok {
			if records, err := r.Clusters.Records(ctx); err == nil {
				run = run.DeepCopy() // watchers may share it
				describe(run, records)
				e.Object = run
			}
		}
		return e
	}, func() {}), nil
}

// read checks a selector, and puts the values that are stored for what an image means in the place
// of the image.
func (r *REST) read(ctx context.Context, o *internalversion.ListOptions) (*internalversion.ListOptions, error) {
	if o == nil || o.FieldSelector == nil {
		return &internalversion.ListOptions{}, nil
	}
	all := fields.Everything()
	for _, q := range o.FieldSelector.Requirements() {
		switch {
		case q.Field == verifiedField && !slices.Contains(r.Verdicts, q.Value):
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q cannot be %q: it is %s", verifiedField, q.Value, strings.Join(r.Verdicts, ", ")))
		case q.Operator == selection.NotEquals && slices.Contains([]string{atField, fromField, untilField}, q.Field):
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is a time: it has no !=", q.Field))
		case q.Field == imageField:
			stored, err := r.Images.Selects(ctx, q.Value, false)
			if err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q: %v", imageField, err))
			}
			q.Value = strings.Join(stored, clusters.ValueSeparator)
		}
		term := fields.OneTermEqualSelector
		if q.Operator == selection.NotEquals {
			term = fields.OneTermNotEqualSelector
		}
		all = fields.AndSelectors(all, term(q.Field, q.Value))
	}
	if w := newSelector(all).window; !w.Until.IsZero() && w.Until.Before(w.From) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s is after %s", fromField, untilField))
	}
	out := *o
	out.FieldSelector = all
	return &out, nil
}

// describe fills in the times when the cluster of a running stretch could not be seen. A stretch
// that has ended has them stored.
func describe(obj runtime.Object, records map[string]clusters.ClusterRecords) {
	if r, ok := obj.(*ImageRun); ok && r.Status.Until == nil {
		of := records[r.Spec.Cluster]
		r.Status.Unseen = of.UnseenIn(r.Spec.From.Time, time.Time{})
	}
}

// Unknown returns the parts of the window for which it is not known what ran in the followed
// clusters, or in one cluster if it is named.
func (w Window) Unknown(records map[string]clusters.ClusterRecords, followed []string, cluster string, now time.Time) (all []string) {
	if w.Until.After(now) {
		all = append(all, fmt.Sprintf("%s is in the future", when(metav1.NewTime(w.Until))))
	}
	names := slices.Sorted(maps.Keys(records))
	for _, name := range followed {
		if _, ok := records[name]; !ok {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if cluster != "" && name != cluster {
			continue
		}
		r, ok := records[name]
		if !ok {
			all = append(all, fmt.Sprintf("what ran in cluster %s is not recorded yet", name))
			continue
		}
		if w.From.IsZero() || w.From.Before(r.Since.Time) {
			all = append(all, fmt.Sprintf("what ran in cluster %s is recorded since %s, and not whole before", name, when(r.Since)))
		}
		if w == (Window{}) {
			continue
		}
		for _, gap := range r.GapsIn(w.From, w.Until) {
			if gap.Until == nil {
				all = append(all, fmt.Sprintf("cluster %s has not been seen since %s, so it is not known what runs there", name, when(gap.From)))
			} else {
				all = append(all, fmt.Sprintf("cluster %s was not seen from %s to %s, so it is not known what ran there then", name, when(gap.From), when(*gap.Until)))
			}
		}
		if n := len(r.Unseen); (n == 0 || r.Unseen[n-1].Until != nil) && now.Sub(r.Until.Time) > late && (w.Until.IsZero() || w.Until.After(r.Until.Time)) {
			all = append(all, fmt.Sprintf("nothing of cluster %s has been recorded since %s, so it is not known what ran there then", name, when(r.Until)))
		}
	}
	if len(all) > maxUnknown {
		all = append(all[:maxUnknown], fmt.Sprintf("further such times: %d; kubectl get clusters -o yaml has them", len(all)-maxUnknown))
	}
	return all
}

// late is when records are missed: a server stores every minute up to when they are complete. It
// may be that none leads, or that the store takes no writes.
const late = 3 * time.Minute

// maxUnknown is of how many times a list warns.
const maxUnknown = 20

var (
	_ rest.Getter  = &REST{}
	_ rest.Lister  = &REST{}
	_ rest.Watcher = &REST{}
)
