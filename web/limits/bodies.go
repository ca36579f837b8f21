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
	// firstRead is the size of a body's first buffer. A sender that sends nothing takes
	// that much.
	firstRead = 4 << 10
	// lightRead is the size of the largest buffer of a body that costs little.
	lightRead = 64 << 10
)

// Bodies are the bodies of requests that are held in memory, from when the first byte is
// waited for until the request is answered. Nobody waits for a place among them. A body
// that is over a bound takes the place of another, from the caller who holds most. Of that
// caller's bodies it takes the one that has waited longest for its next byte, or the
// largest if bytes are short. An honest sender's body is small, and arrives.
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

	// larger says whether the body may have more than lightRead bytes, and reads them. nil is for
	// yes.
	larger func(io.Reader) (io.Reader, bool)

	// The mutex of.mu guards these.
	stop    func() // ends a Read that is waiting, and tells its caller
	size    int    // of buf, with its imminent growth
	last    uint64 // value of reads when it last got bytes
	reading bool   // it may have to give up its place
	evicted bool
}

// Errors of reading a body.
var (
	ErrBusy     = errors.New("too many bodies of requests are being read; send it again")
	ErrSlow     = errors.New("the body did not arrive in time")
	ErrTooLarge = errors.New("the body is too large")
)

// NewBodies returns room for a number of bodies, and of bytes in all.
func NewBodies(max, maxBytes int) *Bodies {
	return &Bodies{max: max, maxBytes: maxBytes, held: map[*Body]struct{}{}}
}

// Held returns how many bodies are held, and their bytes.
func (bs *Bodies) Held() (n, bytes int) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return len(bs.held), bs.bytes
}

// Read reads the body of a request of who, of limit bytes at most, in a time. The body
// counts in bs until Release, which the caller must call on the result, also after an error.
// A body that has arrived keeps its place; with lost, it does so from Keep on, and lost is
// called if it loses the place before.
func (bs *Bodies) Read(w http.ResponseWriter, r *http.Request, who string, limit int, in time.Duration, lost func()) (*Body, error) {
	return bs.read(w, r, &Body{of: bs, who: who, reading: true}, limit, in, lost)
}

func (bs *Bodies) read(w http.ResponseWriter, r *http.Request, b *Body, limit int, in time.Duration, lost func()) (*Body, error) {
	// A writer that cannot set deadlines, such as httptest's recorder, is bounded by
	// its caller.
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
	// If the deadline passed before the answer, it would end the request, too: the connection is
	// read in the background once its body has come to its end.
	if !b.arrived(lost) {
		return b, ErrBusy
	}
	_ = conn.SetReadDeadline(time.Time{})
	if lost == nil && !b.Keep() {
		return b, ErrBusy
	}
	return b, nil
}

// arrived notes that b was read to its end, so there is no reading to stop if it loses its place.
// It returns false if b has lost it.
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

// Keep has b keep its place from now on. It returns false if b has lost it.
func (b *Body) Keep() bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.reading = false
	return !b.evicted
}

func tooLarge(limit int) error { return fmt.Errorf("%w: it is over %d bytes", ErrTooLarge, limit) }

// fill reads all of r, which has so many bytes as are announced, or less than 0 if it does not say.
// The buffer grows with what arrives: most of what is refused is refused soon.
func (b *Body) fill(r io.Reader, limit, announced int) error {
	for {
		if len(b.buf) == cap(b.buf) {
			size := max(4*cap(b.buf), firstRead)
			if announced >= cap(b.buf) {
				if cap(b.buf) > 0 { // some of it has arrived
					size = max(size, lightRead)
				}
				size = min(size, announced+1) // and the end
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

// got notes that b got bytes. It returns false once b has lost its place.
func (bs *Bodies) got(b *Body) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.reads++
	b.last = bs.reads
	return !b.evicted
}

// evict takes the place of one body. It chooses the caller whose bodies weigh most,
// and there the body that weighs most; of several such, the one that has waited
// longest. It returns false when all bodies keep their place.
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
