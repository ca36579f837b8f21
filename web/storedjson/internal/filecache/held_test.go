package filecache

import "testing"

// Bytes that were read count only if their place has not been given out again meanwhile,
// and the file is still the cache's.
func TestHeld(t *testing.T) {
	t.Parallel()
	c := New[struct{}](t.TempDir(), 100)
	put := func(id int64) {
		t.Helper()
		if err := c.Put([]int64{id}, Run[struct{}]{Bytes: make([]byte, 40), Items: []Item[struct{}]{{Len: 40}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	put(2)
	file, first, second := c.file, c.locations[1].at, c.locations[2].at
	if !c.held(file, first) || !c.held(file, second) {
		t.Error("what was put there is not held")
	}
	put(3) // takes the place of the first
	if c.held(file, first) {
		t.Error("a place that was given out anew is held for the first")
	}
	if !c.held(file, second) {
		t.Error("what was not touched is not held")
	}
	c.Close()
	if c.held(file, second) {
		t.Error("a file that was given back is held")
	}
}
