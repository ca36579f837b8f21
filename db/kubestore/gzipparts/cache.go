package gzipparts

import (
	"fmt"
	"hash/crc32"
	"os"
	"sync"
)

// maxParts bounds what a Cache remembers in memory, some 60 bytes a part.
const maxParts = 1 << 16

// Cache keeps parts by a number that its user gives them and that always means
// the same text. The parts are in a file without a name, so what is kept in
// memory is the operating system's choice, and nothing is left behind. When the
// file is full, the oldest parts go. Losing a part is never an error: it is
// compressed again. Methods may be called from any goroutine.
type Cache struct {
	dir  string
	size int64

	mu     sync.Mutex
	closed bool
	file   *os.File // nil before it is needed
	parts  map[int64]place
	// order has what is in the file, or will be in a moment, oldest first.
	order []ordered
	// next is how many bytes have been given out since the file was created. The
	// byte at position p of these is at p modulo size, until that is given out again.
	next int64
}

// place is where a part is, and all of it but Deflated.
type place struct {
	at  int64  // position, see Cache.next
	len uint32 // of Deflated
	sum uint32 // of Deflated, CRC-32C: what a disk has changed is not sent
	Part
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type ordered struct{ id, at int64 }

// NewCache returns a Cache whose file, in dir, has up to size bytes.
func NewCache(dir string, size int64) *Cache {
	return &Cache{dir: dir, size: size, parts: map[int64]place{}}
}

// Worth tells whether so many texts, of so many bytes in total, will probably find
// room. When all are read in a row, a cache with less room would only forget each
// before it is asked for again.
func (c *Cache) Worth(texts, bytes int64) bool {
	return texts <= maxParts && bytes/3 <= c.size
}

// Get sets parts[i] to the part of ids[i], for those that are known. The others it
// leaves alone.
func (c *Cache) Get(ids []int64, parts []Part) {
	type found struct {
		i int
		place
	}
	c.mu.Lock()
	file := c.file
	var all []found
	for i, id := range ids {
		if p, ok := c.parts[id]; ok {
			all = append(all, found{i, p})
		}
	}
	c.mu.Unlock()

	// What was compressed for one list stands in its order: one read gets many.
	for len(all) > 0 {
		n, end := 0, all[0].at
		for n < len(all) && all[n].at == end && all[n].at%c.size >= all[0].at%c.size {
			end += int64(all[n].len)
			n++
		}
		run := all[:n]
		all = all[n:]
		buf := make([]byte, end-run[0].at)
		if _, err := file.ReadAt(buf, run[0].at%c.size); err != nil || !c.held(file, run[0].at) {
			continue
		}
		for _, f := range run {
			f.Deflated, buf = buf[:f.len:f.len], buf[f.len:]
			if crc32.Checksum(f.Deflated, castagnoli) == f.sum {
				parts[f.i] = f.Part
			}
		}
	}
}

// held tells whether what has been read at a position was what that position was
// given out for: space is given out anew before it is written to.
func (c *Cache) held(file *os.File, at int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file == file && c.holds(at)
}

func (c *Cache) holds(at int64) bool { return len(c.order) > 0 && at >= c.order[0].at }

// Put keeps parts, each under its id. On an error none are kept, nor any from
// before, and the file's space is given back.
func (c *Cache) Put(ids []int64, parts []Part) error {
	var buf []byte
	for _, p := range parts {
		buf = append(buf, p.Deflated...)
	}
	if len(buf) == 0 || int64(len(buf)) > c.size/2 {
		return nil
	}
	file, at, err := c.reserve(ids, parts, int64(len(buf)))
	if file == nil {
		return err
	}
	_, err = file.WriteAt(buf, at%c.size)

	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.file != file:
		return nil // closed meanwhile
	case err != nil:
		c.drop()
		return fmt.Errorf("cache of compressed objects: %w", err)
	}
	for i, p := range parts {
		n := uint32(len(p.Deflated))
		if c.holds(at) {
			sum := crc32.Checksum(p.Deflated, castagnoli)
			p.Deflated = nil
			c.parts[ids[i]] = place{at: at, len: n, sum: sum, Part: p}
		}
		at += int64(n)
	}
	return nil
}

// reserve gives out n bytes in a row for parts, and forgets what is there.
func (c *Cache) reserve(ids []int64, parts []Part, n int64) (file *os.File, at int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, nil
	}
	if c.file == nil {
		if c.file, err = unnamed(c.dir); err != nil {
			return nil, 0, fmt.Errorf("cache of compressed objects: %w", err)
		}
	}
	at = c.next
	if rest := c.size - at%c.size; rest < n {
		at += rest // the file's end is not in the middle
	}
	c.next = at + n
	for p, i := at, 0; i < len(ids); i++ {
		c.order = append(c.order, ordered{ids[i], p})
		p += int64(len(parts[i].Deflated))
	}
	gone := 0
	for _, o := range c.order {
		if o.at >= c.next-c.size && len(c.order)-gone <= maxParts {
			break
		}
		if c.parts[o.id].at == o.at {
			delete(c.parts, o.id)
		}
		gone++
	}
	c.order = c.order[gone:]
	return c.file, at, nil
}

// Close gives the file back. The cache stays empty from then on.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.drop()
}

// drop forgets everything. A reader may still have the file.
func (c *Cache) drop() {
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.next, c.order = nil, 0, nil
	clear(c.parts)
}

// unnamed creates a file that is gone with its last descriptor.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "compressed-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
