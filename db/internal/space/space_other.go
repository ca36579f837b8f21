//go:build !linux

package space

import "os"

// allocate makes f hold size bytes of the disk.
func allocate(f *os.File, size int64) error { return writeZeros(f, size) }
