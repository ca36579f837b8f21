package kubestore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	goruntime "runtime"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/tidewaiter/tidewaiter/db"
)

// Rows that are read at a time. A list with a limit starts with its limit and doubles, as the etcd3
// store does, because a selector may drop most of the rows. A list without one reads chunks, so
// that the stored bytes of a large list are never all in memory beside the decoded objects.
const (
	chunkRows    = 500
	maxChunkRows = db.MaxRangeRows
)

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := s.prepareKey(key, opts.Recursive)
	if err != nil {
		return err
	}
	listPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	v, err := conversion.EnforcePtr(listPtr)
	if err != nil || v.Kind() != reflect.Slice {
		return fmt.Errorf("need ptr to slice: %w", err)
	}
	rev, continueKey, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return err
	}
	l := &lister{s: s, prefix: prefix, opts: opts, pred: opts.Predicate, v: v, newItem: newItemFunc(listObj, v), whole: wholeOf(ctx, opts.Predicate)}
	if err = l.run(ctx, rev, continueKey); errors.Is(err, errAgain) {
		err = l.run(ctx, l.rev, continueKey)
	}
	if err != nil {
		return err
	}
	token, remaining, err := storage.PrepareContinueToken(l.lastKey, prefix, l.rev, l.remaining+l.pred.Limit, l.more, opts)
	if err != nil {
		return err
	}
	if err := l.errs.err(); err != nil {
		if corrupt, ok := errors.AsType[*corruptListError](err); ok && l.pred.Limit > 0 {
			last := corrupt.objects[len(corrupt.objects)-1].Key
			if corrupt.next, _, err = storage.PrepareContinueToken(last, prefix, l.rev, 0, true, opts); err != nil {
				return err
			}
			return corrupt
		}
		return err
	}
	if v.IsNil() {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // items is never null
	}
	if err := s.versioner.UpdateList(listObj, uint64(l.rev), token, remaining); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		l.pred.SetShardInfoOnList(listObj)
	}
	return nil
}

// newestFirst is the context key of NewestFirst.
type newestFirst struct{}

// NewestFirst returns a context for lists that return the objects that were written last, newest
// first, up to the limit, in one page. Such a list costs a step for each object of the resource: it
// is for Events.
func NewestFirst(ctx context.Context) context.Context {
	return context.WithValue(ctx, newestFirst{}, true)
}

// lister is one running list.
type lister struct {
	s       *Store
	prefix  string
	opts    storage.ListOptions
	pred    storage.SelectionPredicate
	v       reflect.Value
	newItem func() runtime.Object

	rev       int64
	found     db.Page // keys of the index whose values are not read yet
	lastKey   string
	more      bool
	remaining int64 // keys after lastKey; only for a predicate that selects all
	errs      listErrors
	selected  int64 // stored bytes of the selected objects
	large     bool  // admitted as a large list
	whole     *wholeList
	unread    []db.KV // of the page that filled the limit
}

// maxSelected returns how many selected bytes end a page.
func (l *lister) maxSelected() int64 {
	if l.whole != nil {
		return min(l.s.budget.page, wholePage)
	}
	return l.s.budget.page
}

// run reads and decodes until the limit is reached, the page has its largest size, or nothing is
// left.
func (l *lister) run(ctx context.Context, rev int64, from string) (err error) {
	paging := l.pred.Limit > 0
	all := l.pred.Empty()
	since, err := l.s.since(l.opts.ResourceVersion)
	if err != nil {
		return err
	}
	o := db.RangeOptions{Prefix: l.prefix, From: from, Rev: rev, Since: since, Limit: chunkRows, Bytes: pageBytes, Count: paging && all && l.whole == nil}
	if paging {
		o.Limit = int(min(l.pred.Limit, maxChunkRows))
	}
	if !all {
		o.Index = l.s.indexFor(ctx, l.pred)
	}
	if ctx.Value(newestFirst{}) != nil {
		o.Newest, o.From, o.Index, o.Rev, o.Since, o.Bytes = true, "", nil, 0, 0, 0
	}
	l.rev, l.found, l.unread = rev, l.whole.found(o, rev), nil
	defer func() {
		if err == nil {
			l.whole.keep(o, l)
		}
	}()
	read := 0
	for {
		page, err := l.page(ctx, o)
		if err != nil {
			return l.s.interpretList(err, l.rev, len(l.pred.Continue) > 0, o.From, l.prefix)
		}
		if l.rev == 0 {
			if err := l.s.checkMinimum(l.opts.ResourceVersion, page.Rev); err != nil {
				return err
			}
			l.rev = page.Rev
		}
		l.remaining = page.Remaining
		read += len(page.KVs)
		full, err := l.appendSelected(ctx, page.KVs, paging)
		if err != nil {
			return err
		}
		l.more = page.More || full
		if o.Newest {
			l.more = false
			return nil
		}
		if full || !page.More || paging && (int64(l.v.Len()) >= l.pred.Limit || l.selected >= l.maxSelected()) {
			return nil
		}
		o.Rev, o.From = l.rev, l.lastKey+"\x00"
		if !paging {
			continue
		}
		switch wanted := int(min(l.pred.Limit-int64(l.v.Len()), maxChunkRows)); {
		case all:
			o.Limit = wanted
		case len(l.found.KVs) > 0: // the limit bounds keys
		case len(o.Index) == 0 && len(page.KVs) < o.Limit: // full by its bytes
			o.Limit = max(wanted, len(page.KVs))
		case len(o.Index) > 0: // enough if the next rows match as often as the previous ones
			o.Limit = min(max(wanted*read*5/4/max(l.v.Len(), 1), chunkRows/4), 4*o.Limit, maxChunkRows)
		default:
			o.Limit = min(2*o.Limit, maxChunkRows)
		}
	}
}

// page reads a page. The cost of finding the keys of an index in order grows with the number of
// objects, so page finds all keys that may be needed at once, and reads their values page by page.
func (l *lister) page(ctx context.Context, o db.RangeOptions) (p db.Page, err error) {
	if !l.opts.Recursive || len(o.Index) == 0 {
		return l.s.page(ctx, o, l.opts.Recursive)
	}
	if len(l.found.KVs) == 0 {
		o.KeysOnly = true
		if l.whole != nil {
			o.Limit = maxChunkRows
		}
		if l.found, err = l.s.db.Range(ctx, o); err != nil {
			return p, err
		}
	}
	n, err := l.s.db.Values(ctx, l.found.Rev, l.found.KVs, o.Bytes)
	p = l.found
	p.KVs, l.found.KVs = p.KVs[:n], p.KVs[n:]
	p.More = p.More || len(l.found.KVs) > 0
	return p, err
}

// page reads a page of a recursive list, or the single key of another list.
func (s *Store) page(ctx context.Context, o db.RangeOptions, recursive bool) (p db.Page, err error) {
	if recursive {
		return s.db.Range(ctx, o)
	}
	var kv db.KV
	var ok bool
	p.Rev = o.Rev
	if o.Rev == 0 {
		kv, ok, p.Rev, err = s.db.GetSince(ctx, o.Prefix, o.Since)
	} else {
		kv, ok, err = s.db.GetAt(ctx, o.Prefix, o.Rev)
	}
	if ok {
		p.KVs = []db.KV{kv}
	}
	return p, err
}

// appendSelected decodes rows and appends those that the predicate selects. It returns true when
// the limit was reached before the last row.
func (l *lister) appendSelected(ctx context.Context, kvs []db.KV, paging bool) (full bool, err error) {
	want := len(kvs)
	if paging {
		want = int(min(int64(want), l.pred.Limit-int64(l.v.Len())))
	}
	if l.pred.Empty() {
		l.v.Grow(want)
	}
	stored := 0
	for i := range kvs {
		stored += len(kvs[i].Value)
	}
	l.s.budget.read(ctx, max(1, len(kvs)), stored)
	start := time.Now()
	defer func() { endpointsrequest.TrackDecodeLatency(ctx, time.Since(start)) }()
	for i := range kvs {
		if paging && int64(l.v.Len()) >= l.pred.Limit {
			l.unread = kvs[i:]
			return true, nil
		}
		kv := &kvs[i]
		l.lastKey = kv.Key
		if ctx.Err() != nil {
			return false, storage.NewTimeoutError(kv.Key, "request did not complete within requested timeout")
		}
		if err := l.appendOne(ctx, kv); err != nil && l.errs.add(kv.Key, err) {
			return false, l.errs.err()
		}
		kv.Value = nil // free what is decoded
		yield()
		if l.large || l.selected <= smallList {
			continue
		}
		if err := l.admit(ctx, kvs[i+1:]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// yield lets other goroutines run between two objects. The scheduler would preempt a list only
// after 10 ms. A get needs a processor several times, and would wait 10 ms for each list that
// decodes (docs/design/performance.md).
func yield() { goruntime.Gosched() }

func (l *lister) appendOne(ctx context.Context, kv *db.KV) error {
	data, _, err := l.s.plain(ctx, *kv)
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", kv.Key, err))
	}
	obj, _, err := l.s.codec.Decode(data, nil, l.newItem())
	if err != nil {
		return markUndecodable(err, kv.Rev)
	}
	if err := l.s.versioner.UpdateObject(obj, uint64(kv.Rev)); err != nil {
		return err
	}
	// An object whose attributes cannot be computed matches nothing.
	if ok, err := l.pred.Matches(obj); err != nil || !ok {
		return nil
	}
	l.v.Set(reflect.Append(l.v, reflect.ValueOf(obj).Elem()))
	l.selected += int64(len(data))
	return nil
}

// admit waits until a list that is no longer small may continue. It reserves memory for all objects
// or, if the list has a limit, for a page whose objects have the same average size as those read so
// far. unread is the rest of the page that the list reads.
func (l *lister) admit(ctx context.Context, unread []db.KV) error {
	l.large = true
	_, weight, err := l.s.db.Totals(ctx, l.prefix)
	if err != nil {
		return l.s.interpret(err)
	}
	prefix := l.prefix
	switch {
	case l.whole != nil:
		weight, prefix = min(weight, l.maxSelected()), ""
	case l.pred.Limit > 0:
		weight, prefix = min(weight, l.selected*l.pred.Limit/int64(l.v.Len()), l.s.budget.page), ""
	}
	waited := false
	err = l.s.budget.admitList(ctx, prefix, max(weight, l.selected), func() {
		// A list that waits drops its objects, and reads again.
		waited = true
		l.v.SetZero()
		l.selected = 0
		clear(unread)
		l.errs = listErrors{}
	})
	if err == nil && waited {
		return errAgain
	}
	return err
}

// errAgain is returned after a list has waited for room: it must be read again from its beginning.
var errAgain = errors.New("read the list again")

// newItemFunc returns a function that makes an empty item of the list. Items of an
// unstructured list have the list's version.
func newItemFunc(listObj runtime.Object, v reflect.Value) func() runtime.Object {
	if list, ok := listObj.(*unstructured.UnstructuredList); ok {
		if apiVersion := list.GetAPIVersion(); apiVersion != "" {
			return func() runtime.Object {
				return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion}}
			}
		}
	}
	elem := v.Type().Elem()
	return func() runtime.Object { return reflect.New(elem).Interface().(runtime.Object) }
}

// GetList implements storage.Interface.
func (s corruptReporter) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	err := s.Store.GetList(ctx, key, opts, list)
	if c, ok := errors.AsType[*corruptListError](err); ok {
		return c.status(s.groupResource)
	}
	return err
}
