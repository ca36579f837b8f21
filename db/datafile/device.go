package datafile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// SQLite reports some errors of a device (EIO, ENXIO, ERANGE) as damage to the file
// (https://sqlite.org/rescode.html#ioerr_corruptfs). The difference decides what an
// administrator does, so where SQLite says damage the file is read without it.

// kept are the database files that readThrough has opened. They stay open: when a
// process closes a file, the system drops all the locks that it has on it, also
// those of SQLite.
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
		Reason: fmt.Sprintf("%s cannot be read (%v): its device fails, see the system's log. What is on it may be whole", path, err),
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

// readLog reads the log, on which SQLite has no locks.
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
	// Hides os.File's WriteTo, which may copy without reading.
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
	return err
}
