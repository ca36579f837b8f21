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
	// maxBodies is how many bodies of one kind a receiver holds at once, and
	// maxHeldBytes how many bytes they may take.
	maxBodies    = 1024
	maxHeldBytes = 32 << 20
	// bodyTimeout is how long a sender may take to send its body.
	bodyTimeout = 10 * time.Second
	// firstRead is the size of a body's first buffer, which a sender takes that
	// sends nothing.
	firstRead = 4 << 10
)

// bodies are the bodies that a receiver holds, from when the first byte is
// waited for until the delivery is answered. Nobody waits for a place among
// them: what is over a bound takes the place of another of the address that
// holds most, the body that has waited longest for its next byte or, where bytes
// are short, the largest. An honest sender's body is small, and arrives.
type bodies struct {
	mu    sync.Mutex
	held  map[*body]struct{}
	bytes int
	reads uint64 // how often a body got bytes, the clock of body.last
}

// body is one body.
type body struct {
	of      *bodies
	address string
	stop    func() // ends a Read that waits
	buf     []byte

	// These are of.mu's.
	size    int    // of buf, with what it is about to grow by
	last    uint64 // of.reads when it got bytes last
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

// read reads the body of a request, until release bounded by bs. The caller
// must release what it returns, also with an error.
func (bs *bodies) read(w http.ResponseWriter, r *http.Request, timeout time.Duration) (*body, error) {
	// What cannot set deadlines, such as httptest's recorder, is bounded by its
	// caller.
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
	// The deadline would end the request, too, if it passed before the answer.
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

// reserve makes room for n more bytes of b, whose first call makes it one of bs.
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

// got says that b got bytes, or with end all of them. It is false once b has
// lost its place.
func (bs *bodies) got(b *body, end bool) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.reads++
	b.last = bs.reads
	b.reading = b.reading && !end
	return !b.evicted
}

// evict takes the place of the body that weighs most, among such the one that
// waits longest, of the address whose bodies weigh most. It is false when all
// bodies have arrived.
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
