//go:build unix

package limits

import "syscall"

// DefaultConnections is how many connections a server should hold: half of the
// descriptors that the process may open. The other half is for the database's files,
// pods' logs and outgoing connections.
func DefaultConnections() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxConnections
	}
	return int(min(limit.Cur/2, maxConnections))
}
