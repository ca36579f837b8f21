package limits

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// firstRead is the size of a body's first buffer, which it takes even before its first byte
	// arrives.
	firstRead = 4 << 10
	// lightRead is the size of the largest buffer of a light body.
	lightRead = 64 << 10
)

// Bodies are the request bodies in memory, each from before its first byte until its request is
// answered. A new body never waits for a place. If a bound is exceeded, it replaces a body of the
// caller who holds most: the one that has waited longest for its next byte or, if the bound on
// bytes is exceeded, the largest. An honest sender's body is small and arrives soon, so it keeps
// its place.
type Bodies struct {
	max, maxBytes int

	mu    sync.Mutex
	held  map[*Body]struct{}
	bytes int
	reads uint64 // how often a body got bytes; it is the clock of Body.last
}

// Body is one body.
type Body struct {
	of  *Bodies
	who string
	buf []byte

	// larger reports whether the body may have more than lightRead bytes, and returns the reader for
	// them. nil allows it.
	larger func(io.Reader) (io.Reader, bool)

	// The mutex of.mu guards these.
	stop    func() // ends a Read that is waiting, or calls lost
	size    int    // of buf, with its imminent growth
	last    uint64 // value of reads when it last got bytes
	reading bool   // another body may take its place
	evicted bool
}

// Errors of reading a body.
var (
	ErrBusy     = errors.New("too many bodies of requests are being read; send it again")
	ErrSlow     = errors.New("the body did not arrive in time")
	ErrTooLarge = errors.New("the body is too large")
)

// NewBodies returns Bodies with room for max bodies, and for maxBytes bytes in all of them.
func NewBodies(max, maxBytes int) *Bodies {
	return &Bodies{max: max, maxBytes: maxBytes, held: map[*Body]struct{}{}}
}

// Held returns how many bodies are held, and their bytes.
func (bs *Bodies) Held() (n, bytes int) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return len(bs.held), bs.bytes
}

// Read reads the body of a request: at most limit bytes, within the time in. who is the caller. The
// body counts in bs until Release, which must be called on the result, also after an error. After
// it was read to its end, the body keeps its place. But if lost is not nil, the body keeps its
// place only after Keep, and lost is called if it loses the place before.
func (bs *Bodies) Read(w http.ResponseWriter, r *http.Request, who string, limit int, in time.Duration, lost func()) (*Body, error) {
	return bs.read(w, r, &Body{of: bs, who: who, reading: true}, limit, in, lost)
}

func (bs *Bodies) read(w http.ResponseWriter, r *http.Request, b *Body, limit int, in time.Duration, lost func()) (*Body, error) {
	// If a writer cannot set deadlines, like httptest's recorder, the caller must bound the time.
	conn := http.NewResponseController(w)
	b.stop = func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		if lost != nil {
			lost()
		}
	}
	if r.ContentLength > int64(limit) {
		return b, tooLarge(limit)
	}
	_ = conn.SetReadDeadline(time.Now().Add(in))
	if err := b.fill(http.MaxBytesReader(w, r.Body, int64(limit)), limit, int(r.ContentLength)); err != nil {
		return b, err
	}
	// A deadline that passes before the answer would end the request, too, because net/http reads the
	// connection in the background after the body's end.
	if !b.arrived(lost) {
		return b, ErrBusy
	}
	_ = conn.SetReadDeadline(time.Time{})
	if lost == nil && !b.Keep() {
		return b, ErrBusy
	}
	return b, nil
}

// arrived records that b was read to its end, so that losing its place calls lost instead of ending
// a Read. It returns false if b has lost its place already.
func (b *Body) arrived(lost func()) bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.stop = func() {
		if lost != nil {
			lost()
		}
	}
	return !b.evicted
}

// Bytes returns what was read.
func (b *Body) Bytes() []byte { return b.buf }

// Keep makes b keep its place from now on. It returns false if b has lost it.
func (b *Body) Keep() bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.reading = false
	return !b.evicted
}

func tooLarge(limit int) error { return fmt.Errorf("%w: it is over %d bytes", ErrTooLarge, limit) }

// fill reads all of r. announced is the Content-Length, less than 0 if unknown. The buffer grows
// with the arriving bytes, because most refused bodies are refused early.
func (b *Body) fill(r io.Reader, limit, announced int) error {
	for {
		if len(b.buf) == cap(b.buf) {
			size := max(4*cap(b.buf), firstRead)
			if announced >= cap(b.buf) {
				if cap(b.buf) > 0 { // some of it has arrived
					size = max(size, lightRead)
				}
				size = min(size, announced+1) // one byte more, to see the end
			}
			size = min(size, limit+1)
			if size > lightRead && b.larger != nil {
				var ok bool
				if r, ok = b.larger(r); !ok {
					return ErrBusy
				}
				b.larger = nil
			}
			if !b.of.reserve(b, size-cap(b.buf)) {
				return ErrBusy
			}
			b.buf = append(make([]byte, 0, size), b.buf...)
		}
		n, err := r.Read(b.buf[len(b.buf):cap(b.buf)])
		b.buf = b.buf[:len(b.buf)+n]
		if !b.of.got(b) {
			return ErrBusy
		}
		var over *http.MaxBytesError
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &over):
			return tooLarge(limit)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return ErrSlow
		case err != nil:
			return err
		}
	}
}

// reserve makes room for n more bytes of b. Its first call adds b to bs.
func (bs *Bodies) reserve(b *Body, n int) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b.evicted {
		return false
	}
	if b.size == 0 {
		for len(bs.held) >= bs.max {
			if !bs.evict(func(*Body) int { return 1 }) {
				return false
			}
		}
		bs.reads++
		b.last = bs.reads
		bs.held[b] = struct{}{}
	}
	for bs.bytes+n > bs.maxBytes {
		if !bs.evict(func(b *Body) int { return b.size }) || b.evicted {
			return false
		}
	}
	b.size += n
	bs.bytes += n
	return true
}

// got records that bytes of b arrived. It returns false once b has lost its place.
func (bs *Bodies) got(b *Body) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.reads++
	b.last = bs.reads
	return !b.evicted
}

// evict removes one body: the heaviest body of the caller whose bodies weigh most. If several are
// equally heavy, it removes the one that has waited longest. It returns false if no body may be
// removed.
func (bs *Bodies) evict(weight func(*Body) int) bool {
	share := map[string]int{}
	for b := range bs.held {
		if b.reading {
			share[b.who] += weight(b)
		}
	}
	var victim *Body
	for b := range bs.held {
		if !b.reading {
			continue
		}
		if victim == nil || cmp.Or(
			cmp.Compare(share[b.who], share[victim.who]),
			cmp.Compare(weight(b), weight(victim)),
			cmp.Compare(victim.last, b.last),
		) > 0 {
			victim = b
		}
	}
	if victim == nil {
		return false
	}
	victim.evicted = true
	bs.remove(victim)
	victim.stop()
	return true
}

// Release gives b's place back.
func (b *Body) Release() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.remove(b)
}

func (bs *Bodies) remove(b *Body) {
	if _, ok := bs.held[b]; ok {
		delete(bs.held, b)
		bs.bytes -= b.size
	}
}
