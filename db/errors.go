package db

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// Errors of reads and writes.
var (
	// ErrConflict: the key is not at the revision that the writer expected. Nothing was written.
	ErrConflict = truth.ErrConflict
	// ErrCompacted: the requested revision is older than the history that is kept.
	ErrCompacted = truth.ErrCompacted
	// ErrFutureRevision: the requested revision does not exist yet.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrClosed: the database was closed.
	ErrClosed = errors.New("database is closed")
)

// DamagedError says that the stored bytes of one revision differ from those that were written.
// Other objects are not affected.
type DamagedError struct {
	Path string
	Key  string
	Rev  int64
	// Copy is true if the file is a copy of etcd's data, and etcd's value is intact. The value is
	// fetched again.
	Copy bool
	// InStore is true if the file is a copy of etcd's data, and etcd's value cannot be read, either.
	InStore bool
}

func (e *DamagedError) Error() string {
	if e.InStore {
		return fmt.Sprintf("etcd has a value of %s at revision %d that cannot be read: the server's log says why; write it again or delete it there (etcdctl, below --etcd-prefix)", e.Key, e.Rev)
	}
	if e.Copy {
		return fmt.Sprintf("the value of %s at revision %d in %s fails its checksum: it is fetched again from etcd; ask again, and check the disk", e.Key, e.Rev, e.Path)
	}
	return fmt.Sprintf("the value of %s at revision %d in %s fails its checksum: check the disk, then delete the object or restore a backup", e.Key, e.Rev, e.Path)
}

// translate turns SQLite's result codes (https://sqlite.org/rescode.html) into
// *datafile.CorruptError and *datafile.UnavailableError. It returns other errors unchanged, but
// sets CorruptError.Copy.
func (d *DB) translate(err error) error {
	var se sqlite3.Error
	var ie *indexError
	var corrupt *datafile.CorruptError
	var unavailable *datafile.UnavailableError
	switch {
	case errors.As(err, &corrupt):
		corrupt.Copy = d.opts.Truth != nil
		return err
	case errors.As(err, &unavailable):
		return err
	case errors.As(err, &ie):
		return d.corrupt(err)
	case !errors.As(err, &se):
		return err
	}
	if se.Code == sqlite3.ErrReadonly {
		if version := datafile.WriteVersion(d.path); version > datafile.WALVersion {
			d.metrics.damaged.Inc()
			return d.corruptError(fmt.Sprintf("its header has version %d of the write format, but SQLite supports up to %d", version, datafile.WALVersion), err)
		}
	}
	switch se.Code {
	case sqlite3.ErrFull:
		return &datafile.UnavailableError{Reason: "the disk or the database's page limit is full, free space in " + d.dir, Err: err}
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen, sqlite3.ErrReadonly, sqlite3.ErrPerm, sqlite3.ErrNomem:
		return &datafile.UnavailableError{Reason: "the device that holds " + d.dir + " fails", Err: err}
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrProtocol:
		return &datafile.UnavailableError{Reason: "another program holds a lock on the database in " + d.dir, Err: err}
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return d.corrupt(err)
	}
	return err
}

// corrupt counts an error that SQLite reports as damage to the file's structure, and returns it
// with a diagnosis.
func (d *DB) corrupt(err error) error {
	d.metrics.damaged.Inc()
	detail, device, known := d.diagnosis.diagnose(err)
	if device != nil {
		return device
	}
	corrupt := d.corruptError(detail, err)
	corrupt.Unsure = !known
	return corrupt
}

// corruptError returns the error for damage in this database's file.
func (d *DB) corruptError(detail string, err error) *datafile.CorruptError {
	return &datafile.CorruptError{Path: d.path, Detail: detail, Copy: d.opts.Truth != nil, Err: err}
}

func (d *DB) isSQLite(err error) bool {
	var se sqlite3.Error
	return errors.As(err, &se)
}

// kv makes a KV of the columns rev, sum and value, and verifies the value.
func (d *DB) kv(key string, rev, sum, value driver.Value) KV {
	kv := KV{Key: key, Rev: rev.(int64)}
	kv.Value, _ = value.([]byte)
	if want, ok := sum.(int64); !ok || want != datafile.Checksum(key, kv.Value) {
		d.metrics.damaged.Inc()
		damaged := &DamagedError{Path: d.path, Key: key, Rev: kv.Rev, Copy: d.opts.Truth != nil}
		damaged.InStore = damaged.Copy && want == datafile.UnreadableSum(key, kv.Value)
		kv.Value, kv.Err = nil, damaged
		select {
		case d.damaged <- damaged:
		default:
		}
	}
	return kv
}

// indexError says that the index of live keys contradicts its table.
type indexError struct{ key, detail string }

func (e *indexError) Error() string {
	return fmt.Sprintf("it is unknown whether %s exists: %s", e.key, e.detail)
}
