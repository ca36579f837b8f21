//go:build unix && !linux

package trusted

import "syscall"

// readOnly is false where it is not known.
func readOnly(*syscall.Statfs_t) bool { return false }
