package limits

import "testing"

// A body gives up its place that waits longest at the address that holds most, and
// never one that has arrived.
func TestWhoGivesUpItsPlace(t *testing.T) {
	t.Parallel()
	bs := NewBodies(1024, 32<<20)
	var stopped []string
	hold := func(name, address string, size int) *Body {
		b := &Body{of: bs, who: address, reading: true}
		b.stop = func() { stopped = append(stopped, name) }
		if !bs.reserve(b, size) {
			t.Fatalf("no place for %s", name)
		}
		return b
	}
	one := func(*Body) int { return 1 }
	arrived := hold("arrived", "a", 10)
	arrived.Keep()
	hold("b, alone", "b", 10)
	slow := hold("a, first", "a", 10)
	hold("a, second", "a", 10)
	hold("a, third", "a", 10)
	bs.got(slow) // it goes on: others wait longer
	for _, want := range []string{"a, second", "a, third", "b, alone", "a, first"} {
		stopped = nil
		if !bs.evict(one) || len(stopped) != 1 || stopped[0] != want {
			t.Fatalf("stopped %q, want %q", stopped, want)
		}
	}
	if bs.evict(one) {
		t.Errorf("stopped %q, which has arrived", stopped)
	}
	if slow.Release(); bs.bytes != 10 || len(bs.held) != 1 {
		t.Errorf("%d bodies of %d bytes are held, want the one that has arrived", len(bs.held), bs.bytes)
	}
	if arrived.Release(); bs.bytes != 0 || len(bs.held) != 0 {
		t.Errorf("%d bodies of %d bytes are held, want none", len(bs.held), bs.bytes)
	}
}
