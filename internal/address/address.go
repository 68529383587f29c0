// Package address identifies a client by its network address.
//
// It prevents two errors: counting several clients as one, so that one of them
// uses up the units of the others, and counting one client as many because it can
// choose its address.
package address

import (
	"net/netip"
	"slices"
	"strings"
)

// maxText bounds the text that is parsed. No address with a port is longer.
const maxText = 128

// maxProxies bounds how many trusted proxies of a chain are followed.
const maxProxies = 64

// A Resolver finds the client behind trusted proxies. [NewResolver] makes one.
type Resolver struct {
	proxies []netip.Prefix
	bits    int
}

// NewResolver returns a resolver that trusts the given proxies, and identifies
// IPv6 clients by their first bits, by default 64. IPv4 prefixes may be in
// IPv6-mapped form.
func NewResolver(proxies []netip.Prefix, bits int) *Resolver {
	r := &Resolver{proxies: make([]netip.Prefix, len(proxies)), bits: bits}
	for i, p := range proxies {
		r.proxies[i] = Unmap(p)
	}
	if bits <= 0 {
		r.bits = 64
	}
	return r
}

// Unmap turns ::ffff:10.0.0.0/104 into 10.0.0.0/8, because addresses are looked
// up unmapped.
func Unmap(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// Key returns the identity of the client that connects from peer, or for which
// trusted proxies forward. Each proxy appends the address that connected to it,
// so the chain is read from its end. The first address that is not a trusted
// proxy is the client; anything before it may be forged.
//
// Key returns "" if the client cannot be identified. The address of the proxy
// would be wrong then, because all its clients share it.
func (r *Resolver) Key(peer string, forwarded []string) string {
	host, addr := parse(peer)
	if !r.trusts(addr) {
		return r.name(host, addr)
	}
	return r.follow(host, addr, forwarded, 1)
}

// ForwardedKey is like [Resolver.Key] for a chain from a peer that is trusted whatever
// its address is: the last address that is not a trusted proxy is the client. It returns
// "" also for an empty chain.
func (r *Resolver) ForwardedKey(forwarded []string) string {
	return r.follow("", netip.Addr{}, forwarded, 0)
}

// follow returns the identity of the client for which an address forwards, which is trusted. If all addresses
// are trusted, the first is the client. Proxies is how many were followed already.
func (r *Resolver) follow(host string, addr netip.Addr, forwarded []string, proxies int) string {
	for item := range chain(forwarded).backward {
		if proxies++; proxies > maxProxies {
			return ""
		}
		host, addr = parse(item)
		addr = addr.WithZone("") // a zone is valid only on the host that added it
		if !r.trusts(addr) {
			break
		}
	}
	return r.name(host, addr)
}

func (r *Resolver) trusts(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(r.proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A chain is a comma-separated list over several header lines.
type chain []string

// backward visits the items from the last to the first.
func (lines chain) backward(visit func(item string) bool) {
	for _, line := range slices.Backward(lines) {
		for line != "" {
			at := strings.LastIndexByte(line, ',')
			item := strings.Trim(line[at+1:], " \t")
			line = line[:max(at, 0)]
			if item != "" && !visit(item) {
				return
			}
		}
	}
}

// parse returns the host of a text that may have a port, and its address, which
// is invalid if the host is not an address.
func parse(text string) (host string, a netip.Addr) {
	if len(text) > maxText {
		return "", netip.Addr{}
	}
	host = text
	switch {
	case strings.HasPrefix(text, "["):
		end := strings.IndexByte(text, ']')
		if end < 0 || end+1 < len(text) && text[end+1] != ':' {
			return "", netip.Addr{}
		}
		host = text[1:end]
	case strings.Count(text, ":") == 1:
		host = text[:strings.IndexByte(text, ':')]
	}
	a, _ = netip.ParseAddr(host)
	return host, a
}

// name returns the identity of a client: its IPv4 address, or its IPv6 prefix.
func (r *Resolver) name(host string, a netip.Addr) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return host // ParseAddr accepts only one spelling
	case a.IsLinkLocalUnicast() && !a.Is4In6():
		return a.String() // with its zone: link-local addresses are unique per link
	}
	a = a.WithZone("")
	if v4, ok := embedded(a); ok {
		return v4.String()
	}
	if r.bits >= 128 || isSingleClient(a) {
		return a.String()
	}
	p, _ := a.Prefix(r.bits) // cannot fail: bits is below 128
	var room [48]byte
	return string(p.AppendTo(room[:0]))
}

var (
	teredo     = netip.MustParsePrefix("2001::/32")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	compatible = netip.MustParsePrefix("::/96")
)

// embedded returns the IPv4 address from which an IPv6 address was made. It
// identifies the client better: the client can choose among many of the IPv6
// addresses (65,536 prefixes with 6to4, as many ports with Teredo), and all
// clients behind a NAT64 translator share one prefix. Replies go to the IPv4
// address, so a client that completes a connection cannot forge it.
func embedded(a netip.Addr) (v4 netip.Addr, ok bool) {
	r := a.As16()
	switch {
	case a.Is4In6(), nat64.Contains(a):
		return netip.AddrFrom4([4]byte(r[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(r[2:6])), true
	case teredo.Contains(a): // stored inverted
		return netip.AddrFrom4([4]byte{^r[12], ^r[13], ^r[14], ^r[15]}), true
	}
	return netip.Addr{}, false
}

// isSingleClient reports whether an IPv6 address belongs to one client. Usually a
// client can choose from a whole prefix. But hosts of a private network share a
// prefix, and so do clients behind a local NAT64 translator or with
// IPv4-compatible addresses.
func isSingleClient(a netip.Addr) bool {
	return a.IsPrivate() || localNAT64.Contains(a) || compatible.Contains(a) // includes ::1
}

// Private returns the private networks, where proxies usually run.
func Private() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
	}
}
