package datafile

import (
	"context"
	"database/sql/driver"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Stats are the figures of a database for administrators.
type Stats struct {
	// Revision is the last revision, and Compacted the oldest from which clients can list or watch.
	// Oldest is the oldest revision that is still stored, with its time.
	Revision  int64     `json:"revision"`
	Compacted int64     `json:"compacted"`
	Oldest    int64     `json:"oldest"`
	OldestAt  time.Time `json:"oldestAt"`
	// PageSize in bytes; Pages of the file, FreePages of them unused.
	PageSize  int64 `json:"pageSize"`
	Pages     int64 `json:"pages"`
	FreePages int64 `json:"freePages"`
	// FileBytes and WALBytes are sizes of the files on the disk.
	FileBytes int64 `json:"fileBytes"`
	WALBytes  int64 `json:"walBytes"`
	// Resources are sorted by prefix.
	Resources []ResourceStats `json:"resources"`
}

// ResourceStats are the figures of the keys below a prefix of two segments, as
// "/core/pods/".
type ResourceStats struct {
	Prefix string `json:"prefix"`
	// Objects that exist, and the Bytes of their values.
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Revisions stored: one for each object, and the history.
	Revisions int64 `json:"revisions"`
}

// ReadStats reads the Stats of the database in a data directory, which another
// process may own.
func ReadStats(ctx context.Context, dir string) (s Stats, err error) {
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return s, err
	}
	defer c.Close()
	return s, readStats(ctx, c, filepath.Join(dir, FileName), &s)
}

func readStats(ctx context.Context, c *sqlite.Conn, path string, s *Stats) error {
	for _, q := range []struct {
		dst *int64
		sql string
	}{
		{&s.Revision, "SELECT value FROM meta WHERE name = 'revision'"},
		{&s.Compacted, "SELECT value FROM meta WHERE name = 'compacted'"},
		{&s.Oldest, "SELECT min(rev) FROM revisions"},
		{&s.PageSize, "PRAGMA page_size"},
		{&s.Pages, "PRAGMA page_count"},
		{&s.FreePages, "PRAGMA freelist_count"},
	} {
		var err error
		if *q.dst, _, err = c.First(q.sql); err != nil {
			return err
		}
	}
	if at, ok, err := c.First("SELECT at FROM revisions WHERE rev = ?", s.Oldest); err != nil {
		return err
	} else if ok {
		s.OldestAt = time.UnixMilli(at).UTC()
	}
	s.FileBytes, s.WALBytes = FileSize(path), FileSize(path+"-wal")

	byPrefix := map[string]*ResourceStats{}
	err := c.Each(func(row []driver.Value) error {
		prefix := resourcePrefix(row[0].(string))
		r := byPrefix[prefix]
		if r == nil {
			r = &ResourceStats{Prefix: prefix}
			byPrefix[prefix] = r
		}
		r.Objects += row[1].(int64)
		r.Bytes += row[2].(int64)
		return ctx.Err()
	}, "SELECT dir, objects, bytes FROM directories")
	if err != nil {
		return err
	}
	for _, r := range byPrefix {
		n, _, err := c.First("SELECT count(*) FROM revisions INDEXED BY history WHERE until IS NOT NULL AND key >= ? AND key < ?", r.Prefix, r.Prefix+"\xff")
		if err != nil {
			return err
		}
		r.Revisions = r.Objects + n
		s.Resources = append(s.Resources, *r)
	}
	slices.SortFunc(s.Resources, func(a, b ResourceStats) int { return strings.Compare(a.Prefix, b.Prefix) })
	return nil
}

// resourcePrefix is the first two segments of a directory.
func resourcePrefix(dir string) string {
	if parts := strings.SplitN(dir, "/", 4); len(parts) == 4 {
		return "/" + parts[1] + "/" + parts[2] + "/"
	}
	return dir
}
