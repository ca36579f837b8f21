package kubestore

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
)

// wholePage is how many stored bytes end a page of a whole list. It is large enough that the pages
// of a list cost little more than the list, and small enough that there is room for a dozen lists.
const wholePage = 2 << 20

type wholeKey struct{}

// wholeList is a list that a request reads page by page, with one page in memory at a time.
type wholeList struct {
	ctx context.Context // ends with the request

	mu         sync.Mutex
	held, used int64 // bytes of the room for lists: of the request, and of its page
	ended      bool
	left       found
}

// found has the keys that a page has found with an index and whose values it has not read.
type found struct {
	prefix, from string
	index        []db.IndexQuery
	keys         db.Page
}

// WholeList is for a request that sends a list page by page. Each call of next ends the previous
// page, whose memory the request must have released, and returns the context with which to read the
// next page. The request keeps the room of the first page until ctx is done, so that a list that
// has begun can continue.
func WholeList(ctx context.Context) (next func() context.Context) {
	w := &wholeList{ctx: ctx}
	ctx = context.WithValue(ctx, wholeKey{}, w)
	return func() context.Context {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.used = 0
		return ctx
	}
}

// wholeOf returns the whole list to which a page request belongs; nil if there is none.
func wholeOf(ctx context.Context, pred storage.SelectionPredicate) *wholeList {
	if w, ok := ctx.Value(wholeKey{}).(*wholeList); ok && pred.Limit > 0 {
		return w
	}
	return nil
}

// found returns the keys that the previous page has found and whose values it has not read, if o
// continues there.
func (w *wholeList) found(o db.RangeOptions, rev int64) (p db.Page) {
	if w == nil || len(o.Index) == 0 {
		return p
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.left; r.prefix == o.Prefix && r.from == o.From && slices.EqualFunc(r.index, o.Index, sameQuery) && r.keys.Rev == rev {
		p = r.keys
	}
	w.left = found{}
	return p
}

func sameQuery(a, b db.IndexQuery) bool {
	return a.Index == b.Index && a.Part == b.Part && slices.Equal(a.Values, b.Values)
}

// keep stores the keys that a page has found and whose values it has not read.
func (w *wholeList) keep(o db.RangeOptions, l *lister) {
	if w == nil || len(o.Index) == 0 || len(l.found.KVs)+len(l.unread) == 0 || l.rev != l.found.Rev {
		return
	}
	keys := l.found
	keys.KVs = slices.Concat(l.unread, l.found.KVs)
	for i := range l.unread {
		keys.KVs[i].Value = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = found{prefix: o.Prefix, from: l.lastKey + "\x00", index: o.Index, keys: keys}
}

// admitPage is admitList for a page of a whole list.
func (b *budget) admitPage(ctx context.Context, w *wholeList, n int64, wait func()) error {
	w.mu.Lock()
	n = min(n, max(0, listBytes-w.used))
	has, more := w.held, n-(w.held-w.used)
	w.used += n
	w.mu.Unlock()
	if more <= 0 {
		return nil
	}
	if err := b.acquireList(ctx, has, more, wait); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		b.lists.Remove(b.user(ctx), more)
		return nil
	}
	if w.held == 0 {
		context.AfterFunc(w.ctx, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = true
			b.lists.Remove(b.user(w.ctx), w.held)
		})
	}
	w.held += more
	return nil
}
