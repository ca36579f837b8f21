package storedjson

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"

	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/filecache"
)

// countEvery is how many objects are read one by one from one count of all objects to the next.
const countEvery = 1024

// seenRevisions is how many revisions an encoding knows to have been read: more than the Images of
// 20 kB that the cache holds.
const seenRevisions = 1 << 14

// one returns a run with the object called name. It takes the object from the cache, or reads it.
// The second read leaves it in the cache. A read of the cache takes a third of the time of a read
// of the database, and a write of the cache takes another third: too much for an object that is
// read once.
func (f *encoding) one(ctx context.Context, name string) (*run, error) {
	r := f.empty()
	s := stored{name: name}
	var err error
	s.data, s.rev, err = f.k.source.ReadStored(ctx, name, func(rev int64) bool {
		for _, cache := range []*filecache.Cache[sums]{f.got, f.kept} {
			r.Bytes, r.Items = r.Bytes[:0], r.Items[:0]
			if cache.Append(&r.Run, []int64{rev}, 1); len(r.Items) == 1 && f.isNamed(r, rev, name) {
				return true
			}
		}
		return false
	})
	if err != nil || s.data == nil {
		return r, err
	}
	r.Bytes, r.Items = append(r.Bytes[:0], f.comma.bytes...), r.Items[:0]
	if r.Bytes, err = f.k.append(r.Bytes, &s); err != nil {
		return r, err
	}
	r.Items = append(r.Items, filecache.Item[sums]{Len: len(r.Bytes)})
	ids := []int64{s.rev}
	if f.fits(ctx) && f.isNamed(r, s.rev, name) && f.readBefore(s.rev) && f.got.Missing(ids) > 0 {
		if err := f.got.Put(ids, r.Run); err != nil {
			slog.Log(ctx, verbose, "objects are read again for each response", "resource", f.k.Resource, "err", err)
		}
	}
	return r, nil
}

// readBefore reports whether a revision was read before, unless many others were read since.
func (f *encoding) readBefore(rev int64) bool {
	return f.seen[rev%seenRevisions].Swap(uint32(rev)) == uint32(rev)
}

// isNamed reports whether the object of a run has a revision and a name, and has them where it is
// encoded with them. The storage knows the revision of a name by a hash of the name.
func (f *encoding) isNamed(r *run, rev int64, name string) bool {
	rest, ok := bytes.CutPrefix(r.Bytes[len(f.comma.bytes):], f.k.head)
	if !ok {
		return false
	}
	var buf [128]byte
	want := strconv.AppendInt(append(buf[:0], `"resourceVersion":"`...), rev, 10)
	want = strconv.AppendQuote(append(want, `","name":`...), name)
	return bytes.HasPrefix(rest, want)
}

// fits reports whether the cache has room for all objects. In a smaller one, an object that is read
// would rarely be found again.
func (f *encoding) fits(ctx context.Context) bool {
	if f.singly.Add(1)%countEvery == 1 {
		objects, size, err := f.k.source.Totals(ctx)
		f.room.Store(err == nil && f.got.Worth(objects, size/f.ratio))
	}
	return f.room.Load()
}
