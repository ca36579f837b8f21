package filecache

import (
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"sync"
	"syscall"
)

// spareFiles bounds the space that the file may take: the file is created only if the disk has room
// for so many files of its full size. So a cache never takes the last space of the disk.
const spareFiles = 8

// maxItems bounds the values of a Cache. Each takes some 60 bytes of memory.
const maxItems = 1 << 16

// Cache stores values under numbers that the caller chooses. A number always means the same value.
// When the file is full, the oldest values are dropped. Losing a value is never an error: the
// caller makes it again. Methods may be called from any goroutine.
type Cache[M any] struct {
	dir  string
	size int64

	mu        sync.Mutex
	closed    bool
	file      *os.File // nil before it is needed
	locations map[int64]location[M]
	// order lists the values that are in the file, or will be in a moment, oldest first.
	order []ordered
	// next is how many bytes have been reserved since the file was created. The byte at position p is
	// at p modulo size in the file, until that place is reserved again.
	next int64
}

// Item is the part of a value that is kept in memory.
type Item[M any] struct {
	Len  int // of the value, in bytes
	Meta M   // data of the caller
}

// Run is a number of consecutive values.
type Run[M any] struct {
	Bytes []byte
	Items []Item[M]
}

type location[M any] struct {
	at  int64  // position, see Cache.next
	sum uint32 // CRC-32C: a value that a disk has changed is not returned
	Item[M]
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type ordered struct{ id, at int64 }

// New returns a Cache whose file, in dir, has up to size bytes. The file is
// created when it is needed.
func New[M any](dir string, size int64) *Cache[M] {
	return &Cache[M]{dir: dir, size: size, locations: map[int64]location[M]{}}
}

// Worth reports whether the cache has room for so many values with so many bytes in total. A
// smaller cache that is read in order would drop each value before it is read again.
func (c *Cache[M]) Worth(values, bytes int64) bool {
	return values <= maxItems && bytes <= c.size
}

// Append appends the values of ids to run, from the first on. It stops at a value that is not in
// the cache, or when run has limit bytes.
func (c *Cache[M]) Append(run *Run[M], ids []int64, limit int) {
	var locations []location[M]
	c.mu.Lock()
	file := c.file
	for _, id := range ids {
		p, ok := c.locations[id]
		if !ok || limit <= len(run.Bytes) {
			break
		}
		limit -= p.Len
		locations = append(locations, p)
	}
	c.mu.Unlock()

	// Values that were made for one list are in the file in the order of the list, so one read gets
	// many.
	for len(locations) > 0 {
		n, end := 0, locations[0].at
		for n < len(locations) && locations[n].at == end && end%c.size >= locations[0].at%c.size {
			end += int64(locations[n].Len)
			n++
		}
		good := c.read(file, run, locations[:n])
		if good < n {
			c.forget(file, ids[good], locations[good].at)
			return
		}
		locations, ids = locations[n:], ids[n:]
	}
}

// read appends values that are adjacent in the file to run. It returns how many of them are intact.
func (c *Cache[M]) read(file *os.File, run *Run[M], row []location[M]) (good int) {
	last := row[len(row)-1]
	n, start := int(last.at-row[0].at)+last.Len, len(run.Bytes)
	run.Bytes = slices.Grow(run.Bytes, n)
	b := run.Bytes[start : start+n]
	if _, err := file.ReadAt(b, row[0].at%c.size); err != nil || !c.held(file, row[0].at) {
		return 0
	}
	for _, p := range row {
		if crc32.Checksum(b[:p.Len], castagnoli) != p.sum {
			break
		}
		b = b[p.Len:]
		run.Bytes = run.Bytes[:len(run.Bytes)+p.Len]
		run.Items = append(run.Items, p.Item)
		good++
	}
	return good
}

// Missing returns how many of ids, from the first on, are not in the cache.
func (c *Cache[M]) Missing(ids []int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range ids {
		if _, ok := c.locations[id]; ok {
			return i
		}
	}
	return len(ids)
}

// held reports whether bytes that were read at a position belonged to the value for which the
// position was reserved. A place is reserved again before it is overwritten.
func (c *Cache[M]) held(file *os.File, at int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file == file && c.holds(at)
}

func (c *Cache[M]) holds(at int64) bool { return len(c.order) > 0 && at >= c.order[0].at }

// forget drops the value of id, which could not be read, unless another value has taken its place
// since.
func (c *Cache[M]) forget(file *os.File, id, at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == file && c.locations[id].at == at {
		delete(c.locations, id)
	}
}

// Put stores a run of values, each under its id. On an error it stores none, drops all earlier
// values, and frees the file's space. If the disk is short of space, it stores nothing.
func (c *Cache[M]) Put(ids []int64, run Run[M]) error {
	n := int64(len(run.Bytes))
	if n == 0 || n > c.size/2 {
		return nil
	}
	file, at, err := c.reserve(ids, run.Items, n)
	if file == nil {
		return err
	}
	sums, rest := make([]uint32, len(ids)), run.Bytes
	for i, item := range run.Items {
		sums[i], rest = crc32.Checksum(rest[:item.Len], castagnoli), rest[item.Len:]
	}
	_, err = file.WriteAt(run.Bytes, at%c.size)

	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.file != file:
		return nil // closed meanwhile
	case err != nil:
		c.drop()
		return fmt.Errorf("cache of list items: %w", err)
	}
	for i, item := range run.Items {
		if c.holds(at) {
			c.locations[ids[i]] = location[M]{at: at, sum: sums[i], Item: item}
		}
		at += int64(item.Len)
	}
	return nil
}

// reserve reserves n adjacent bytes for items, and drops the values that were there.
func (c *Cache[M]) reserve(ids []int64, items []Item[M], n int64) (file *os.File, at int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, nil
	}
	if c.file == nil {
		if !c.spare() {
			return nil, 0, nil
		}
		if c.file, err = unnamed(c.dir); err != nil {
			return nil, 0, fmt.Errorf("cache of list items: %w", err)
		}
	}
	at = c.next
	if rest := c.size - at%c.size; rest < n {
		at += rest // a value does not wrap around the end of the file
	}
	c.next = at + n
	for p, i := at, 0; i < len(ids); i++ {
		c.order = append(c.order, ordered{ids[i], p})
		p += int64(items[i].Len)
	}
	gone := 0
	for _, o := range c.order {
		if o.at >= c.next-c.size && len(c.order)-gone <= maxItems {
			break
		}
		if c.locations[o.id].at == o.at {
			delete(c.locations, o.id)
		}
		gone++
	}
	c.order = c.order[gone:]
	return c.file, at, nil
}

// spare reports whether the disk has room for the file. It returns true if that is not known.
func (c *Cache[M]) spare() bool {
	var fs syscall.Statfs_t
	err := syscall.Statfs(c.dir, &fs)
	return err != nil || uint64(fs.Bavail)*uint64(fs.Bsize) >= spareFiles*uint64(c.size)
}

// Close frees the file. The cache stays empty from then on.
func (c *Cache[M]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.drop()
}

// drop drops all values. A reader may still have the file open.
func (c *Cache[M]) drop() {
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.next, c.order = nil, 0, nil
	clear(c.locations)
}

// unnamed creates a file without a name, which disappears with its last descriptor.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "list-items-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
