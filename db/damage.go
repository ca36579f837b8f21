package db

import (
	"database/sql/driver"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"time"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum ties a value to its key, so that neither flipped bits nor a value in
// another's place go unseen.
func checksum(key string, value []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte(key))
	return int64(crc32.Update(sum, castagnoli, value))
}

// kv makes a KV of the columns rev, sum and value, and verifies the value.
func (d *DB) kv(key string, rev, sum, value driver.Value) KV {
	kv := KV{Key: key, Rev: rev.(int64)}
	kv.Value, _ = value.([]byte)
	if want, ok := sum.(int64); !ok || want != checksum(key, kv.Value) {
		d.metrics.damaged.Inc()
		kv.Value, kv.Err = nil, &DamagedError{Path: d.path, Key: key, Rev: kv.Rev}
	}
	return kv
}

// diagnosis is what a look over the whole file finds once damage was met.
type diagnosis struct {
	once   sync.Once
	done   chan struct{}
	detail string
}

// diagnoseWait is how long an error waits for its diagnosis; in a large file
// the first errors come without it.
const diagnoseWait = 2 * time.Second

// diagnose tells where the file is damaged. SQLite's own error does not say, so
// the first one has the file looked over, in the background.
func (d *DB) diagnose(met error) string {
	d.diagnosis.once.Do(func() {
		go func() {
			defer close(d.diagnosis.done)
			faults, err := quickCheck(d.path)
			if err != nil {
				faults = append(faults, err.Error())
			}
			d.diagnosis.detail = strings.Join(faults, "; ")
			if len(faults) == 0 {
				d.diagnosis.detail = "every page is in order by itself"
			}
			d.log.Error("the database file is damaged", "file", d.path, "met", met, "found", d.diagnosis.detail,
				"do", "stop the server, keep the file, restore a backup")
		}()
	})
	select {
	case <-d.diagnosis.done:
		return fmt.Sprintf("%v: %s", met, d.diagnosis.detail)
	case <-time.After(diagnoseWait):
		return met.Error()
	}
}

// quickCheck returns the first faults in the structure of the file.
func quickCheck(path string) (faults []string, err error) {
	c, err := openConn(path, readerPragmas...)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.faults("quick_check", 5)
}

// faults returns what a check finds, with the pages where it is, at most limit. See
// https://sqlite.org/pragma.html#pragma_integrity_check and #pragma_quick_check.
func (c *conn) faults(check string, limit int) (faults []string, err error) {
	err = c.each(func(row []driver.Value) error {
		if s := fmt.Sprint(row[0]); s != "ok" {
			faults = append(faults, s)
		}
		return nil
	}, fmt.Sprintf("PRAGMA %s(%d)", check, limit))
	return faults, err
}
