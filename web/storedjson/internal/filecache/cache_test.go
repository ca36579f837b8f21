package filecache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// value returns the value that id always has.
func value(id int64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "this is value %d ", id), 1+int(id%7))
}

// runOf returns a run with the values of ids. The Meta of each value is its id.
func runOf(ids ...int64) (run Run[int64]) {
	for _, id := range ids {
		v := value(id)
		run.Bytes = append(run.Bytes, v...)
		run.Items = append(run.Items, Item[int64]{Len: len(v), Meta: id})
	}
	return run
}

func put(t testing.TB, c *Cache[int64], ids ...int64) {
	t.Helper()
	if err := c.Put(ids, runOf(ids...)); err != nil {
		t.Error(err)
	}
}

// get returns the ids that the cache has, after it has checked their values.
func get(t testing.TB, c *Cache[int64], ids ...int64) (known []int64) {
	t.Helper()
	for len(ids) > 0 {
		run := runOf(1000)
		before := len(run.Bytes)
		c.Append(&run, ids, 1<<30)
		n := len(run.Items) - 1
		if want := runOf(append([]int64{1000}, ids[:n]...)...); !bytes.Equal(run.Bytes, want.Bytes) || fmt.Sprint(run.Items) != fmt.Sprint(want.Items) {
			t.Errorf("%v: %.60q, %v", ids[:n], run.Bytes[before:], run.Items)
		}
		known, ids = append(known, ids[:n]...), ids[n:]
		if n == 0 {
			ids = ids[max(c.Missing(ids), 1):]
		}
	}
	return known
}

func TestCache(t *testing.T) {
	dir := t.TempDir()
	c := New[int64](dir, 1<<20)
	if known := get(t, c, 1, 2, 3); known != nil {
		t.Errorf("an empty cache knows %v", known)
	}
	put(t, c, 1, 2, 3)
	put(t, c, 9, 8)
	if known := get(t, c, 8, 1, 4, 2, 3, 9); fmt.Sprint(known) != "[8 1 2 3 9]" {
		t.Errorf("known: %v", known)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("files: %v, %v", files, err)
	}
	c.Close()
	if known := get(t, c, 1); known != nil {
		t.Errorf("a closed cache knows %v", known)
	}
	put(t, c, 1)
	if known := get(t, c, 1); known != nil {
		t.Errorf("a closed cache has stored %v", known)
	}
	c.Close()
}

// TestCacheGoesRound: with any number of values, the file keeps its bound, every value in the cache
// is right, and the cache has the values that were stored last.
func TestCacheGoesRound(t *testing.T) {
	c := New[int64](t.TempDir(), 2000)
	defer c.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for i := int64(0); i < 3000; {
		ids := []int64{}
		for range 1 + r.IntN(5) {
			ids = append(ids, i)
			i++
		}
		put(t, c, ids...)
		if known := get(t, c, ids...); len(known) != len(ids) {
			t.Fatalf("of %v, put just now, %v are known", ids, known)
		}
		get(t, c, i-1, i-4, i-8, i-2, i-3, r.Int64N(i))
	}
	info, err := c.file.Stat()
	if err != nil || info.Size() > 2000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if len(c.locations) > len(c.order) || len(c.order) > 120 {
		t.Errorf("%d values, %d places", len(c.locations), len(c.order))
	}
	put(t, c, 6) // again, at another position
	put(t, c, 6)
	if known := get(t, c, 6, 6); len(known) != 2 {
		t.Errorf("known: %v", known)
	}
}

func TestCacheRemembersSoMany(t *testing.T) {
	c := New[int64](t.TempDir(), 1<<30)
	defer c.Close()
	ids := make([]int64, 1000)
	run := Run[int64]{Bytes: make([]byte, len(ids)), Items: make([]Item[int64], len(ids))}
	for i := range run.Items {
		run.Items[i].Len = 1
	}
	for n := int64(0); n < maxItems+5000; n += 1000 {
		for i := range ids {
			ids[i] = n + int64(i)
		}
		if err := c.Put(ids, run); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.locations) != maxItems || len(c.order) != maxItems {
		t.Errorf("%d values, %d places, want %d", len(c.locations), len(c.order), maxItems)
	}
	if !c.Worth(maxItems, 1<<30) || c.Worth(maxItems+1, 1) || c.Worth(1, 1<<30+1) {
		t.Error("Worth is wrong about its bounds")
	}
}

func TestCacheDetectsDamage(t *testing.T) {
	c := New[int64](t.TempDir(), 1<<20)
	defer c.Close()
	put(t, c, 1, 2, 3)
	if _, err := c.file.WriteAt([]byte{0x55}, c.locations[2].at+3); err != nil {
		t.Fatal(err)
	}
	if known := get(t, c, 1, 2, 3); fmt.Sprint(known) != "[1 3]" {
		t.Errorf("after a byte of 2 has changed: %v", known)
	}
	if err := c.file.Truncate(1); err != nil {
		t.Fatal(err)
	}
	if known := get(t, c, 1, 2, 3); known != nil {
		t.Errorf("after the file's end has gone: %v", known)
	}
}

func TestCacheWithoutSpace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	c := New[int64](dir, 1<<20)
	defer c.Close()
	ids, run := []int64{1}, runOf(1)
	if err := c.Put(ids, run); err == nil {
		t.Error("a value was stored although no file can be created")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, c, 1)
	c.file.Close() // so that writing fails
	if err := c.Put(ids, run); err == nil || c.file != nil || len(c.locations) != 0 {
		t.Errorf("after a write that failed: %v, %v", err, c.locations)
	}
	put(t, c, 1)
	if known := get(t, c, 1); len(known) != 1 {
		t.Errorf("when there is space again: %v", known)
	}
}

// TestCacheNeedsRoom: a cache takes no space on a disk that has not several times as much room.
func TestCacheNeedsRoom(t *testing.T) {
	c := New[int64](t.TempDir(), 1<<60)
	defer c.Close()
	put(t, c, 1)
	if known := get(t, c, 1); known != nil || c.file != nil {
		t.Errorf("a cache of an exbibyte has stored %v", known)
	}
}

// TestAppendHasALimit: Append appends to the values in run, and stops at the limit.
func TestAppendHasALimit(t *testing.T) {
	c := New[int64](t.TempDir(), 1<<20)
	defer c.Close()
	put(t, c, 1, 2, 3, 4)
	one, three := len(value(1)), len(value(1))+len(value(2))+len(value(3))
	for limit, want := range map[int]int{0: 0, 1: 1, one: 1, one + 1: 2, three: 3, three + 1: 4, 1 << 30: 4} {
		var run Run[int64]
		if c.Append(&run, []int64{1, 2, 3, 4}, limit); len(run.Items) != want {
			t.Errorf("up to %d bytes: %d values, want %d", limit, len(run.Items), want)
		}
	}
	if n := c.Missing([]int64{8, 9, 2, 10}); n != 2 {
		t.Errorf("Missing returns %d", n)
	}
}

func TestCacheByMany(t *testing.T) {
	c := New[int64](t.TempDir(), 5000)
	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for range 500 {
				id := r.Int64N(100)
				put(t, c, id, id+1)
				get(t, c, id, id+1, r.Int64N(100))
			}
		})
	}
	all.Wait()
	c.Close()
}
