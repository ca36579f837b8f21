package filecache

import (
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"sync"
	"syscall"
)

// spareFiles bounds the space that the file may take: the file is created only where so
// many of its full size have room. So it does not take the last space from what is worth
// more.
const spareFiles = 8

// maxItems bounds what a Cache remembers in memory, some 60 bytes for each value.
const maxItems = 1 << 16

// Cache keeps values by a number that its user gives them. A number always means the
// same value. When the file is full, the oldest values go. Losing a value is never an
// error: its user makes it again. Methods may be called from any goroutine.
type Cache[M any] struct {
	dir  string
	size int64

	mu        sync.Mutex
	closed    bool
	file      *os.File // nil before it is needed
	locations map[int64]location[M]
	// order lists the values that are in the file, or will be in a moment, oldest first.
	order []ordered
	// next is how many bytes have been given out since the file was created. The byte at
	// position p of these is at p modulo size in the file, until that place is given out
	// again.
	next int64
}

// Item is the part of a value that is kept in memory.
type Item[M any] struct {
	Len  int // of the value, in bytes
	Meta M   // for the user of the cache
}

// Run is values in a row.
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

// Worth reports whether that many values, with that many bytes in total, find room. A cache with
// less room, read in a row, would only forget each value before it is asked for again.
func (c *Cache[M]) Worth(values, bytes int64) bool {
	return values <= maxItems && bytes <= c.size
}

// Append appends to run the values of the first of ids. It stops at one that is not
// known, or when run has limit bytes.
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

	// Values that were made for one list stand in the order of the list, so one read
	// gets many.
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

// read appends to run values that stand in a row in the file. It returns how many of
// them are those that were put there.
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

// Missing returns how many of ids are not known, up to the first that is.
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

// held reports whether the bytes read at a position were still those for which the
// position was given out. A place is given out again before it is written to.
func (c *Cache[M]) held(file *os.File, at int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file == file && c.holds(at)
}

func (c *Cache[M]) holds(at int64) bool { return len(c.order) > 0 && at >= c.order[0].at }

// forget forgets the value of id, unless another has taken its place since it could not
// be read.
func (c *Cache[M]) forget(file *os.File, id, at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == file && c.locations[id].at == at {
		delete(c.locations, id)
	}
}

// Put keeps a run of values, each under its id. On an error it keeps none, forgets those
// from before, and gives the file's space back. Where space is short it keeps nothing.
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

// reserve gives out n bytes in a row for items, and forgets what is there.
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
		at += rest // a value does not go over the end of the file
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

// spare reports whether there is room for the file. If that is not known, it says yes.
func (c *Cache[M]) spare() bool {
	var fs syscall.Statfs_t
	err := syscall.Statfs(c.dir, &fs)
	return err != nil || uint64(fs.Bavail)*uint64(fs.Bsize) >= spareFiles*uint64(c.size)
}

// Close gives the file back. The cache stays empty from then on.
func (c *Cache[M]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.drop()
}

// drop forgets everything. A reader may still have the file.
func (c *Cache[M]) drop() {
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.next, c.order = nil, 0, nil
	clear(c.locations)
}

// unnamed creates a file that is gone with its last descriptor.
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
