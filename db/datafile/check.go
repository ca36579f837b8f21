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

// Check runs SQLite's integrity_check on the database of a data directory and then its own checks:
// that every live key exists once, every revision has its contents, and every directory's totals
// are right. It returns *CorruptError for faults. It reads the whole file, unless ctx ends.
func Check(ctx context.Context, dir string) error {
	path := filepath.Join(dir, FileName)
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	err = check(c, path)
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		// if the row that marks a copy is damaged itself, the file does not count as a copy
		corrupt.Copy, _ = IsMirror(c)
	}
	return err
}

func check(c *sqlite.Conn, path string) error {
	faults, err := c.Faults("integrity_check", 20)
	if err != nil {
		return NameFile(path, err)
	}
	if len(faults) > 0 { // the checks below would read the damaged parts
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
	var unreadable []string
	copied, err := IsMirror(c)
	if err != nil {
		return NameFile(path, err)
	}
	err = c.Each(func(row []driver.Value) error {
		key := row[0].(string)
		value, _ := row[2].([]byte)
		if row[1] == Checksum(key, value) {
			return nil
		}
		if damaged++; damaged > 20 {
			return nil
		}
		if copied && row[1] == UnreadableSum(key, value) {
			unreadable = append(unreadable, fmt.Sprintf("etcd has a value of %s that cannot be read", key))
		} else {
			faults = append(faults, fmt.Sprintf("the value of %s fails its checksum", key))
		}
		return nil
	}, "SELECT r.key, c.sum, c.value FROM contents c JOIN revisions r ON r.rev = c.rev")
	if err != nil {
		return NameFile(path, err)
	}
	switch {
	case len(faults) > 0:
		return &CorruptError{Path: path, Detail: strings.Join(append(faults, unreadable...), "; ")}
	case len(unreadable) > 0:
		return fmt.Errorf("%s is intact, but %s: write it again or delete it there", path, strings.Join(unreadable, "; "))
	}
	return nil
}

// UnreadableSum replaces Checksum in a copy if the store cannot read a value. The file then has the
// store's unchanged bytes, and readers get an error.
func UnreadableSum(key string, stored []byte) int64 { return ^Checksum(key, stored) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum covers a value and its key, so that it detects flipped bits as well as the value of
// another key.
func Checksum(key string, value []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte(key))
	return int64(crc32.Update(sum, castagnoli, value))
}
