//go:build !unix

package limits

// DefaultConnections is how many connections a server should hold.
func DefaultConnections() int { return maxConnections }
