package limits

import (
	"context"
	"io"
	"math"
	"sync"
	"time"
)

const (
	// mostPlaces bounds the users whose heavy bodies are read and decoded at a time.
	mostPlaces = 16
	// stalled is how long a body may wait for its sender and keep its user's place.
	stalled = 100 * time.Millisecond
	// ofByte is what reading a byte of a body takes of a processor: decryption, counting and a
	// copy.
	ofByte = 4 * time.Nanosecond
	// ofRefusal is what a body that is over its bound takes of a processor: its connection ends,
	// and the next one begins with a handshake.
	ofRefusal = time.Millisecond
	// quickBody is what a heavy body that is taken may take of a processor without a rest. After
	// another one its user rests so many times as long as it took, longer if it was refused, and
	// for longestRest at most.
	quickBody     = 5 * time.Millisecond
	rest          = 5
	restOfRefused = 31
	longestRest   = 2 * time.Second
)

// newPlaces returns the class of heavy bodies, of which one user has one at a time.
func newPlaces() *class { return newClass(mostPlaces, 1, math.MaxInt, math.MaxInt, maxWait) }

// place is a heavy body's place among those of its user, which are read and decoded one at a time.
// The user gets the next place after a rest in proportion to what the body took. So one user's
// bodies take a sixth of a processor at most, and a thirtieth if they are refused: collecting their
// garbage delays others, too. A nil *place is one that nobody needs.
type place struct {
	class *class
	who   caller

	mu      sync.Mutex
	mine    bool
	spent   time.Duration // what the body took of a processor
	refused bool
}

// acquire waits for the place, and returns whether the body has it.
func (p *place) acquire(ctx context.Context) bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mine {
		p.mine = p.class.enter(ctx, p.who) == ""
	}
	return p.mine
}

// release gives the place up while the body waits for something else.
func (p *place) release() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mine {
		p.mine = false
		p.class.leave(p.who)
	}
}

// finish gives the place back, with a rest if the body took much.
func (p *place) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	times := time.Duration(rest)
	if p.refused {
		times = restOfRefused
	}
	switch {
	case p.mine && (p.refused || p.spent > quickBody):
		p.class.rest(p.who, min(times*p.spent, longestRest))
	case p.mine:
		p.class.leave(p.who)
	}
	p.mine = false
}

// refuse notes that the body is refused.
func (p *place) refuse() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = true
}

// spend counts what the body takes of a processor.
func (p *place) spend(d time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent += d
}

// inPlace reads a body in its place, which it gives up while its sender sends nothing.
type inPlace struct {
	io.Reader
	*place
	ctx context.Context
}

// Read implements io.Reader.
func (r inPlace) Read(b []byte) (int, error) {
	given := make(chan struct{})
	late := time.AfterFunc(stalled, func() {
		r.release()
		close(given)
	})
	n, err := r.Reader.Read(b)
	if !late.Stop() {
		<-given
		if !r.acquire(r.ctx) {
			return n, ErrBusy
		}
	}
	r.spend(time.Duration(n) * ofByte)
	return n, err
}
