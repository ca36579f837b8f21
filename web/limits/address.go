// Package limits keeps one caller from taking what all callers share: the connections
// of a listener and the requests in flight.
//
// If a limit is reached, the caller who holds most loses something. So a caller that fills a limit
// delays only itself.
package limits

import "net/netip"

// Address returns the address under which a connection is counted. remote has the form of
// http.Request.RemoteAddr. The result is an IPv4 address, or the /64 of an IPv6 address (one host
// usually owns all of it). If remote is neither, as for a connection within the process, the result
// is remote itself.
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
