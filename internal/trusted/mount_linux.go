package trusted

import "syscall"

// stReadOnly is ST_RDONLY of statfs(2).
const stReadOnly = 1

// readOnly reports whether a file system is mounted read-only where the file was
// found.
func readOnly(s *syscall.Statfs_t) bool { return s.Flags&stReadOnly != 0 }
