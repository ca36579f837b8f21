package datafile

import (
	"fmt"
	"os"
)

// UnavailableError says that the operation failed for a reason outside the data, usually a full
// disk or a failing device. Nothing was written. Reads that need no disk space continue, and writes
// succeed again after the cause is gone.
type UnavailableError struct {
	// Reason is the cause in one phrase, for an administrator.
	Reason string
	Err    error
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("%s: %v", e.Reason, e.Err) }
func (e *UnavailableError) Unwrap() error { return e.Err }

// CorruptError says that SQLite found the file damaged.
type CorruptError struct {
	// Path is the database file.
	Path string
	// Detail is the damage that was found, with the page if SQLite reports it.
	Detail string
	// Unsure is true while the file is still being checked: its device may fail instead.
	Unsure bool
	// Copy is true if the file is a copy of etcd's data.
	Copy bool
	Err  error
}

func (e *CorruptError) Error() string {
	if e.Unsure {
		return fmt.Sprintf("database file %s cannot be read (%s): it is damaged, or its device fails. It is being checked; the log will say which", e.Path, e.Detail)
	}
	if e.Copy {
		return fmt.Sprintf("database file %s is damaged (%s): it is a copy of what etcd has; stop the server and start it with another --data-dir, which it fills from etcd", e.Path, e.Detail)
	}
	return fmt.Sprintf("database file %s is damaged (%s): stop the server, keep the file, and restore a backup; "+
		"\"sqlite3 FILE .recover\" saves the readable parts", e.Path, e.Detail)
}
func (e *CorruptError) Unwrap() error { return e.Err }

// NewerSchemaError says that a newer release wrote the database.
type NewerSchemaError struct {
	Path        string
	Have, Known int
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("database %s has schema version %d, this release knows up to %d: run the newer release, or restore a backup made by this one",
		e.Path, e.Have, e.Known)
}

// WALVersion is the newest version of the file format, see
// https://sqlite.org/fileformat2.html#file_format_version_numbers.
const WALVersion = 2

// WriteVersion returns the version of the file format that a writer must support: SQLite reads
// files of a newer version, but refuses to write them. It returns 0 if it cannot be read.
func WriteVersion(path string) byte {
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
