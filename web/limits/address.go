// Package limits keeps one caller from taking what all callers share: the
// connections of a listener and the requests in flight.
//
// A limit that is reached takes from whoever holds most. So a caller that fills
// a limit waits for itself, and others do not wait for it.
package limits

import "net/netip"

// Address is whom a connection counts for, told from its remote address as
// http.Request.RemoteAddr has it: an IPv4 address, the /64 of an IPv6 address
// (one host usually owns all of it), or the text itself where it is neither, as
// that of a connection made within the process.
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
