package kubestore

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/db"
)

const (
	// storedChunkRows are read at a time by a list that streams. A page is also
	// closed by the database's own bound on bytes.
	storedChunkRows = 100
	// gzipThreshold is the length from which the API server compresses, too.
	gzipThreshold = 128 << 10
)

// list answers with all objects, or a page of them. It leaves the answer to next
// when an object that it has read before it writes is damaged. One that it meets
// later ends the connection, and the next list is left to next.
func (r *storedReader) list(w http.ResponseWriter, req *http.Request, opts storage.ListOptions, next http.Handler) {
	l := &storedList{r: r, opts: opts, limit: int(opts.Predicate.Limit)}
	head, err := l.begin(req.Context())
	if err != nil {
		r.fail(w, req, storeerr.InterpretListError(err, r.kind.Resource.GroupResource()))
		return
	}
	if l.damaged {
		next.ServeHTTP(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if acceptsGzip(req) && l.long(req.Context()) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		err = l.writeGzip(req.Context(), w, head)
	} else {
		err = l.writePlain(req.Context(), w, head)
	}
	if err != nil {
		// The status is out: all that is left is to show that this is not the end.
		if r.unreadable.Load() != nil {
			klog.FromContext(req.Context()).Error(err, "A list ended at an object that cannot be read; the next one will say so", "resource", r.kind.Resource)
		} else {
			klog.FromContext(req.Context()).V(2).Info("A list ended early", "resource", r.kind.Resource, "err", err)
		}
		panic(http.ErrAbortHandler)
	}
}

// acceptsGzip is the API server's rule (responsewriters.responseContentEncodingSupported).
func acceptsGzip(req *http.Request) bool {
	for encoding := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		if encoding, _, _ = strings.Cut(encoding, ";"); strings.TrimSpace(encoding) == "gzip" {
			return true
		}
	}
	return false
}

// storedList is one list under way.
type storedList struct {
	r      *storedReader
	opts   storage.ListOptions
	limit  int // 0 for all
	prefix string
	rev    int64
	next   db.RangeOptions

	pages   []db.Page // read before anything is written
	size    int       // bytes of them
	damaged bool      // one of them is
	more    bool      // of a list without a limit: there are pages to read
}

// long tells whether the list has so many bytes that the API server would compress it.
func (l *storedList) long(ctx context.Context) bool {
	if l.size > gzipThreshold || !l.more {
		return l.size > gzipThreshold
	}
	_, size, err := l.r.s.db.Totals(ctx, l.prefix)
	return err == nil && size > gzipThreshold
}

// begin reads what has to be known before the first byte is written: all rows of
// a list with a limit, else the first page. It returns the list up to its items.
func (l *storedList) begin(ctx context.Context) (head []byte, err error) {
	s := l.r.s
	if l.prefix, err = s.prepareKey(s.resourcePrefix, true); err != nil {
		return nil, err
	}
	rev, from, err := storage.ValidateListOptions(l.prefix, s.versioner, l.opts)
	if err != nil {
		return nil, err
	}
	l.rev = rev
	l.next = db.RangeOptions{Prefix: l.prefix, From: from, Rev: rev, Limit: storedChunkRows, Count: l.limit > 0}
	rows := 0
	for {
		if l.limit > 0 {
			l.next.Limit = l.limit - rows
		}
		page, err := l.page(ctx)
		if err != nil {
			return nil, err
		}
		rows += len(page.KVs)
		l.pages = append(l.pages, page)
		for i := range page.KVs {
			l.size += len(page.KVs[i].Value)
			l.damaged = l.damaged || page.KVs[i].Err != nil
		}
		if l.limit == 0 || !page.More || rows >= l.limit {
			break
		}
	}
	last := l.pages[len(l.pages)-1]
	token, remaining := "", (*int64)(nil)
	if l.limit > 0 && last.More {
		lastKey := last.KVs[len(last.KVs)-1].Key
		if token, remaining, err = storage.PrepareContinueToken(lastKey, l.prefix, l.rev, last.Remaining+int64(l.limit), true, l.opts); err != nil {
			return nil, err
		}
	}
	l.more = l.limit == 0 && last.More
	return l.head(token, remaining), nil
}

// page reads the next page and moves on.
func (l *storedList) page(ctx context.Context) (db.Page, error) {
	page, err := l.r.s.db.Range(ctx, l.next)
	if err != nil {
		return page, l.r.s.interpretList(err, l.rev, len(l.opts.Predicate.Continue) > 0, l.next.From, l.prefix)
	}
	if l.rev == 0 {
		if err := l.r.s.checkMinimum(l.opts.ResourceVersion, page.Rev); err != nil {
			return page, err
		}
		l.rev, l.next.Rev = page.Rev, page.Rev
	}
	if page.More {
		l.next.From = page.KVs[len(page.KVs)-1].Key + "\x00"
	}
	return page, nil
}

// head is the list up to its items.
func (l *storedList) head(token string, remaining *int64) []byte {
	b := []byte(`{"kind":` + strconv.Quote(l.r.kind.Kind+"List") + `,"apiVersion":` + strconv.Quote(l.r.kind.Resource.GroupVersion().String()) +
		`,"metadata":{"resourceVersion":"` + strconv.FormatInt(l.rev, 10) + `"`)
	if token != "" {
		b = append(b, `,"continue":`+strconv.Quote(token)...) // base64: nothing to escape
	}
	if remaining != nil {
		b = append(b, `,"remainingItemCount":`...)
		b = strconv.AppendInt(b, *remaining, 10)
	}
	return append(b, `},"items":[`...)
}

// listEnd is a list from the end of its items.
const listEnd = "]}\n"

// eachPage calls use with the pages that begin read and then with all others.
func (l *storedList) eachPage(ctx context.Context, use func(db.Page) error) error {
	for i, p := range l.pages {
		l.pages[i] = db.Page{} // its values are the user's to let go of
		if err := use(p); err != nil {
			return err
		}
	}
	for l.more {
		page, err := l.page(ctx)
		if err == nil && ctx.Err() != nil {
			err = apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout: %v", ctx.Err()), 0)
		}
		if err != nil {
			return err
		}
		l.more = page.More
		if err := use(page); err != nil {
			return err
		}
	}
	return nil
}

// ahead calls use with what produce makes, each while the next is made.
func ahead[T any](ctx context.Context, produce func(ctx context.Context, use func(T) error) error, use func(T) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	made := make(chan T, 1)
	var producer sync.WaitGroup
	var failed error
	producer.Go(func() {
		defer close(made)
		failed = produce(ctx, func(t T) error {
			select {
			case made <- t:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	for t := range made {
		if err = use(t); err != nil {
			cancel()
			break
		}
	}
	producer.Wait()
	if err == nil {
		err = failed
	}
	return err
}
