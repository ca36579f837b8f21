package limits

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestWhoGivesUpItsPlace: the address that holds most loses the body that has waited longest, but
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
	bs.got(slow) // it gets bytes: others have waited longer now
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

// deadlines is a writer that records the read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestBodyThatArrivedIsNotStopped: if a body that has arrived loses its place, its request gets an
// answer. With a read deadline in the past, the request would end with 504.
func TestBodyThatArrivedIsNotStopped(t *testing.T) {
	bs := NewBodies(10, 8<<10)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(strings.Repeat("body", 5<<8)))
	lost := false
	b, err := bs.Read(w, r, "mallory", 6<<10, time.Minute, func() { lost = true })
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	other, err := bs.Read(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(strings.Repeat("a", 5<<10))), "honest", 6<<10, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if !lost || b.Keep() {
		t.Error("the body keeps its place")
	}
	if last := w.set[len(w.set)-1]; !last.IsZero() {
		t.Errorf("the last deadline of the connection is %s", last)
	}
}
