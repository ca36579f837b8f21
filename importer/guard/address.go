package guard

import "net/netip"

// Kinds of address that a stranger must not lead us to.
const (
	kindLoopback = "a loopback address"
	kindPrivate  = "a private address"
	kindLink     = "a link-local address"
	kindMetadata = "the address of a cloud's metadata service"
	kindSpecial  = "an address with a special purpose"
)

// special are the ranges that are not the public internet, the narrower before the
// wider. Source: the IANA special-purpose address registries (RFC 6890), multicast
// (RFC 5771) and the clouds' documents. IPv6 outside 2000::/3 needs no entry.
var special = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("169.254.169.254/32"), kindMetadata}, // AWS, Azure, Google, Oracle
	{netip.MustParsePrefix("169.254.170.2/32"), kindMetadata},   // AWS, tasks' credentials
	{netip.MustParsePrefix("100.100.100.200/32"), kindMetadata}, // Alibaba
	{netip.MustParsePrefix("168.63.129.16/32"), kindMetadata},   // Azure's agent, in a public range
	{netip.MustParsePrefix("192.0.0.192/32"), kindMetadata},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::/32"), kindMetadata},      // AWS
	{netip.MustParsePrefix("fd20:ce::/32"), kindMetadata},       // Google
	{netip.MustParsePrefix("127.0.0.0/8"), kindLoopback},
	{netip.MustParsePrefix("::1/128"), kindLoopback},
	{netip.MustParsePrefix("10.0.0.0/8"), kindPrivate},
	{netip.MustParsePrefix("172.16.0.0/12"), kindPrivate},
	{netip.MustParsePrefix("192.168.0.0/16"), kindPrivate},
	// shared by a provider's customers, RFC 6598
	{netip.MustParsePrefix("100.64.0.0/10"), kindPrivate},
	{netip.MustParsePrefix("fc00::/7"), kindPrivate}, // unique local, RFC 4193
	{netip.MustParsePrefix("169.254.0.0/16"), kindLink},
	{netip.MustParsePrefix("fe80::/10"), kindLink},
	{netip.MustParsePrefix("0.0.0.0/8"), kindSpecial}, // 0.0.0.0 is this host
	{netip.MustParsePrefix("192.0.0.0/24"), kindSpecial},
	{netip.MustParsePrefix("192.0.2.0/24"), kindSpecial},
	{netip.MustParsePrefix("192.88.99.0/24"), kindSpecial},
	{netip.MustParsePrefix("198.18.0.0/15"), kindSpecial},
	{netip.MustParsePrefix("198.51.100.0/24"), kindSpecial},
	{netip.MustParsePrefix("203.0.113.0/24"), kindSpecial},
	{netip.MustParsePrefix("224.0.0.0/3"), kindSpecial},       // multicast, reserved, broadcast
	{netip.MustParsePrefix("2001::/23"), kindSpecial},         // Teredo, ORCHID and other protocols
	{netip.MustParsePrefix("2001:db8::/32"), kindSpecial},     // documentation
	{netip.MustParsePrefix("3fff::/20"), kindSpecial},         // documentation
	{netip.MustParsePrefix("5f00::/16"), kindSpecial},         // segment routing
	{netip.MustParsePrefix("64:ff9b:1::/48"), kindSpecial},    // NAT64 with a network's own prefix, RFC 8215
	{netip.MustParsePrefix("2620:4f:8000::/48"), kindSpecial}, // AS112
}

var globalUnicast = netip.MustParsePrefix("2000::/3")

// kindOf returns the kind of an address, "" for one of the public internet. An IPv6
// address that carries an IPv4 address counts as that: a gateway would pass the
// connection on to it.
func kindOf(addr netip.Addr) string {
	addr = embedded(addr.Unmap().WithZone(""))
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return s.kind
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return kindSpecial
	}
	return ""
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
	compatible = netip.MustParsePrefix("::/96")           // RFC 4291, 2.5.5.1
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
)

// embedded returns the IPv4 address that an IPv6 address carries, else the address.
func embedded(addr netip.Addr) netip.Addr {
	b := addr.As16()
	last := netip.AddrFrom4([4]byte(b[12:16]))
	switch {
	case addr.Is4() || addr == netip.IPv6Loopback() || addr == netip.IPv6Unspecified():
		return addr
	case nat64.Contains(addr), compatible.Contains(addr), translated.Contains(addr):
		return last
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		// ISATAP, RFC 5214
		return last
	}
	return addr
}
