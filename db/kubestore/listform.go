package kubestore

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/kubestore/filecache"
	"github.com/tidewaiter/tidewaiter/db/kubestore/gzipparts"
)

const (
	// keptBytes bounds each of a kind's two files of list items. An Image takes about
	// 20 kB in plain lists, 6 kB in compressed ones.
	keptBytes = 128 << 20
	// storedRunBytes are formed, or read from what is kept, and written at a time,
	// at least. Larger writes gained nothing.
	storedRunBytes = 512 << 10
	// storedKeyRows are read at a time by a list that reads no values.
	storedKeyRows = 1000
)

// listForm is a form in which lists are sent. Each object but a list's first is kept
// in that form, with the comma before it, by its revision: the next list, which mostly
// has the same objects, need neither read nor form them.
type listForm[M any] struct {
	// form appends to run the first of kvs, one or more, with what stands before each.
	form func(ctx context.Context, run *filecache.Run[M], before []byte, kvs []db.KV) error
	kept *filecache.Cache[M]
	// ratio is how many stored bytes become one that is kept.
	ratio int64
	// costly: an object is taken from what is kept even if it has been read.
	costly bool

	// runs is of *filecache.Run[M], whose bytes are used again. After a Write that has
	// failed they are not: HTTP/2 can still be sending them.
	runs sync.Pool
}

// plainForm forms lists as they are.
func plainForm(r *storedReader) *listForm[struct{}] {
	return &listForm[struct{}]{
		kept:  filecache.New[struct{}](filepath.Dir(r.s.db.Path()), keptBytes),
		ratio: 1,
		form: func(ctx context.Context, run *filecache.Run[struct{}], before []byte, kvs []db.KV) error {
			for i := range kvs {
				start := len(run.Bytes)
				if start >= storedRunBytes {
					break
				}
				var err error
				if run.Bytes, err = r.append(ctx, append(run.Bytes, before...), &kvs[i]); err != nil {
					return err
				}
				run.Items = append(run.Items, filecache.Item[struct{}]{Len: len(run.Bytes) - start})
			}
			return nil
		},
	}
}

// gzipForm compresses, each object on its own.
func gzipForm(r *storedReader) *listForm[gzipparts.Sum] {
	return &listForm[gzipparts.Sum]{
		kept:   filecache.New[gzipparts.Sum](filepath.Dir(r.s.db.Path()), keptBytes),
		ratio:  3,
		costly: true,
		form: func(ctx context.Context, run *filecache.Run[gzipparts.Sum], before []byte, kvs []db.KV) error {
			parts, sums := make([][]byte, len(kvs)), make([]gzipparts.Sum, len(kvs))
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(runtime.GOMAXPROCS(0))
			for i := range kvs {
				group.Go(func() error {
					buf := texts.Get().(*[]byte)
					defer texts.Put(buf)
					text, err := r.append(ctx, append((*buf)[:0], before...), &kvs[i])
					if err != nil {
						return err
					}
					*buf = text
					parts[i], sums[i] = gzipparts.Append(make([]byte, 0, len(text)/3+64), text)
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				return err
			}
			for i, p := range parts {
				run.Bytes = append(run.Bytes, p...)
				run.Items = append(run.Items, filecache.Item[gzipparts.Sum]{Len: len(p), Meta: sums[i]})
			}
			return nil
		},
	}
}

// writePlain writes the list.
func (l *storedList) writePlain(ctx context.Context, w io.Writer, head []byte) error {
	if len(l.pages[0].KVs) == 0 {
		_, err := w.Write(append(head, listEnd...))
		return err
	}
	err := l.r.plain.send(ctx, l, head, func(run *filecache.Run[struct{}]) error {
		_, err := w.Write(run.Bytes)
		return err
	})
	if err == nil {
		_, err = io.WriteString(w, listEnd)
	}
	return err
}

// writeGzip writes the list, which is not empty, as one gzip stream.
func (l *storedList) writeGzip(ctx context.Context, w io.Writer, head []byte) error {
	z := gzipparts.NewWriter(w)
	err := l.r.gzip.send(ctx, l, head, func(run *filecache.Run[gzipparts.Sum]) error {
		var sum gzipparts.Sum
		for _, item := range run.Items {
			sum = sum.Then(item.Meta)
		}
		return z.Write(run.Bytes, sum)
	})
	if err != nil {
		return err
	}
	if err := z.Write(gzipparts.Append(nil, []byte(listEnd))); err != nil {
		return err
	}
	return z.Close()
}

// send calls write with the list from head to its last object, each run of objects
// while the next is made.
func (f *listForm[M]) send(ctx context.Context, l *storedList, head []byte, write func(*filecache.Run[M]) error) error {
	return ahead(ctx, func(ctx context.Context, use func(*filecache.Run[M]) error) error {
		return f.each(ctx, l, head, use)
	}, func(run *filecache.Run[M]) error {
		err := write(run)
		if err == nil {
			f.runs.Put(run)
		}
		return err
	})
}

// each calls use with runs, which are then the user's.
func (f *listForm[M]) each(ctx context.Context, l *storedList, head []byte, use func(*filecache.Run[M]) error) error {
	keep := false
	if f.costly || l.more { // else all that is listed has been read, and is quick to form
		objects, size, err := l.r.s.db.Totals(ctx, l.prefix)
		keep = err == nil && f.kept.Worth(objects, size/f.ratio)
	}
	if keep {
		l.next.KeysOnly, l.next.Limit = true, storedKeyRows
	}
	first := true
	return l.eachPage(ctx, func(p db.Page) error {
		// What has been read is the quickest to have in a form that costs nothing.
		keep := keep && (f.costly || len(p.KVs) > 0 && unread(p.KVs[0]))
		ids := make([]int64, len(p.KVs))
		for i, kv := range p.KVs {
			ids[i] = kv.Rev
		}
		for rest := p.KVs; len(rest) > 0; first = false {
			run, ok := f.runs.Get().(*filecache.Run[M])
			if !ok {
				run = &filecache.Run[M]{}
			}
			run.Bytes, run.Items = run.Bytes[:0], run.Items[:0]
			var err error
			switch {
			case first:
				// No comma before the first object: it is no part of other lists.
				err = f.form(ctx, run, head, rest[:1])
			case keep:
				err = f.next(ctx, l, run, rest, ids)
			default:
				err = f.form(ctx, run, comma, rest[:min(len(rest), storedChunkRows)])
			}
			if err != nil {
				return err
			}
			n := len(run.Items)
			clear(rest[:n]) // lets go of values
			rest, ids = rest[n:], ids[n:]
			if err := use(run); err != nil {
				return err
			}
		}
		return nil
	})
}

var comma = []byte(",")

// next appends to run the first of kvs, one or more, from what is kept by their ids or
// formed now.
func (f *listForm[M]) next(ctx context.Context, l *storedList, run *filecache.Run[M], kvs []db.KV, ids []int64) error {
	if f.kept.Append(run, ids, storedRunBytes); len(run.Items) > 0 {
		return nil
	}
	ids = ids[:min(len(ids), storedChunkRows)]
	// Another list may have put the first there meanwhile.
	kvs = kvs[:max(f.kept.Missing(ids), 1)]
	if unread(kvs[0]) {
		if err := l.read(ctx, kvs); err != nil {
			return err
		}
	}
	if n := slices.IndexFunc(kvs, unread); n >= 0 {
		kvs = kvs[:n]
	}
	if err := f.form(ctx, run, comma, kvs); err != nil {
		return err
	}
	if err := f.kept.Put(ids[:len(run.Items)], *run); err != nil {
		klog.FromContext(ctx).V(2).Info("Lists are formed anew each time", "resource", l.r.kind.Resource, "err", err)
	}
	return nil
}

// unread tells whether only kv's key has been read.
func unread(kv db.KV) bool { return kv.Value == nil && kv.Err == nil }

// read reads the values of the first of kvs, which are keys in a row, one or more.
func (l *storedList) read(ctx context.Context, kvs []db.KV) error {
	page, err := l.r.s.db.Range(ctx, db.RangeOptions{Prefix: l.prefix, From: kvs[0].Key, Rev: l.rev, Limit: len(kvs)})
	if err != nil {
		return l.r.s.interpretList(err, l.rev, l.opts.Predicate.Continue != "", kvs[0].Key, l.prefix)
	}
	if len(page.KVs) == 0 {
		return storage.NewInternalError(fmt.Errorf("key %q: listed at revision %d, and not found there", kvs[0].Key, l.rev))
	}
	for i, kv := range page.KVs {
		if kv.Rev != kvs[i].Rev {
			return storage.NewInternalError(fmt.Errorf("key %q: listed at revision %d, and read at %d", kvs[i].Key, kvs[i].Rev, kv.Rev))
		}
	}
	copy(kvs, page.KVs)
	return nil
}
