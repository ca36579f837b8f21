package gzipparts

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func text(id int64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "this is text %d ", id), int(id%7)*20)
}

func put(t testing.TB, c *Cache, ids ...int64) {
	t.Helper()
	parts := make([]Part, len(ids))
	for i, id := range ids {
		parts[i] = New(text(id))
	}
	if err := c.Put(ids, parts); err != nil {
		t.Error(err)
	}
}

// get returns which of ids are known, having checked that these are right.
func get(t testing.TB, c *Cache, ids ...int64) (known []int64) {
	t.Helper()
	parts := make([]Part, len(ids))
	c.Get(ids, parts)
	for i, p := range parts {
		if p.Deflated == nil {
			continue
		}
		known = append(known, ids[i])
		var b bytes.Buffer
		w := NewWriter(&b)
		if err := w.Write(p); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if got, err := unzip(b.Bytes()); err != nil || !bytes.Equal(got, text(ids[i])) {
			t.Errorf("part %d: %.60q, %v", ids[i], got, err)
		}
	}
	return known
}

func TestCache(t *testing.T) {
	dir := t.TempDir()
	c := NewCache(dir, 1<<20)
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
		t.Errorf("a closed cache has taken %v", known)
	}
	c.Close()
}

// However much is put, the file keeps its bound, what is said to be known is right,
// and what came last is known.
func TestCacheGoesRound(t *testing.T) {
	c := NewCache(t.TempDir(), 1000)
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
	if err != nil || info.Size() > 1000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if len(c.parts) > len(c.order) || len(c.order) > 100 {
		t.Errorf("%d parts, %d places", len(c.parts), len(c.order))
	}
	put(t, c, 6) // again, and elsewhere
	put(t, c, 6)
	if known := get(t, c, 6, 6); len(known) != 2 {
		t.Errorf("known: %v", known)
	}
}

func TestCacheRemembersSoMany(t *testing.T) {
	c := NewCache(t.TempDir(), 1<<30)
	defer c.Close()
	p := New([]byte("x"))
	ids, parts := make([]int64, 1000), make([]Part, 1000)
	for i := range parts {
		parts[i] = p
	}
	for n := int64(0); n < maxParts+5000; n += 1000 {
		for i := range ids {
			ids[i] = n + int64(i)
		}
		if err := c.Put(ids, parts); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.parts) != maxParts || len(c.order) != maxParts {
		t.Errorf("%d parts, %d places, want %d", len(c.parts), len(c.order), maxParts)
	}
	if !c.Worth(maxParts, 3<<30) || c.Worth(maxParts+1, 1) || c.Worth(1, 4<<30) {
		t.Error("Worth is wrong about its bounds")
	}
}

func TestCacheIsNotBelieved(t *testing.T) {
	c := NewCache(t.TempDir(), 1<<20)
	defer c.Close()
	put(t, c, 1, 2, 3)
	if _, err := c.file.WriteAt([]byte{0x55}, c.parts[2].at+3); err != nil {
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
	c := NewCache(dir, 1<<20)
	defer c.Close()
	ids, parts := []int64{1}, []Part{New(text(1))}
	if err := c.Put(ids, parts); err == nil {
		t.Error("a part was put where no file can be")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, c, 1)
	c.file.Close() // so that writing fails
	if err := c.Put(ids, parts); err == nil || c.file != nil || len(c.parts) != 0 {
		t.Errorf("after a write that failed: %v, %v", err, c.parts)
	}
	put(t, c, 1)
	if known := get(t, c, 1); len(known) != 1 {
		t.Errorf("when there is space again: %v", known)
	}
}

func TestCacheByMany(t *testing.T) {
	c := NewCache(t.TempDir(), 5000)
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
