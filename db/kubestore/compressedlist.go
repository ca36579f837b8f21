package kubestore

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"tidewaiter/db"
	"tidewaiter/db/kubestore/gzipparts"
)

// compressedBytes bounds the file of compressed objects. An Image takes about 6 kB.
const compressedBytes = 128 << 20

// writeCompressed writes the list as one gzip stream. Each object but the first is
// a part of it that is kept by its revision: the next list, which mostly has the
// same objects, need neither read nor compress them.
func (l *storedList) writeCompressed(ctx context.Context, w io.Writer, head []byte) error {
	z := gzipparts.NewWriter(w)
	err := ahead(ctx, func(ctx context.Context, use func([]gzipparts.Part) error) error {
		return l.eachParts(ctx, head, use)
	}, func(parts []gzipparts.Part) error {
		for _, p := range parts {
			if err := z.Write(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := z.Write(gzipparts.New([]byte(listEnd))); err != nil {
		return err
	}
	return z.Close()
}

// eachParts calls use with head and the list's objects, a page at a time.
func (l *storedList) eachParts(ctx context.Context, head []byte, use func([]gzipparts.Part) error) error {
	objects, bytes, err := l.r.s.db.Totals(ctx, l.prefix)
	keep := err == nil && l.r.compressed.Worth(objects, bytes)
	l.next.KeysOnly = keep
	return l.eachPage(ctx, func(p db.Page) error {
		var first []gzipparts.Part
		if head != nil && len(p.KVs) > 0 {
			// No comma before the first object: it is no part of other lists.
			part, err := l.compress(ctx, head, p.KVs[0])
			if err != nil {
				return err
			}
			first, head, p.KVs = append(first, part), nil, p.KVs[1:]
		}
		parts, err := l.parts(ctx, p.KVs, keep)
		if err != nil {
			return err
		}
		return use(append(first, parts...))
	})
}

// parts are objects with a comma before each, from those that are kept and, as far
// as they are not there, made now.
func (l *storedList) parts(ctx context.Context, kvs []db.KV, keep bool) ([]gzipparts.Part, error) {
	ids, parts := make([]int64, len(kvs)), make([]gzipparts.Part, len(kvs))
	for i, kv := range kvs {
		ids[i] = kv.Rev
	}
	if keep {
		l.r.compressed.Get(ids, parts)
	}
	var missing []int
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range parts {
		if parts[i].Deflated != nil {
			continue
		}
		missing = append(missing, i)
		group.Go(func() (err error) {
			parts[i], err = l.compress(ctx, []byte(","), kvs[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if keep && len(missing) > 0 {
		newIDs, made := make([]int64, len(missing)), make([]gzipparts.Part, len(missing))
		for n, i := range missing {
			newIDs[n], made[n] = ids[i], parts[i]
		}
		if err := l.r.compressed.Put(newIDs, made); err != nil {
			klog.FromContext(ctx).V(2).Info("Lists are compressed anew each time", "resource", l.r.kind.Resource, "err", err)
		}
	}
	return parts, nil
}

// texts are buffers for what is compressed.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// compress compresses what stands before an object, and it.
func (l *storedList) compress(ctx context.Context, before []byte, kv db.KV) (gzipparts.Part, error) {
	if kv.Value == nil && kv.Err == nil { // only its key was read
		key := kv.Key
		var ok bool
		var err error
		if kv, ok, err = l.r.s.db.GetAt(ctx, key, l.rev); err != nil {
			return gzipparts.Part{}, l.r.s.interpretList(err, l.rev, l.opts.Predicate.Continue != "", key, l.prefix)
		}
		if !ok {
			return gzipparts.Part{}, storage.NewInternalError(fmt.Errorf("key %q: listed at revision %d and not found there", key, l.rev))
		}
	}
	buf := texts.Get().(*[]byte)
	defer texts.Put(buf)
	text, rest, err := l.r.object(ctx, append((*buf)[:0], before...), &kv)
	if err != nil {
		return gzipparts.Part{}, err
	}
	text = append(text, rest...)
	*buf = text
	return gzipparts.New(text), nil
}
