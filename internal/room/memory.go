package room

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Memory is a bounded number of bytes that parties share for what they send. A piece takes room
// only as its bytes arrive, because a sender can announce any size. When no room is left, the piece
// with the greatest delay times size gives way, and its owner begins it again later. So no piece
// waits while it holds room, and pieces cannot deadlock. A piece that is never late holds its room
// for a turn. After its turn it counts as late, so that senders that are just fast enough cannot
// hold all the room for ever. The turn of each further attempt is twice as long, so that a large
// piece arrives in the end. The announced bytes of a party's pieces are limited to its share, so
// that they do not displace each other.
type Memory struct {
	size  int64
	clock clock.PassiveClock
	begun *Room // announced bytes of each party

	mu       sync.Mutex
	held     int64
	arriving map[*Piece]struct{}
}

const (
	// pace is the rate, in bytes a second, below which a piece becomes late.
	pace = 256 << 10
	// credit is how long a piece may stall before it is late, even if it was fast before.
	credit = 5 * time.Second
	// firstTurn is how long a piece may hold room that others need, at the first attempt. Each further
	// attempt doubles that time, but it is doubled at most maxDoubled times.
	firstTurn  = 2 * time.Minute
	maxDoubled = 8
)

// ErrGaveWay is the error of a piece that gave its room to others: it was late, its turn had ended,
// or it came last.
var ErrGaveWay = errors.New("its memory was needed for what others send faster")

// NewMemory returns a Memory of size bytes. The pieces of one party may announce at most share
// bytes together; a single piece may announce more.
func NewMemory(size, share int64, clock clock.PassiveClock) *Memory {
	return &Memory{size: size, clock: clock, begun: New(math.MaxInt64, share), arriving: map[*Piece]struct{}{}}
}

// Piece is content that is arriving or has arrived. On a nil Piece, Take always succeeds, and Came
// and Release do nothing.
type Piece struct {
	of      *Memory
	end     func() // gives its announced bytes back
	giveWay func()

	// Memory.mu guards these.
	held int64
	due  time.Time // when the piece becomes late, unless more bytes arrive
	turn time.Time // when its turn ends
	gone bool      // the piece gave way
}

// Begin waits until the party may announce these bytes, and begins a piece. before is how often the
// piece has given way. If the piece has to give way, Memory calls giveWay, which must stop the
// sender without waiting. Call Release when the piece is no longer needed.
func (m *Memory) Begin(ctx context.Context, party string, announced int64, before int, giveWay func()) (*Piece, error) {
	end, err := m.begun.Acquire(ctx, party, announced)
	if err != nil {
		return nil, err
	}
	now := m.clock.Now()
	p := &Piece{of: m, end: end, giveWay: giveWay, due: now.Add(credit), turn: now.Add(firstTurn << min(before, maxDoubled))}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arriving[p] = struct{}{}
	return p, nil
}

// Take takes n more bytes and does not wait. To make room, late pieces give way first. If that is
// not enough, this piece gives way and Take returns ErrGaveWay.
func (p *Piece) Take(n int64) error {
	if p == nil {
		return nil
	}
	m := p.of
	m.mu.Lock()
	defer m.mu.Unlock()
	n = min(n, m.size) // a piece larger than the whole memory takes all of it
	for !p.gone && m.held+n > m.size {
		now := m.clock.Now()
		worst, debt := p, p.debt(now, n)
		for other := range m.arriving {
			if d := other.debt(now, 0); d > debt {
				worst, debt = other, d
			}
		}
		worst.displace()
	}
	if p.gone {
		return ErrGaveWay
	}
	p.held += n
	m.held += n
	return nil
}

// debt is how late a piece is, or how long ago its turn ended, times the bytes that it would hold
// with n more.
func (p *Piece) debt(now time.Time, n int64) float64 {
	return max(0, now.Sub(p.due).Seconds(), now.Sub(p.turn).Seconds()) * float64(p.held+n)
}

// displace makes a piece give way. The caller holds mu.
func (p *Piece) displace() {
	p.gone = true
	p.giveBack()
	p.giveWay()
}

func (p *Piece) giveBack() {
	p.of.held -= p.held
	p.held = 0
	delete(p.of.arriving, p)
}

// Came records that n bytes have arrived.
func (p *Piece) Came(n int) {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	latest := p.of.clock.Now().Add(credit)
	if p.due = p.due.Add(time.Duration(n) * time.Second / pace); p.due.After(latest) {
		p.due = latest
	}
}

// Arrived records that the whole piece has arrived. From now on it keeps its room until Release,
// which should follow soon. Arrived returns ErrGaveWay if the piece has given way already.
func (p *Piece) Arrived() error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.arriving, p)
	if p.gone {
		return ErrGaveWay
	}
	return nil
}

// Release gives back everything that the piece holds.
func (p *Piece) Release() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	p.giveBack()
	p.of.mu.Unlock()
	p.end()
}

// Read reads r to its end, but at most limit+1 bytes.
func (p *Piece) Read(r io.Reader, limit int64) (content []byte, err error) {
	const first = 32 << 10
	for {
		if len(content) == cap(content) {
			size := min(max(2*int64(cap(content)), first), limit+1)
			if size == int64(len(content)) {
				return content, p.Arrived()
			}
			if err := p.Take(size - int64(cap(content))); err != nil {
				return nil, err
			}
			content = append(make([]byte, 0, size), content...)
		}
		n, err := r.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		p.Came(n)
		if err == io.EOF {
			return content, p.Arrived()
		}
		if err != nil {
			return nil, err
		}
	}
}
