// Package space manages the room that a database has on its disk and below its quota.
package space

import (
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

// It must be possible to free space on a full disk. So a file holds some space (the reserve). When
// a write finds the disk full, a quarter of the reserve is released, and the next quarter when that
// is used up, because other programs take some of it, too. From then on only deletions, compaction
// and small updates are written, until there is room for the whole reserve and a quarter more. A
// quota works in the same way.

const (
	// reserveName is the file in the data directory that holds the reserve.
	reserveName = "reserve"
	// The reserve is at most 1/reservePart of the file system. It should be at least as large as the
	// log, which must be copied into the file.
	reservePart = 4
	// Warn warns when less than a twentieth of the file system and less than nearlyFree is free.
	nearlyFree = 1 << 30
	// When less than noSpace is free, a failed write has probably found the disk full, whatever its
	// error is.
	noSpace = 256 << 10
)

// Guard manages the room that the database has.
type Guard struct {
	dir   string
	log   *slog.Logger
	size  int64 // of the complete reserve; 0 for no reserve
	quota int64 // 0 for none

	disk  atomic.Pointer[datafile.UnavailableError] // why writes that grow are refused
	limit atomic.Pointer[datafile.UnavailableError] // the same, because of the quota
	// low is true if even deletions would use the space that compaction needs
	low  atomic.Bool
	used atomic.Int64 // bytes of pages in use, when there is a quota

	mu     sync.Mutex
	held   int64 // bytes that the reserve holds
	warned bool  // Warn has logged that the disk is nearly full
}

// New returns the guard of a data directory, with a reserve and a quota in bytes, 0 for none.
func New(dir string, reserve, quota int64, log *slog.Logger) *Guard {
	s := &Guard{dir: dir, log: log, quota: quota}
	if reserve == 0 {
		return s
	}
	_, total, err := Free(s.dir)
	if err != nil {
		s.log.Warn("the size of the file system is unknown: no space is reserved for deletions on a full disk", "dir", s.dir, "err", err)
		return s
	}
	s.size = min(reserve, total/reservePart)
	s.measure()
	return s
}

// measure reads the size of the reserve. An administrator may have removed the file.
func (s *Guard) measure() {
	s.held = 0
	if fi, err := os.Lstat(s.path()); err == nil && fi.Mode().IsRegular() {
		s.held = min(fi.Size(), s.size)
	}
}

func (s *Guard) path() string { return filepath.Join(s.dir, reserveName) }

// IsMuch reports whether writing that many bytes would take more than half of the reserve.
func (s *Guard) IsMuch(bytes int64) bool { return s.size > 0 && bytes > s.size/2 }

// Refusal returns why a write that grows is refused, nil if it is not.
func (s *Guard) Refusal() *datafile.UnavailableError {
	if e := s.disk.Load(); e != nil {
		return e
	}
	return s.limit.Load()
}

// Full reports whether writes that grow are refused because the disk is full.
func (s *Guard) Full() bool { return s.disk.Load() != nil }

// Deletions returns why even deletions are refused, nil if they are not: a deletion stays in the
// history for a while, and compaction needs the rest of the reserve.
func (s *Guard) Deletions() *datafile.UnavailableError {
	if e := s.disk.Load(); e != nil && s.low.Load() {
		return e
	}
	return nil
}

// HasQuota reports whether there is a quota.
func (s *Guard) HasQuota() bool { return s.quota > 0 }

// Tight reports whether even small updates are refused, because they stay in the history for a
// while.
func (s *Guard) Tight() bool {
	return s.low.Load() || s.quota > 0 && s.used.Load() > s.quota+s.quota/20
}

// RanOut takes the error of a failed write. If the disk was full, writes that grow are refused from
// now on. RanOut reports whether it released some of the reserve, so that the write should be tried
// again.
func (s *Guard) RanOut(err error) (released bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == 0 || !s.outOfSpace(err) {
		return false
	}
	s.refuse(err)
	return s.Release()
}

// Release frees a quarter of the reserve, and reports whether the reserve held anything.
func (s *Guard) Release() bool {
	if s.measure(); s.held == 0 {
		return false
	}
	left := max(s.held-s.size/4, 0)
	if err := os.Truncate(s.path(), left); err != nil {
		s.log.Error("releasing the space reserved for deletions failed", "file", s.path(), "err", err)
		return false
	}
	s.held = left
	return true
}

func (s *Guard) refuse(err error) {
	reason := &datafile.UnavailableError{Reason: "the disk is full; only deletions and small updates succeed until there is room: free space in " + s.dir + ", or delete objects", Err: err}
	if s.disk.Swap(reason) == nil {
		s.log.Error("the disk is full: reads, deletions and small updates succeed, all other writes are refused", "dir", s.dir, "err", err,
			"do", "free space on the disk, or delete objects; writes resume automatically")
	}
}

// outOfSpace reports whether err means that the disk is full.
func (s *Guard) outOfSpace(err error) bool {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return false
	}
	switch se.Code {
	case sqlite3.ErrFull:
		return true
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen:
		// SQLite does not always report the system's error.
		free, _, err := Free(s.dir)
		return se.SystemErrno == syscall.ENOSPC || se.SystemErrno == syscall.EDQUOT || err == nil && free < noSpace
	}
	return false
}

var errNoReserve = errors.New("too little space for the reserve")

// Begin creates the reserve at a start, if it is configured.
func (s *Guard) Begin() {
	if s.size > 0 {
		s.regain()
	}
}

// Retry restores the reserve if the disk was full and has room again.
func (s *Guard) Retry() {
	if s.Full() {
		s.regain()
	}
}

// regain restores the reserve, and allows writes that grow again, if there is room.
func (s *Guard) regain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, _, err := Free(s.dir)
	if err != nil {
		return // still too little room
	}
	s.measure()
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
		if err != nil { // the file system or its permissions do not allow it
			s.log.Warn("no space can be reserved for deletions on a full disk", "file", s.path(), "err", err)
			s.size = 0
		}
		s.held = s.size
	}
	if s.disk.Swap(nil) != nil {
		s.log.Info("there is room on the disk again: all writes succeed", "dir", s.dir, "free", free)
	}
}

// Measure compares the bytes in use with the quota.
func (s *Guard) Measure(used int64) {
	s.used.Store(used)
	switch over := s.limit.Load(); {
	case used >= s.quota && over == nil:
		s.limit.Store(&datafile.UnavailableError{
			Reason: fmt.Sprintf("the database has reached its quota of %d bytes; only deletions and small updates succeed: delete objects, or raise --quota-backend-bytes", s.quota),
			Err:    errors.New("quota reached")})
		s.log.Error("the database has reached its quota: reads, deletions and small updates succeed, all other writes are refused", "dir", s.dir, "quota", s.quota,
			"do", "delete objects, or raise --quota-backend-bytes; a deletion frees space once the object has left the history")
	case used < s.quota && over != nil:
		s.limit.Store(nil)
		s.log.Info("the database is below its quota again: all writes succeed", "dir", s.dir, "quota", s.quota, "used", used)
	}
}

// Warn logs that the disk or the quota is nearly full.
func (s *Guard) Warn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, total, err := Free(s.dir)
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

// Free returns the bytes that are free on the file system of dir for
// unprivileged users, and its size.
func Free(dir string) (free, total int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// fill makes the file at path, which holds held bytes of the disk, hold size bytes. If it fails,
// the file is unchanged.
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

// writeZeros writes size zeros, for systems that cannot allocate space otherwise.
func writeZeros(f *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at); err != nil {
			return err
		}
	}
	return f.Sync()
}
