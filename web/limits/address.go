// Package limits keeps one caller from taking what all callers share: the connections
// of a listener and the requests in flight.
//
// A limit that is reached takes from the caller who holds most. So a caller that fills
// a limit waits for itself, and others do not wait for it.
package limits

import "net/netip"

// Address is the address that a connection counts for. remote is a remote address as
// http.Request.RemoteAddr has it. The result is an IPv4 address, or the /64 of an IPv6
// address (one host usually owns all of it). It is remote itself where that is neither,
// as for a connection made within the process.
func Address(remote string) string {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	a := ap.Addr().Unmap()
	if a.Is4() {
		return a.String()
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return remote
	}
	return p.String()
}
