package storedjson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// listBytes bounds the memory of all lists of a kind together, and initialBytes the memory of all
// watches that send existing objects. One user may have half of each.
const listBytes, initialBytes = 128 << 20, 64 << 20

// Kind is a cluster-scoped kind whose stored bytes are its served bytes. Its internal and its v1 Go
// type are the same, so nothing is converted.
type Kind struct {
	Resource schema.GroupVersionResource
	Kind     string
	// Named returns the names of the objects that a field selector selects, if the selector is only a
	// list of names. The names are sorted, each once. Named may be nil.
	Named func(fieldSelector string) (names []string, ok bool)
}

// kind describes the objects of one storage.
type kind struct {
	Kind
	codecs serializer.CodecFactory
	// codec is the storage's codec. It decodes into objects from newFunc.
	codec   runtime.Codec
	newFunc func() runtime.Object

	// The rest is for kinds that are served as stored.

	// head is the beginning of every stored object, up to and including the brace that opens its
	// metadata. It is nil for other kinds.
	head []byte
	// encoder identifies the API server's encoder to plain JSON. events identifies its encoders of
	// watch events to plain JSON.
	encoder runtime.Identifier
	events  map[runtime.Identifier]watch.EventType
	// source is nil when the storage is not a Source.
	source      Source
	plain, gzip *encoding
	// lists is the memory of all lists, and initial the memory of all watches that send existing
	// objects.
	lists, initial *memoryPool
	maxWait        time.Duration // of a list that waits for room
	// workers has a slot for each answer that now reads and encodes objects. Such an answer holds
	// memory that its reservation does not include yet.
	workers chan struct{}
	// scans counts the scans under way.
	scans atomic.Int64
	// unreadable is the name of an object that could not be read, nil if there was none.
	unreadable atomic.Pointer[string]
}

// serveAsStored makes k a kind that is served as stored. Its caches are in dir.
func (k *kind) serveAsStored(kind Kind, codecs serializer.CodecFactory, dir string) error {
	gv := kind.Resource.GroupVersion()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok || info.StreamSerializer == nil {
		return fmt.Errorf("%s: its codecs do not know JSON", kind.Resource)
	}
	k.Kind, k.codecs = kind, codecs
	k.head = []byte(`{"kind":` + strconv.Quote(kind.Kind) + `,"apiVersion":` + strconv.Quote(gv.String()) + `,"metadata":{`)
	k.encoder = codecs.EncoderForVersion(info.Serializer, gv).Identifier()
	k.events = map[runtime.Identifier]watch.EventType{}
	for _, t := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		k.events[eventEncoder(k.encoder, codecs.EncoderForVersion(info.StreamSerializer.Serializer, gv).Identifier(), t)] = t
	}
	k.plain, k.gzip = plainEncoding(k, dir), gzipEncoding(k, dir)
	k.lists, k.initial, k.maxWait = newMemoryPool(listBytes, listBytes/2), newMemoryPool(initialBytes, initialBytes/2), listMaxWait
	k.workers = make(chan struct{}, 2*goruntime.GOMAXPROCS(0))
	return nil
}

// acquireWorker blocks until a worker slot is free; releaseWorker frees it. acquireWorker returns
// false when ctx is done.
func (k *kind) acquireWorker(ctx context.Context) bool {
	select {
	case k.workers <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (k *kind) releaseWorker() { <-k.workers }

// close closes the caches, which frees their files.
func (k *kind) close() {
	if k.head != nil {
		k.plain.kept.Close()
		k.plain.got.Close()
		k.gzip.kept.Close()
	}
}

// stored is an object of the storage. Until its value is read, only name and revision are known,
// and data and err are nil.
type stored struct {
	name string
	rev  int64
	data []byte
	err  error
}

func (s *stored) unread() bool { return s.data == nil && s.err == nil }

// append appends the object as it is served, with its resourceVersion and without the line's end.
func (k *kind) append(buf []byte, s *stored) ([]byte, error) {
	head, rest, err := k.parts(buf, s)
	return append(head, rest...), err
}

// parts returns the object as append does, without copying the long part: head, which is appended
// to buf, and rest, which follows it.
func (k *kind) parts(buf []byte, s *stored) (head, rest []byte, err error) {
	defer func() {
		if err != nil {
			name := s.name // a copy: a pointer into s would hold its page
			k.unreadable.Store(&name)
		}
	}()
	if s.err != nil {
		return buf, nil, s.err
	}
	rest, ok := k.metadata(s.data)
	if !ok {
		// The object was not written by this release's encoder, but by an older release or by hand.
		data, err := k.encodeAnew(s.data)
		if err != nil {
			return buf, nil, fmt.Errorf("object %q at revision %d: %w", s.name, s.rev, err)
		}
		if rest, ok = k.metadata(data); !ok {
			return buf, nil, fmt.Errorf("object %q: its encoding does not begin with its kind", s.name)
		}
	}
	head = append(buf, k.head...)
	head = append(head, `"resourceVersion":"`...)
	head = strconv.AppendInt(head, s.rev, 10)
	return append(head, `",`...), rest, nil
}

// metadata is what follows head in a stored object, without the line's end.
func (k *kind) metadata(data []byte) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(data, k.head)
	rest = bytes.TrimSuffix(rest, []byte("\n"))
	return rest, ok && len(rest) > 2 && rest[0] == '"' && rest[len(rest)-1] == '}'
}

func (k *kind) encodeAnew(data []byte) ([]byte, error) {
	obj, _, err := k.codec.Decode(data, nil, k.newFunc())
	if err != nil {
		return nil, err
	}
	return runtime.Encode(k.codec, obj)
}

// meetsUnreadable reports whether an object is known to be unreadable. If so, the API server's
// handler must answer, because after the first bytes it would be too late to report an error.
func (k *kind) meetsUnreadable(ctx context.Context) bool {
	name := k.unreadable.Load()
	if name == nil {
		return false
	}
	s := stored{name: *name}
	var err error
	s.data, s.rev, err = k.source.ReadStored(ctx, s.name, nil)
	switch {
	case isNotFound(err):
	case err != nil:
		return true
	default:
		if _, err := k.append(nil, &s); err != nil {
			return true
		}
	}
	k.unreadable.CompareAndSwap(name, nil)
	return false
}

// write calls make to append to a buffer, and writes the result.
func write(w io.Writer, make func(buf []byte) ([]byte, error)) error {
	buf := texts.Get().(*[]byte)
	text, err := make((*buf)[:0])
	if err != nil {
		return err
	}
	*buf = text
	if _, err = w.Write(text); err == nil {
		texts.Put(buf)
	}
	return err
}

// texts are buffers for one object each. A buffer whose Write failed is not reused: HTTP/2 may
// still be sending it.
var texts = sync.Pool{New: func() any { return new([]byte) }}

func isNotFound(err error) bool {
	var e *storage.StorageError
	return errors.As(err, &e) && e.Code == storage.ErrCodeKeyNotFound
}
