package storedjson

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/filecache"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/gzipparts"
)

// keptBytes bounds each of a kind's three files of objects. An Image takes about 20 kB in
// plain lists, 6 kB in compressed ones.
const keptBytes = 128 << 20

// longestKept is the length in bytes of the longest buffer that a later run reuses.
const longestKept = 4 * listRun

// verbose is the level of messages that are logged with verbosity 2 and more.
const verbose = slog.Level(-2)

// encoding is one way to send objects: as plain JSON or compressed. It caches each encoded object
// by revision, with a comma before it as in a list. Mostly the next answer has the same objects,
// and need not read or encode them.
type encoding struct {
	k *kind
	// encode appends one or more of a scan's objects, from the first on, to run.
	encode func(ctx context.Context, p *scan, run *run, objects []stored) error
	// piece encodes other text, and comma is an encoded comma.
	piece func(text []byte) piece
	comma piece
	kept  *filecache.Cache[sums]
	// inFlight are the objects that are being encoded for the cache.
	inFlight singleflight
	// ratio is how many stored bytes become one encoded byte.
	ratio int64
	// costly is true if encoding an object costs more than reading it from the cache.
	costly bool
	// got are the objects that were read one by one. They are in a file of their own: kept has those
	// of a list beside each other, so that one read gets many. seen are revisions that were read so,
	// singly counts the reads, and room is whether all objects fitted when they were counted last.
	got    *filecache.Cache[sums]
	seen   []atomic.Uint32
	singly atomic.Int64
	room   atomic.Bool

	// runs holds *run, to reuse their buffers. A run whose Write failed is not reused: HTTP/2 may
	// still be sending it.
	runs sync.Pool
}

// piece is an encoded text.
type piece struct {
	bytes []byte
	sum   gzipparts.Sum // checksum of a compressed text
}

// sums are the checksums of one compressed object, with its comma and without it.
type sums struct{ all, object gzipparts.Sum }

// run is a number of encoded objects that are sent with one Write.
type run struct {
	filecache.Run[sums]
	// framed has the same objects with event texts instead of commas, if a watch gets them
	framed []byte
	sum    gzipparts.Sum // of the sent bytes
}

func (r *run) bytes() []byte {
	if len(r.framed) > 0 {
		return r.framed
	}
	return r.Bytes
}

// plainEncoding sends uncompressed JSON.
func plainEncoding(k *kind, dir string) *encoding {
	f := &encoding{
		k:     k,
		kept:  filecache.New[sums](dir, keptBytes),
		got:   filecache.New[sums](dir, keptBytes),
		seen:  make([]atomic.Uint32, seenRevisions),
		ratio: 1,
		piece: func(text []byte) piece { return piece{bytes: text} },
		encode: func(_ context.Context, p *scan, run *run, objects []stored) (err error) {
			for i := range objects {
				start := len(run.Bytes)
				if start >= p.run {
					break
				}
				if run.Bytes, err = k.append(append(run.Bytes, ','), &objects[i]); err != nil {
					return err
				}
				run.Items = append(run.Items, filecache.Item[sums]{Len: len(run.Bytes) - start})
			}
			return nil
		},
	}
	f.comma = f.piece([]byte(","))
	return f
}

// gzipEncoding compresses each object on its own.
func gzipEncoding(k *kind, dir string) *encoding {
	f := &encoding{
		k:      k,
		kept:   filecache.New[sums](dir, keptBytes),
		ratio:  3,
		costly: true,
		piece: func(text []byte) piece {
			b, sum := gzipparts.Append(nil, text)
			return piece{b, sum}
		},
	}
	f.comma = f.piece([]byte(","))
	f.encode = func(ctx context.Context, _ *scan, run *run, objects []stored) error {
		parts, items := make([][]byte, len(objects)), make([]sums, len(objects))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(runtime.GOMAXPROCS(0))
		for i := range objects {
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				buf := texts.Get().(*[]byte)
				defer texts.Put(buf)
				text, err := k.append((*buf)[:0], &objects[i])
				if err != nil {
					return err
				}
				*buf = text
				part := append(make([]byte, 0, len(text)/3+64), f.comma.bytes...)
				parts[i], items[i].object = gzipparts.Append(part, text)
				items[i].all = f.comma.sum.Then(items[i].object)
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for i, p := range parts {
			run.Bytes = append(run.Bytes, p...)
			run.Items = append(run.Items, filecache.Item[sums]{Len: len(p), Meta: items[i]})
		}
		return nil
	}
	return f
}

// framing is the text around the objects of an answer.
type framing struct {
	first         piece // before the first of a list, where others have a comma
	before, after piece // around each event; both or neither
}

// frame sets the texts around the objects of a run. first is true for the run with the answer's
// first object.
func (f *encoding) frame(run *run, fr framing, first bool) {
	run.framed, run.sum = run.framed[:0], gzipparts.Sum{}
	events := len(fr.before.bytes) > 0
	rest := run.Bytes
	for i, item := range run.Items {
		object := rest[len(f.comma.bytes):item.Len]
		rest = rest[item.Len:]
		switch {
		case events:
			run.framed = append(append(append(run.framed, fr.before.bytes...), object...), fr.after.bytes...)
			run.sum = run.sum.Then(fr.before.sum).Then(item.Meta.object).Then(fr.after.sum)
		case first && i == 0:
			run.framed = append(append(run.framed, fr.first.bytes...), object...)
			run.framed = append(run.framed, rest...)
			run.sum = fr.first.sum.Then(item.Meta.object)
		default:
			run.sum = run.sum.Then(item.Meta.all)
		}
	}
}

// sink receives encoded texts.
type sink interface {
	Write(bytes []byte, sum gzipparts.Sum) error
	Close() error
}

// plainSink writes them unchanged.
type plainSink struct{ io.Writer }

// Write implements sink.
func (s plainSink) Write(bytes []byte, _ gzipparts.Sum) error {
	_, err := s.Writer.Write(bytes)
	return err
}

// Close implements sink.
func (plainSink) Close() error { return nil }

// send writes the objects of p with their framing. While it writes one run, it makes the next, and
// it calls sent after each run. An error of writing is a writeError.
func (f *encoding) send(ctx context.Context, p *scan, fr framing, to sink, sent func(objects int) error) error {
	f.k.scans.Add(1)
	defer f.k.scans.Add(-1)
	return pipeline(ctx, func(ctx context.Context, use func(*run) error) error {
		return f.each(ctx, p, fr, use)
	}, func(run *run) error {
		if err := to.Write(run.bytes(), run.sum); err != nil {
			return writeError{err}
		}
		n := len(run.Items)
		f.reuse(run)
		return sent(n)
	})
}

// empty returns a run without objects.
func (f *encoding) empty() *run {
	r, ok := f.runs.Get().(*run)
	if !ok {
		r = &run{}
	}
	r.Bytes, r.Items, r.framed = r.Bytes[:0], r.Items[:0], r.framed[:0]
	return r
}

// reuse lets a later run have the buffers of a run that has been written.
func (f *encoding) reuse(r *run) {
	if cap(r.Bytes)+cap(r.framed) <= longestKept {
		f.runs.Put(r)
	}
}

// each calls use with each run. The run belongs to use from then on.
func (f *encoding) each(ctx context.Context, p *scan, fr framing, use func(*run) error) error {
	keep := false
	if f.costly || p.more || len(p.rest) > 0 {
		// otherwise everything has been read, and encoding it is quick
		objects, size, err := f.k.source.Totals(ctx)
		// If the cache is too small for all objects, it helps only answers that read them at the same
		// time.
		keep = err == nil && (f.kept.Worth(objects, size/f.ratio) || f.k.scans.Load() > 1)
	}
	first := true
	return p.each(ctx, keep, func(objects []stored) error {
		// If encoding costs nothing, objects that have been read are faster to encode than to take from
		// the cache.
		keep := keep && (f.costly || len(objects) > 0 && objects[0].unread())
		ids := make([]int64, len(objects))
		for i := range objects {
			ids[i] = objects[i].rev
		}
		for rest := objects; len(rest) > 0; first = false {
			r, err := f.fill(ctx, p, rest, ids, keep, fr, first)
			if err != nil {
				return err
			}
			n := len(r.Items)
			clear(rest[:n]) // so that the values can be collected
			rest, ids = rest[n:], ids[n:]
			if err := use(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// fill returns the next run, after it has reserved memory for it.
func (f *encoding) fill(ctx context.Context, p *scan, objects []stored, ids []int64, keep bool, fr framing, first bool) (*run, error) {
	for {
		r := f.empty()
		if !f.k.acquireWorker(ctx) {
			return nil, context.Cause(ctx)
		}
		err := f.next(ctx, p, r, objects, ids, keep)
		if err == nil {
			f.frame(r, fr, first)
		}
		// need is the memory for this run, for the run that is being written, and for the objects of the
		// next.
		need := headBytes + 3*int64(len(r.Bytes)) + 2*int64(len(r.framed))
		ok := err == nil && p.memory.grow(need)
		f.k.releaseWorker()
		if ok || err != nil {
			return r, err
		}
		// The objects are read again when there is room.
		forget(objects)
		if err := p.memory.wait(ctx, need); err != nil {
			return nil, err
		}
	}
}

// next appends one or more of objects, from the first on, to run. It encodes them or, with keep,
// takes them from the cache by their ids.
func (f *encoding) next(ctx context.Context, p *scan, run *run, objects []stored, ids []int64, keep bool) error {
	if keep {
		if f.kept.Append(&run.Run, ids, p.run); len(run.Items) > 0 {
			return nil
		}
		defer f.inFlight.begin(ctx, ids[0])()
		if f.kept.Append(&run.Run, ids, p.run); len(run.Items) > 0 {
			return nil
		}
	}
	objects, ids = objects[:min(len(objects), chunkObjects)], ids[:min(len(ids), chunkObjects)]
	if keep {
		// Another answer may have cached the first of them meanwhile.
		objects = objects[:max(f.kept.Missing(ids), 1)]
	}
	if objects[0].unread() {
		if err := p.read(ctx, objects); err != nil {
			return err
		}
	}
	if n := slices.IndexFunc(objects, func(s stored) bool { return s.unread() }); n >= 0 {
		objects = objects[:n]
	}
	if err := f.encode(ctx, p, run, objects); err != nil || !keep {
		return err
	}
	if err := f.kept.Put(ids[:len(run.Items)], run.Run); err != nil {
		slog.Log(ctx, verbose, "objects are encoded again for each response", "resource", f.k.Resource, "err", err)
	}
	return nil
}

// pipeline calls use with each value from produce. While use runs, produce makes the next value.
func pipeline[T any](ctx context.Context, produce func(ctx context.Context, use func(T) error) error, use func(T) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	made := make(chan T)
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
