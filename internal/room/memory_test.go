package room

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// memoryTest begins pieces, and records which gave way.
type memoryTest struct {
	*testing.T
	*Memory
	clock *clocktesting.FakeClock
	gone  map[string]bool
}

func newMemoryTest(t *testing.T, size, share int64) *memoryTest {
	clock := clocktesting.NewFakeClock(time.Now())
	return &memoryTest{t, NewMemory(size, share, clock), clock, map[string]bool{}}
}

func (m *memoryTest) piece(party string, announced, takes int64) *Piece {
	m.Helper()
	p, err := m.Memory.Begin(m.Context(), party, announced, 0, func() { m.gone[party] = true })
	if err != nil {
		m.Fatal(err)
	}
	if err := p.Take(takes); err != nil {
		m.Fatalf("%d bytes of %s: %v", takes, party, err)
	}
	return p
}

func (m *memoryTest) wantGone(parties ...string) {
	m.Helper()
	for _, party := range parties {
		if !m.gone[party] {
			m.Errorf("%s did not give way", party)
		}
	}
	if len(m.gone) != len(parties) {
		m.Errorf("%v gave way, want %v", m.gone, parties)
	}
}

// TestWhatComesSlowlyGivesWay: a party that sends its bytes gets room, even if any number of other
// parties announce much and send little, or send much and then nothing.
func TestWhatComesSlowlyGivesWay(t *testing.T) {
	m := newMemoryTest(t, 32<<20, 16<<20)
	for _, party := range []string{"a", "b", "c", "d", "e", "f"} {
		m.piece(party, 16<<20, 32<<10) // together they announce three times the memory
	}
	stalled := m.piece("stalled", 16<<20, 14<<20)
	stalled.Came(14 << 20) // this piece was fast at first
	sends := m.piece("sends", 16<<20, 15<<20)
	m.clock.Step(credit)
	sends.Came(1 << 20)
	m.wantGone()
	m.clock.Step(time.Second)
	honest := m.piece("honest", 4<<20, 4<<20)
	m.wantGone("stalled")
	if err := stalled.Arrived(); !errors.Is(err, ErrGaveWay) {
		t.Errorf("a piece that gave way has arrived: %v", err)
	}
	if err := stalled.Take(1); !errors.Is(err, ErrGaveWay) {
		t.Errorf("a piece that gave way gets more: %v", err)
	}
	stalled.Release()

	// If no other piece is late, the last one gives way.
	last := m.piece("last", 16<<20, 8<<20)
	if err := last.Take(16 << 20); !errors.Is(err, ErrGaveWay) {
		t.Errorf("a piece that does not fit: %v", err)
	}
	last.Release()
	if err := honest.Arrived(); err != nil {
		t.Error(err)
	}
	m.clock.Step(time.Hour) // a piece that has arrived is not late
	m.piece("later", 16<<20, 16<<20)
	if m.gone["honest"] || !m.gone["sends"] {
		t.Errorf("%v gave way", m.gone)
	}
	honest.Release()
	if err := (*Piece)(nil).Take(1); err != nil {
		t.Error(err)
	}
}

// TestEachHasItsTurn: parties that send just fast enough, and never end, hold all the room for only
// one turn. The next turn of a piece that gave way is twice as long.
func TestEachHasItsTurn(t *testing.T) {
	m := newMemoryTest(t, 32<<20, 16<<20)
	var all []*Piece
	begin := func(party string, before int) *Piece {
		t.Helper()
		p, err := m.Memory.Begin(t.Context(), party, 16<<20, before, func() { m.gone[party] = true })
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		return p
	}
	pass := func(d time.Duration) {
		for end := m.clock.Now().Add(d); m.clock.Now().Before(end); m.clock.Step(time.Second) {
			for _, p := range all {
				p.Came(pace)
			}
		}
	}
	for i, party := range []string{"a", "b"} {
		if err := begin(party, i).Take(16 << 20); err != nil {
			t.Fatal(err)
		}
	}
	pass(firstTurn)
	if err := begin("early", 0).Take(1 << 20); !errors.Is(err, ErrGaveWay) {
		t.Errorf("within a turn: %v", err)
	}
	pass(2 * time.Second)
	m.gone = map[string]bool{}
	honest := begin("honest", 0)
	if err := honest.Take(16 << 20); err != nil {
		t.Errorf("after a turn: %v", err)
	}
	m.wantGone("a")
	pass(firstTurn) // b's turn, which is twice as long, ends before honest's
	m.gone = map[string]bool{}
	if err := begin("next", 0).Take(16 << 20); err != nil {
		t.Errorf("after two turns: %v", err)
	}
	m.wantGone("b")
	if err := honest.Arrived(); err != nil {
		t.Error(err)
	}
}

// TestPiecesOfAPartyWaitForEachOther: a party's pieces wait for each other, and hold no memory
// while they wait.
func TestPiecesOfAPartyWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemoryTest(t, 32, 16)
		one := m.piece("slow", 10, 10)
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error)
		go func() {
			_, err := m.Begin(ctx, "slow", 10, 0, nil)
			results <- err
		}()
		synctest.Wait()
		m.piece("other", 16, 16).Release()
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		one.Release()
		m.piece("slow", 100, 100).Release() // alone, and larger than the memory
		if m.held != 0 || len(m.arriving) != 0 || len(m.begun.parties) != 0 {
			t.Errorf("in the end %d bytes of %d pieces are held by %v", m.held, len(m.arriving), m.begun.parties)
		}
	})
}

func TestReadOfAPiece(t *testing.T) {
	for _, tc := range []struct {
		size, limit, want int
		room              int64
		fails             error
	}{
		{size: 0, limit: 10, want: 0, room: 1 << 20},
		{size: 10, limit: 10, want: 10, room: 1 << 20},
		{size: 11, limit: 10, want: 11, room: 1 << 20},
		{size: 1 << 20, limit: 10, want: 11, room: 1 << 20},
		{size: 100_000, limit: 1 << 20, want: 100_000, room: 1 << 20},
		{size: 100_000, limit: 1 << 20, room: 64 << 10, fails: ErrGaveWay},
	} {
		m := newMemoryTest(t, tc.room, tc.room)
		p := m.piece("a", int64(tc.limit), 0)
		sent := bytes.Repeat([]byte("x"), tc.size)
		got, err := p.Read(iotest.DataErrReader(bytes.NewReader(sent)), int64(tc.limit))
		if !errors.Is(err, tc.fails) || len(got) != tc.want || !bytes.HasPrefix(sent, got) {
			t.Errorf("%+v: %d bytes, %v", tc, len(got), err)
		}
		if len(got) > 0 && m.held < int64(len(got)) || m.held > int64(tc.limit)+1 {
			t.Errorf("%+v: %d bytes are held", tc, m.held)
		}
		p.Release()
		if m.held != 0 {
			t.Errorf("%+v: %d bytes are held in the end", tc, m.held)
		}
	}
	m := newMemoryTest(t, 1<<20, 1<<20)
	p := m.piece("a", 100, 0)
	broken := io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := p.Read(broken, 100); err != io.ErrUnexpectedEOF || got != nil {
		t.Errorf("%q, %v", got, err)
	}
}
