package datafile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// SQLite reports some errors of a device (EIO, ENXIO, ERANGE) as damage to the file
// (https://sqlite.org/rescode.html#ioerr_corruptfs). An administrator must treat the two
// differently, so after such an error the file is read without SQLite.

// kept are the database files that readThrough has opened. They stay open: when a process closes a
// file, the system drops all of the process's locks on the file, also those of SQLite.
var kept = struct {
	sync.Mutex
	files map[string]*os.File
}{files: map[string]*os.File{}}

// DeviceError reads a database file and its log to their ends and returns an
// *UnavailableError when the system cannot read them, nil when it can.
func DeviceError(path string, met error) error {
	err := readThrough(path)
	if err == nil {
		err = readLog(path + "-wal")
	}
	if err == nil {
		return nil
	}
	return &UnavailableError{
		Reason: fmt.Sprintf("%s cannot be read (%v): its device fails, see the system log. The data on it may be intact", path, err),
		Err:    met,
	}
}

func readThrough(path string) error {
	kept.Lock()
	f := kept.files[path]
	if f == nil {
		var err error
		if f, err = os.Open(path); err != nil {
			kept.Unlock()
			return err
		}
		kept.files[path] = f
	}
	kept.Unlock()
	return readToEnd(io.NewSectionReader(f, 0, 1<<62))
}

// readLog reads the log. SQLite has no locks on it.
func readLog(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return readToEnd(f)
}

func readToEnd(r io.Reader) error {
	// The wrappers hide os.File's WriteTo, which may copy without reading.
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
	return err
}

// NameFile adds the file, and what to do, to an error of SQLite.
func NameFile(path string, err error) error {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code {
	case sqlite3.ErrIoErr:
		return &UnavailableError{Reason: "the device that holds " + path + " fails", Err: err}
	case sqlite3.ErrCantOpen, sqlite3.ErrReadonly:
		return fmt.Errorf("%s: %w: SQLite has to write beside the file to read it: run as the directory's owner, or copy the directory to a place where you may write", path, se)
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		if err := DeviceError(path, err); err != nil {
			return err
		}
		return &CorruptError{Path: path, Detail: se.Error(), Err: err}
	}
	return err
}
