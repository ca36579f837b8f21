package datafile

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Check runs SQLite's integrity_check on the database of a data directory and
// then our own: every live key once, every revision with its contents, every
// directory's totals true. A fault gives *CorruptError. It reads the whole file,
// until ctx is done.
func Check(ctx context.Context, dir string) error {
	path := filepath.Join(dir, FileName)
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	err = check(c, path)
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		// what is damaged may be just that, and is restored as any other then
		corrupt.Copy, _ = IsMirror(c)
	}
	return err
}

func check(c *sqlite.Conn, path string) error {
	faults, err := c.Faults("integrity_check", 20)
	if err != nil {
		return NameFile(path, err)
	}
	if len(faults) > 0 { // the checks below would read through the damage
		if err := DeviceError(path, errors.New(faults[0])); err != nil {
			return err
		}
		return &CorruptError{Path: path, Detail: strings.Join(faults, "; ")}
	}
	for _, q := range []struct{ what, sql string }{
		{"revisions without contents", "SELECT count(*) FROM revisions r WHERE until IS NOT rev AND NOT EXISTS (SELECT 1 FROM contents c WHERE c.rev = r.rev)"},
		{"contents without revision", "SELECT count(*) FROM contents c WHERE NOT EXISTS (SELECT 1 FROM revisions r WHERE r.rev = c.rev)"},
		{"revisions after the last one", "SELECT count(*) FROM revisions WHERE rev > (SELECT value FROM meta WHERE name = 'revision')"},
		{"directories miscounted", `SELECT count(*) FROM (
			SELECT dir, objects, bytes FROM directories
			EXCEPT
			SELECT rtrim(key, replace(key, '/', '')) AS dir, count(*), sum(size) FROM revisions WHERE until IS NULL GROUP BY 1)`},
		{"index entries without revision", "SELECT count(*) FROM index_entries e WHERE NOT EXISTS (SELECT 1 FROM revisions r WHERE r.rev = e.rev)"},
	} {
		n, _, err := c.First(q.sql)
		if err != nil {
			return NameFile(path, err)
		}
		if n != 0 {
			faults = append(faults, fmt.Sprintf("%d %s", n, q.what))
		}
	}
	damaged := 0
	err = c.Each(func(row []driver.Value) error {
		value, _ := row[2].([]byte)
		if row[1] != Checksum(row[0].(string), value) {
			damaged++
			if damaged <= 20 {
				faults = append(faults, fmt.Sprintf("the value of %s fails its checksum", row[0]))
			}
		}
		return nil
	}, "SELECT r.key, c.sum, c.value FROM contents c JOIN revisions r ON r.rev = c.rev")
	if err != nil {
		return NameFile(path, err)
	}
	if len(faults) > 0 {
		return &CorruptError{Path: path, Detail: strings.Join(faults, "; ")}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum ties a value to its key, so that neither flipped bits nor a value in
// another's place go unseen.
func Checksum(key string, value []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte(key))
	return int64(crc32.Update(sum, castagnoli, value))
}
