package filecache

import "testing"

// TestHeld: bytes that were read are valid only if their place was not reserved again meanwhile,
// and if the file still belongs to the cache.
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
		t.Error("stored values are not held")
	}
	put(3) // takes the place of the first
	if c.held(file, first) {
		t.Error("a place that was reserved again is held for its first value")
	}
	if !c.held(file, second) {
		t.Error("a place that was not reserved again is not held")
	}
	c.Close()
	if c.held(file, second) {
		t.Error("a place in a closed file is held")
	}
}
