package db

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/mattn/go-sqlite3"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

// A full disk must not keep anybody from making room. So a file holds some space
// (the reserve). When a write meets the end of the disk, a quarter of the reserve is
// released, then the next when that is used up: other programs take part of it,
// too. From then on only deletions, compaction and small updates are written, until
// there is room again for the reserve and a quarter more. A quota works in the same
// way.

const (
	// reserveName is the file in the data directory that holds the reserve.
	reserveName = "reserve"
	// reservePart: the reserve is at most this part of the file system. It should not
	// be less than what is in the log, which has to be copied into the file.
	reservePart = 4
	// smallUpdate is how large the value of an update may be, and smallGrowth how much
	// larger than the value before, to be written when there is no room: leases are
	// renewed, and an object is marked as being deleted.
	smallUpdate = 16 << 10
	smallGrowth = 1 << 10
	// nearlyFree is how little free space is worth a warning: a twentieth of the file
	// system, and at most this.
	nearlyFree = 1 << 30
	// pageSize is SQLite's default.
	pageSize = 4096
	// noSpace is so little free space that a write which fails there has probably met the
	// end of the disk, whatever its error says.
	noSpace = 256 << 10
)

// space looks after the room that the database has.
type space struct {
	dir   string
	log   *slog.Logger
	size  int64 // of the reserve when it is whole; 0 for no reserve
	quota int64 // 0 for none

	disk  atomic.Pointer[datafile.UnavailableError] // why writes that grow are refused
	limit atomic.Pointer[datafile.UnavailableError] // the same, because of the quota
	low   atomic.Bool                               // deletions, too, would take what compaction needs
	used  atomic.Int64                              // bytes of pages in use, when there is a quota

	mu     sync.Mutex
	held   int64 // bytes that the reserve holds
	warned bool  // that the disk is nearly full
}

func newSpace(o Options) *space {
	s := &space{dir: o.Dir, log: o.Logger, quota: o.Quota}
	if o.Reserve == 0 {
		return s
	}
	_, total, err := freeSpace(s.dir)
	if err != nil {
		s.log.Warn("the size of the file system is not known: no space is reserved for deletions on a full disk", "dir", s.dir, "err", err)
		return s
	}
	s.size = min(o.Reserve, total/reservePart)
	s.look()
	return s
}

// look measures the reserve. An administrator may have removed it.
func (s *space) look() {
	s.held = 0
	if fi, err := os.Lstat(s.path()); err == nil && fi.Mode().IsRegular() {
		s.held = min(fi.Size(), s.size)
	}
}

func (s *space) path() string { return filepath.Join(s.dir, reserveName) }

// isMuch tells whether so many bytes are too many for the reserve to be left to others.
func (s *space) isMuch(bytes int64) bool { return s.size > 0 && bytes > s.size/2 }

// refusal returns why a write that grows is refused, nil if it is not.
func (s *space) refusal() *datafile.UnavailableError {
	if e := s.disk.Load(); e != nil {
		return e
	}
	return s.limit.Load()
}

// tight reports whether small updates, too, must wait, as they stay in the history for a
// while.
func (s *space) tight() bool {
	return s.low.Load() || s.quota > 0 && s.used.Load() > s.quota+s.quota/20
}

// ranOut takes the error of a failed write. If the write met the end of the disk, writes
// that grow are refused from now on. It reports whether some of the reserve was released:
// then the write is worth another try.
func (s *space) ranOut(err error) (released bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == 0 || !s.outOfSpace(err) {
		return false
	}
	s.refuse(err)
	return s.release()
}

// release gives a quarter of the reserve back to the disk, and reports whether it
// held anything.
func (s *space) release() bool {
	if s.look(); s.held == 0 {
		return false
	}
	left := max(s.held-s.size/4, 0)
	if err := os.Truncate(s.path(), left); err != nil {
		s.log.Error("the space that is reserved for deletions cannot be released", "file", s.path(), "err", err)
		return false
	}
	s.held = left
	return true
}

func (s *space) refuse(err error) {
	reason := &datafile.UnavailableError{Reason: "the disk is full, and only deletions and small updates are written until there is room: free space in " + s.dir + ", or delete objects", Err: err}
	if s.disk.Swap(reason) == nil {
		s.log.Error("the disk is full: reads, deletions and small updates go on, all other writes are refused", "dir", s.dir, "err", err,
			"do", "free space on the disk, or delete objects; writes go on by themselves")
	}
}

// outOfSpace tells whether err means that there is no space on the disk.
func (s *space) outOfSpace(err error) bool {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return false
	}
	switch se.Code {
	case sqlite3.ErrFull:
		return true
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen:
		// SQLite does not always say which error of the system it met.
		free, _, err := freeSpace(s.dir)
		return se.SystemErrno == syscall.ENOSPC || se.SystemErrno == syscall.EDQUOT || err == nil && free < noSpace
	}
	return false
}

var errNoReserve = errors.New("too little space for the reserve")

// regain makes the reserve whole, and lets writes grow again, if there is room.
func (s *space) regain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, _, err := freeSpace(s.dir)
	if err != nil {
		return // as it is
	}
	s.look()
	s.low.Store(free+s.held < s.size/4)
	if free+s.held < s.size+s.size/4 {
		s.refuse(errNoReserve)
		return
	}
	if s.held < s.size {
		err := fill(s.path(), s.held, s.size)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			s.refuse(err)
			return
		}
		if err != nil { // the file system, or its rights, do not allow it
			s.log.Warn("no space can be reserved for deletions on a full disk", "file", s.path(), "err", err)
			s.size = 0
		}
		s.held = s.size
	}
	if s.disk.Swap(nil) != nil {
		s.log.Info("there is room on the disk again: everything is written", "dir", s.dir, "free", free)
	}
}

// measure compares the bytes in use with the quota.
func (s *space) measure(used int64) {
	s.used.Store(used)
	switch over := s.limit.Load(); {
	case used >= s.quota && over == nil:
		s.limit.Store(&datafile.UnavailableError{
			Reason: fmt.Sprintf("the database has reached its quota of %d bytes, and only deletions and small updates are written: delete objects, or raise --quota-backend-bytes", s.quota),
			Err:    errors.New("quota reached")})
		s.log.Error("the database has reached its quota: reads, deletions and small updates go on, all other writes are refused", "dir", s.dir, "quota", s.quota,
			"do", "delete objects, or raise --quota-backend-bytes; deleted objects leave the file when they leave the history")
	case used < s.quota && over != nil:
		s.limit.Store(nil)
		s.log.Info("the database is below its quota again: everything is written", "dir", s.dir, "quota", s.quota, "used", used)
	}
}

// warn says in good time that the disk or the quota is nearly full.
func (s *space) warn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, total, err := freeSpace(s.dir)
	if err != nil || s.size == 0 && s.quota == 0 {
		return
	}
	used := s.used.Load()
	nearly := min(total/20, nearlyFree)
	switch {
	case !s.warned && (free < nearly || s.quota > 0 && used > s.quota-s.quota/20):
		s.warned = true
		s.log.Warn("there is little room left for the database", "dir", s.dir, "free", free, "used", used, "quota", s.quota)
	case s.warned && free > nearly+nearly/5 && used <= s.quota-s.quota/10:
		s.warned = false
	}
}

// freeSpace returns the bytes that are free on the file system of dir for
// unprivileged users, and its size.
func freeSpace(dir string) (free, total int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// fill has the file at path, which holds held bytes of the disk, hold size bytes. When it
// fails, the file is as it was.
func fill(path string, held, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := allocate(f, size); err != nil {
		return errors.Join(err, f.Truncate(held), f.Close())
	}
	return f.Close()
}

// writeZeros writes size zeros, where a system cannot allocate space otherwise.
func writeZeros(f *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// checkSpace measures the space before a transaction.
func (t *tx) checkSpace() error {
	s := t.db.space
	if s.disk.Load() != nil {
		s.regain()
	}
	if s.quota == 0 {
		return nil
	}
	pages, _, err := t.c.First("PRAGMA page_count")
	if err != nil {
		return err
	}
	free, _, err := t.c.First("PRAGMA freelist_count")
	if err != nil {
		return err
	}
	s.measure((pages - free) * pageSize)
	return nil
}

// mayGrow returns an error if nothing that takes more room may be written.
func (t *tx) mayGrow() error {
	if e := t.db.space.refusal(); e != nil {
		return e
	}
	return nil
}

// mayPut is mayGrow for a value of size bytes that supersedes revision expect of key. A
// wrong expect is a conflict, as it is with room.
func (t *tx) mayPut(key string, expect int64, size int) error {
	refusal := t.mayGrow()
	if refusal == nil {
		return nil
	}
	var rev, old int64
	err := t.c.Each(func(row []driver.Value) error {
		rev, old = row[0].(int64), row[1].(int64)
		return nil
	}, "SELECT rev, size FROM revisions WHERE key = ? AND until IS NULL", key)
	switch {
	case err != nil:
		return err
	case rev != expect:
		return ErrConflict
	case expect == 0 || size > smallUpdate || int64(size) > old+smallGrowth || t.db.space.tight():
		return refusal
	}
	return nil
}

// mayDelete returns an error if nothing may be deleted: a deletion stays in the history
// for a while, and compaction needs what is left.
func (t *tx) mayDelete() error {
	if e := t.db.space.disk.Load(); e != nil && t.db.space.low.Load() {
		return e
	}
	return nil
}

// WriteFault returns why some writes are refused: *UnavailableError while the disk is
// full, the quota is reached, or the device fails; else nil.
func (d *DB) WriteFault() error {
	if e := d.space.refusal(); e != nil {
		return e
	}
	if e := d.failing.Load(); e != nil {
		return e
	}
	return nil
}
