package datafile

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// revisionName is the file in the data directory that has the last revision. A start that finds the
// database behind it detects that commits were lost: their log was moved away or truncated, or the
// database was replaced by an older file.
const revisionName = "revision"

// maxRevision is above the revisions of any server, and leaves room for later epochs.
const maxRevision = 1 << 62

// RevisionFile is the open file. It is written in place after each commit and not synced. If the
// process dies, nothing of it is lost. If the machine loses power, it may be a little behind, which
// can hide a loss but never report a false one.
type RevisionFile struct {
	f       *os.File
	log     *slog.Logger
	failing bool
}

// OpenRevisionFile opens the revision file of a data directory and returns the revision in it; 0 if
// the file is new or its contents are invalid.
func OpenRevisionFile(dir string, log *slog.Logger) (_ *RevisionFile, rev int64, err error) {
	f, err := os.OpenFile(filepath.Join(dir, revisionName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	rev, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || rev < 0 || rev > maxRevision {
		rev = 0
		if len(b) > 0 {
			log.Warn("the file with the last revision cannot be read, so it is unknown whether commits are missing", "file", f.Name())
		}
	}
	return &RevisionFile{f: f, log: log}, rev, nil
}

// Set writes a durable revision. A failure does no harm now, so it is only logged.
func (m *RevisionFile) Set(rev int64) {
	_, err := m.f.WriteAt(fmt.Appendf(nil, "%019d\n", rev), 0)
	if err != nil && !m.failing {
		m.log.Error("writing the last revision beside the database failed: the next start could not detect missing commits", "file", m.f.Name(), "err", err)
	}
	m.failing = err != nil
}

func (m *RevisionFile) Close() error { return m.f.Close() }

// Sync makes the revision in the file durable.
func (m *RevisionFile) Sync() error { return m.f.Sync() }
