package storedjson

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage"
)

const (
	// headObjects and headBytes bound how much is read before the first byte of an answer is written.
	// If one of these objects cannot be read, the API server can still report it.
	headObjects = 100
	headBytes   = 256 << 10
	// chunkObjects is how many objects are read, or encoded, at a time.
	chunkObjects = 100
	// listRun and watchRun are the least length of a run in bytes, and also how much is read at
	// a time. Each answer has two runs in memory. Long runs make a list faster; short ones leave
	// room for more watches.
	listRun, watchRun = 512 << 10, 128 << 10
	// chunkKeys is how many names are read at a time without values.
	chunkKeys = 1000
)

// scan reads the objects of a kind at one revision, in the order of their names.
type scan struct {
	k   *kind
	rev int64

	head []stored // read before anything is written
	size int      // bytes of them
	rest []stored // the objects after head in a page; only their revisions have been read
	// more is true if the scan continues after the page, with the objects after the name from.
	more bool
	from string
	// named is true if the request listed the objects' names. Other objects may be between them in the
	// storage.
	named bool

	// run is the length of runs. memory is the answer's reservation.
	run    int
	memory *reservation

	// last and remaining are set if more objects follow the page: its last name, and how many follow.
	last      string
	remaining int64
}

// weight is how much an answer with runs of that length must reserve at first.
func weight(run int) int64 { return headBytes + 3*int64(run) }

// begin reads the head of a scan, before the first byte is written. The answer keeps as much of it
// as its reservation has room for. ok is false if the API server's own handler should report an
// error.
func (k *kind) begin(ctx context.Context, opts storage.ListOptions, run int, share *reservation) (p *scan, ok bool) {
	rev, from, err := storage.ValidateListOptions("/", k.source.Versioner(), opts)
	if err != nil {
		return nil, false
	}
	p = &scan{k: k, rev: rev, from: strings.TrimPrefix(from, "/"), run: run, memory: share}
	if !k.acquireWorker(ctx) {
		return nil, false
	}
	defer k.releaseWorker()
	limit := int(opts.Predicate.Limit)
	rows := headObjects
	if limit > 0 {
		rows = limit
	}
	if p.head, err = p.page(ctx, rows, headBytes, limit > 0); err != nil {
		return nil, false
	}
	if rv, err := k.source.Versioner().ParseResourceVersion(opts.ResourceVersion); err != nil || rv > uint64(p.rev) {
		return nil, false
	}
	for i := range p.head {
		if p.head[i].err != nil {
			return nil, false
		}
		p.size += len(p.head[i].data)
	}
	if !share.grow(weight(run) + int64(max(0, p.size-headBytes))) {
		forget(p.head)
	}
	if limit > 0 && p.more && len(p.head) < limit {
		if p.rest, err = p.page(ctx, limit-len(p.head), 0, true); err != nil {
			return nil, false
		}
	}
	if limit > 0 && p.more {
		p.last, p.more = strings.TrimSuffix(p.from, "\x00"), false
	}
	return p, true
}

// begin reads the head of a list, before its first byte is written. ok is false if the API server's
// own handler should answer.
type begin func(ctx context.Context, share *reservation) (p *scan, ok bool)

// paged begins a list of all objects, or of a page of them.
func (k *kind) paged(opts storage.ListOptions) begin {
	return func(ctx context.Context, share *reservation) (*scan, bool) { return k.begin(ctx, opts, listRun, share) }
}

// maxNamed bounds the bytes of objects that are listed by name, which are all in memory at once.
const maxNamed = 8 << 20

// named begins a list of those objects of these names that exist. It reads each object as it is
// now, which costs a fifth of a scan at one revision. The list has the revision from before these
// reads: a watch from there repeats the changes that are newer.
func (k *kind) named(names []string) begin {
	return func(ctx context.Context, share *reservation) (*scan, bool) {
		if !k.acquireWorker(ctx) {
			return nil, false
		}
		defer k.releaseWorker()
		at, _, _, err := k.source.ScanStored(ctx, names[0], 0, 1, 0, false, func(string, int64, []byte, error) {})
		if err != nil {
			return nil, false
		}
		p := &scan{k: k, rev: at, named: true, run: listRun, memory: share}
		for _, name := range names {
			s := stored{name: name}
			if s.data, s.rev, s.err = k.source.ReadStored(ctx, name, nil); isNotFound(s.err) {
				continue
			}
			if p.size += len(s.data); s.err != nil || p.size > maxNamed {
				return nil, false
			}
			p.head = append(p.head, s)
		}
		return p, share.grow(weight(listRun) + int64(max(0, p.size-headBytes)))
	}
}

// page reads the next objects and advances the scan. With size 0 it reads revisions only.
func (p *scan) page(ctx context.Context, limit, size int, count bool) (page []stored, err error) {
	at, more, remaining, err := p.k.source.ScanStored(ctx, p.from, p.rev, limit, size, count, func(name string, rev int64, data []byte, err error) {
		page = append(page, stored{name, rev, data, err})
	})
	if err != nil {
		return nil, err
	}
	p.rev, p.more, p.remaining = at, more, remaining
	if more {
		p.from = page[len(page)-1].name + "\x00"
	}
	return page, nil
}

// forget drops the data of objects. They will be read again.
func forget(objects []stored) {
	for i := range objects {
		objects[i].data = nil
	}
}

// each calls use with all objects, which use may keep. With keys, it reads only the revisions of
// objects that begin has not read.
func (p *scan) each(ctx context.Context, keys bool, use func([]stored) error) error {
	for _, page := range []*[]stored{&p.head, &p.rest} {
		objects := *page
		*page = nil // so that the values can be collected after use
		if err := use(objects); err != nil {
			return err
		}
	}
	for p.more {
		limit, size := chunkObjects, p.run
		if keys {
			limit, size = chunkKeys, 0
		}
		page, err := p.page(ctx, limit, size, false)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := use(page); err != nil {
			return err
		}
	}
	return nil
}

// read reads the values of all objects, or only of the first ones, as they were listed. It fails if
// it reads none.
func (p *scan) read(ctx context.Context, objects []stored) error {
	if !p.named {
		return p.readRun(ctx, p.rev, objects)
	}
	for i, size := 0, 0; i < len(objects) && size < p.run; i++ {
		// An object that is older than the list was the same at the list's revision, and its own revision
		// may be compacted by now.
		if err := p.readRun(ctx, max(p.rev, objects[i].rev), objects[i:i+1]); err != nil {
			return err
		}
		size += len(objects[i].data)
	}
	return nil
}

// readRun is read for objects that follow each other in the storage at revision rev.
func (p *scan) readRun(ctx context.Context, rev int64, objects []stored) error {
	n := 0
	_, _, _, err := p.k.source.ScanStored(ctx, objects[0].name, rev, len(objects), p.run, false, func(name string, rev int64, data []byte, err error) {
		if n >= 0 && objects[n].name == name && objects[n].rev == rev {
			objects[n].data, objects[n].err = data, err
			n++
		} else {
			n = -1
		}
	})
	if err == nil && n <= 0 {
		err = fmt.Errorf("object %q: listed at revision %d, but not found at it", objects[0].name, rev)
	}
	return err
}
