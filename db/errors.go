package db

import (
	"errors"
	"fmt"
	"os"

	"github.com/mattn/go-sqlite3"
)

// Errors of reads and writes.
var (
	// ErrConflict: the key is not at the revision the writer expected. The
	// writer reads again and decides; nothing was written.
	ErrConflict = errors.New("key is not at the expected revision")
	// ErrCompacted: the revision asked for is older than the history kept.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFutureRevision: the revision asked for has not happened yet.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrClosed: the database was closed.
	ErrClosed = errors.New("database is closed")
)

// UnavailableError says that the operation failed for a reason outside the
// data, usually a full disk or a failing device. Nothing was written, reads
// that need no new disk space go on, and later writes succeed by themselves
// once the cause is gone.
type UnavailableError struct {
	// Reason is what an administrator should look at, in one phrase.
	Reason string
	Err    error
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("%s: %v", e.Reason, e.Err) }
func (e *UnavailableError) Unwrap() error { return e.Err }

// CorruptError says that SQLite found the file damaged.
type CorruptError struct {
	// Path is the database file.
	Path string
	// Detail is what was found, with the page where SQLite tells it.
	Detail string
	// Unsure: the file is still being looked over. It may be that its device fails.
	Unsure bool
	Err    error
}

func (e *CorruptError) Error() string {
	if e.Unsure {
		return fmt.Sprintf("database file %s cannot be read (%s): it is damaged, or its device fails. It is being looked over: the log will say which", e.Path, e.Detail)
	}
	return fmt.Sprintf("database file %s is damaged (%s): stop the server, keep the file, and restore a backup; "+
		"\"sqlite3 FILE .recover\" saves what is readable", e.Path, e.Detail)
}
func (e *CorruptError) Unwrap() error { return e.Err }

// DamagedError says that the stored bytes of one revision are not those that
// were written. Other objects are not concerned.
type DamagedError struct {
	Path string
	Key  string
	Rev  int64
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the value of %s at revision %d in %s fails its checksum: check the disk, then delete the object or restore a backup", e.Key, e.Rev, e.Path)
}

// NewerSchemaError says that a newer release wrote the database.
type NewerSchemaError struct {
	Path        string
	Have, Known int
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("database %s has schema version %d, this release knows up to %d: run the newer release, or restore a backup made by this one",
		e.Path, e.Have, e.Known)
}

// translate gives SQLite's result codes the types above, see
// https://sqlite.org/rescode.html. Other errors pass unchanged, also those that have these types.
func (d *DB) translate(err error) error {
	var se sqlite3.Error
	var ie *indexError
	var corrupt *CorruptError
	var unavailable *UnavailableError
	switch {
	case errors.As(err, &corrupt), errors.As(err, &unavailable):
		return err
	case errors.As(err, &ie):
		return d.corrupt(err)
	case !errors.As(err, &se):
		return err
	}
	if se.Code == sqlite3.ErrReadonly {
		if version := writeVersion(d.path); version > walVersion {
			d.metrics.damaged.Inc()
			return &CorruptError{Path: d.path, Detail: fmt.Sprintf("its header has version %d of the file format for writers, and SQLite knows up to %d", version, walVersion), Err: err}
		}
	}
	switch se.Code {
	case sqlite3.ErrFull:
		return &UnavailableError{Reason: "the disk or the database's page limit is full, free space in " + d.dir, Err: err}
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen, sqlite3.ErrReadonly, sqlite3.ErrPerm, sqlite3.ErrNomem:
		return &UnavailableError{Reason: "the device that holds " + d.dir + " fails", Err: err}
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrProtocol:
		return &UnavailableError{Reason: "another program holds a lock on the database in " + d.dir, Err: err}
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return d.corrupt(err)
	}
	return err
}

// walVersion is the newest version of the file format, see https://sqlite.org/fileformat2.html#file_format_version_numbers.
const walVersion = 2

// writeVersion is the version of the file format that who writes a database must know: SQLite reads one of a newer version and
// refuses to write it. It is 0 if it cannot be read.
func writeVersion(path string) byte {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	var version [1]byte
	if _, err := f.ReadAt(version[:], 18); err != nil {
		return 0
	}
	return version[0]
}

// corrupt counts an error that SQLite takes for damage to the file's structure, and
// returns it with its diagnosis.
func (d *DB) corrupt(err error) error {
	d.metrics.damaged.Inc()
	detail, device, known := d.diagnose(err)
	if device != nil {
		return device
	}
	return &CorruptError{Path: d.path, Detail: detail, Unsure: !known, Err: err}
}
