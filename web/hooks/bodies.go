package hooks

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/web/limits"
)

// Bounds of bodies.
const (
	maxBodyBytes = 1 << 20
	// maxBodies is how many bodies of one kind a receiver holds at once. maxHeldBytes
	// is how many bytes they may take.
	maxBodies    = 1024
	maxHeldBytes = 32 << 20
	// bodyTimeout is how long a sender may take to send its body.
	bodyTimeout = 10 * time.Second
	// firstRead is the size of a body's first buffer. A sender that sends nothing takes
	// that much.
	firstRead = 4 << 10
)

// bodies are the bodies that a receiver holds, from when it waits for the first byte
// until the delivery is answered. Nobody waits for a place among them. A body that is
// over a bound takes the place of another, from the address that holds most. Of that
// address's bodies it takes the one that has waited longest for its next byte, or the
// largest if bytes are short. An honest sender's body is small, and arrives.
type bodies struct {
	mu    sync.Mutex
	held  map[*body]struct{}
	bytes int
	reads uint64 // how often a body got bytes; it is the clock of body.last
}

// body is one body.
type body struct {
	of      *bodies
	address string
	stop    func() // ends a Read that is waiting
	buf     []byte

	// The mutex of.mu guards these.
	size    int    // of buf, with what it is about to grow by
	last    uint64 // value of reads when it last got bytes
	reading bool   // it may have to give up its place
	evicted bool
}

// Errors of reading a body.
var (
	errBusy     = errors.New("too many deliveries are being read; send it again")
	errSlow     = fmt.Errorf("the body did not arrive within %s", bodyTimeout)
	errTooLarge = fmt.Errorf("the body is over %d bytes", maxBodyBytes)
)

func newBodies() *bodies { return &bodies{held: map[*body]struct{}{}} }

// read reads the body of a request. The body counts in bs until release. The caller
// must call release on the result, also after an error.
func (bs *bodies) read(w http.ResponseWriter, r *http.Request, timeout time.Duration) (*body, error) {
	// A writer that cannot set deadlines, such as httptest's recorder, is bounded by
	// its caller.
	conn := http.NewResponseController(w)
	b := &body{of: bs, address: limits.Address(r.RemoteAddr), reading: true}
	b.stop = func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }
	if r.ContentLength > maxBodyBytes {
		return b, errTooLarge
	}
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	if err := b.fill(http.MaxBytesReader(w, r.Body, maxBodyBytes)); err != nil {
		return b, err
	}
	// If the deadline passed before the answer, it would end the request, too.
	_ = conn.SetReadDeadline(time.Time{})
	return b, nil
}

// fill reads all of r.
func (b *body) fill(r io.Reader) error {
	for {
		if len(b.buf) == cap(b.buf) {
			size := min(max(4*cap(b.buf), firstRead), maxBodyBytes+1)
			if !b.of.reserve(b, size-cap(b.buf)) {
				return errBusy
			}
			b.buf = append(make([]byte, 0, size), b.buf...)
		}
		n, err := r.Read(b.buf[len(b.buf):cap(b.buf)])
		b.buf = b.buf[:len(b.buf)+n]
		if !b.of.got(b, err == io.EOF) {
			return errBusy
		}
		var tooLarge *http.MaxBytesError
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &tooLarge):
			return errTooLarge
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errSlow
		case err != nil:
			return err
		}
	}
}

// reserve makes room for n more bytes of b. Its first call adds b to bs.
func (bs *bodies) reserve(b *body, n int) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b.evicted {
		return false
	}
	if b.size == 0 {
		for len(bs.held) >= maxBodies {
			if !bs.evict(func(*body) int { return 1 }) {
				return false
			}
		}
		bs.reads++
		b.last = bs.reads
		bs.held[b] = struct{}{}
	}
	for bs.bytes+n > maxHeldBytes {
		if !bs.evict(func(b *body) int { return b.size }) || b.evicted {
			return false
		}
	}
	b.size += n
	bs.bytes += n
	return true
}

// got notes that b got bytes, or with end all of them. It returns false once b has lost
// its place.
func (bs *bodies) got(b *body, end bool) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.reads++
	b.last = bs.reads
	b.reading = b.reading && !end
	return !b.evicted
}

// evict takes the place of one body. It chooses the address whose bodies weigh most,
// and there the body that weighs most; of several such, the one that has waited
// longest. It returns false when all bodies have arrived.
func (bs *bodies) evict(weight func(*body) int) bool {
	share := map[string]int{}
	for b := range bs.held {
		if b.reading {
			share[b.address] += weight(b)
		}
	}
	var victim *body
	for b := range bs.held {
		if !b.reading {
			continue
		}
		if victim == nil || cmp.Or(
			cmp.Compare(share[b.address], share[victim.address]),
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

// release gives b's place back.
func (b *body) release() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.remove(b)
}

func (bs *bodies) remove(b *body) {
	if _, ok := bs.held[b]; ok {
		delete(bs.held, b)
		bs.bytes -= b.size
	}
}
