package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mattn/go-sqlite3"
)

// openToRead opens the database of a data directory for reading, whoever owns it.
// Its queries end when ctx does.
func openToRead(ctx context.Context, dir string) (*conn, error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no database: it is not a data directory, or no server has run there", dir)
	} else if err != nil {
		return nil, err
	}
	if err := checkTrusted(dir); err != nil {
		return nil, err
	}
	if Owner(dir) == nil { // opening applies the log, as the start of a server does
		if err := checkLog(path); err != nil {
			return nil, err
		}
	}
	if err := checkSchema(ctx, path); err != nil {
		return nil, nameFile(path, err)
	}
	c, err := openConn(path, readerPragmas...)
	if err != nil {
		return nil, nameFile(path, err)
	}
	c.ctx = ctx
	version, _, err := c.first("PRAGMA user_version")
	if err == nil && version == 0 {
		err = fmt.Errorf("%s is empty: no server has opened it yet", path)
	}
	if err != nil {
		c.close()
		return nil, nameFile(path, err)
	}
	return c, nil
}

// nameFile adds to an error of SQLite's the file and what to do.
func nameFile(path string, err error) error {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code {
	case sqlite3.ErrIoErr:
		return &UnavailableError{Reason: "the device that holds " + path + " fails", Err: err}
	case sqlite3.ErrCantOpen, sqlite3.ErrReadonly:
		return fmt.Errorf("%s: %w: SQLite has to write beside the file to read it: run as the directory's owner, or copy the directory to where you may write", path, se)
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		if err := deviceError(path, err); err != nil {
			return err
		}
		return &CorruptError{Path: path, Detail: se.Error(), Err: err}
	}
	return err
}
