package limits

import (
	"context"
	"io"
	"math"
	"sync"
	"time"
)

const (
	// maxPlaces bounds the users whose heavy bodies are read and decoded at a time.
	maxPlaces = 16
	// stalled is how long a body keeps its user's place while it waits for its sender.
	stalled = 100 * time.Millisecond
	// ofByte is the processor time to read a byte of a body: decryption, counting and a copy.
	ofByte = 4 * time.Nanosecond
	// ofRefusal is the processor time that refusing a body costs: its connection is closed, and the
	// next one begins with a handshake.
	ofRefusal = time.Millisecond
	// After an accepted heavy body that took at most quickBody of processor time, there is no rest.
	// After any other heavy body, its user's place rests for the body's processor time multiplied by
	// rest, or by restOfRefused if the body was refused, but at most for longestRest.
	quickBody     = 5 * time.Millisecond
	rest          = 5
	restOfRefused = 31
	longestRest   = 2 * time.Second
)

// newPlaces returns the class of heavy bodies. Each user has one at a time.
func newPlaces() *class { return newClass(maxPlaces, 1, math.MaxInt, math.MaxInt, maxWait) }

// place is a user's only place for heavy bodies, which are read and decoded one at a time. After
// each body it rests in proportion to the body's processor time. So one user's bodies take at most
// a sixth of a processor, and a thirtieth if they are refused, because collecting their garbage
// delays others, too. A nil *place does nothing: the body is light.
type place struct {
	class *class
	who   caller

	mu      sync.Mutex
	mine    bool
	spent   time.Duration // processor time of the body
	refused bool
}

// acquire waits for the place, and reports whether the body got it.
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

// release frees the place while the body waits for something else.
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

// finish frees the place, after a rest if the body took much or was refused.
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

// refuse records that the body is refused.
func (p *place) refuse() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = true
}

// spend counts processor time of the body.
func (p *place) spend(d time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent += d
}

// inPlace reads a body in its place, and frees the place while the sender sends nothing.
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
