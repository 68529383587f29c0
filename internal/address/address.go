// Package address says who a client is by the address that it comes from.
//
// What it guards against is that strangers are taken for one, so that one of
// them uses up what the others have; and that one is taken for many, because it
// may choose its address.
package address

import (
	"net/netip"
	"strings"
)

// maxText is longer than any address in text, with its port, and shorter than
// what somebody may send instead.
const maxText = 128

// maxProxies bounds how far back a chain of trusted proxies is followed.
const maxProxies = 64

// A Resolver knows which addresses are proxies, whose word about others is taken.
// [NewResolver] makes one.
type Resolver struct {
	proxies []netip.Prefix
	bits    int
}

// NewResolver returns a book with the addresses of those whose word is taken, and how
// many bits of an IPv6 address tell clients apart, by default 64. Addresses of IPv4
// may be written in the form that IPv6 has for them.
func NewResolver(proxies []netip.Prefix, bits int) *Resolver {
	b := &Resolver{proxies: make([]netip.Prefix, len(proxies)), bits: bits}
	for i, p := range proxies {
		b.proxies[i] = unmap(p)
	}
	if bits <= 0 {
		b.bits = 64
	}
	return b
}

// unmap returns ::ffff:10.0.0.0/104 as 10.0.0.0/8, for it is as the latter that
// addresses are looked up.
func unmap(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// Key returns what the client is known by: one that connects from peer, or one
// that a chain of proxies which ends there says it forwards for. Each proxy has
// added the address that it was connected from, so the chain is read from its end,
// and whoever is not a proxy is the client: what stands further ahead, it made up.
//
// It returns "" if that cannot be told. The client is then not known by the
// proxy's address, for everybody comes from there.
func (b *Resolver) Key(peer string, forwarded []string) string {
	host, addr := parse(peer)
	c := chain{lines: forwarded}
	for range maxProxies {
		if !addr.IsValid() || !b.trusts(addr) {
			return b.name(host, addr)
		}
		next, ok := c.last()
		if !ok {
			return b.name(host, addr) // a proxy that speaks for itself
		}
		host, addr = parse(next)
		addr = addr.WithZone("") // which meant something only where it was added
	}
	return ""
}

func (b *Resolver) trusts(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range b.proxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// A chain is a list that is separated by commas, in several lines.
type chain struct {
	lines []string
	line  string // what is left of the line after those
}

// last cuts the last item off.
func (c *chain) last() (item string, ok bool) {
	for {
		c.line = strings.TrimRight(c.line, " \t,")
		if c.line != "" {
			break
		}
		n := len(c.lines) - 1
		if n < 0 {
			return "", false
		}
		c.line, c.lines = c.lines[n], c.lines[:n]
	}
	at := strings.LastIndexByte(c.line, ',')
	item = strings.TrimLeft(c.line[at+1:], " \t")
	c.line = c.line[:max(at, 0)]
	return item, true
}

// parse returns the address in a text that may have a port, and how it is
// written there. The address is invalid if there is none.
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

// name returns what a client is known by.
func (b *Resolver) name(host string, a netip.Addr) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return host // ParseAddr knows only one way to write it
	case a.IsLinkLocalUnicast() && !a.Is4In6():
		return a.String() // with its zone: each link has addresses of its own
	}
	a = a.WithZone("")
	if v4, ok := embedded(a); ok {
		return v4.String()
	}
	if b.bits >= 128 || standsAlone(a) {
		return a.String()
	}
	p, _ := a.Prefix(b.bits) // which cannot fail on so many bits
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

// embedded returns the address of IPv4 that one of IPv6 was made from, if it was.
// That is who the client is: whoever has the one can choose among many of the
// others, 65,536 prefixes by 6to4 and as many ports by Teredo, while behind a
// translator of NAT64 everybody has the same prefix. Answers are sent there, too, so
// nobody can hold a conversation in another's name.
func embedded(a netip.Addr) (v4 netip.Addr, ok bool) {
	b := a.As16()
	switch {
	case a.Is4In6(), nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a): // which turns its bits around, for the sake of routers that meddle
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	}
	return netip.Addr{}, false
}

// standsAlone reports whether an IPv6 address stands for one client. Elsewhere
// a client is given a whole prefix, to choose its addresses from; but within a
// private network hosts share one, and so they do where a network's own translator,
// or what IPv6 had before there were any, writes addresses of IPv4 into its own.
func standsAlone(a netip.Addr) bool {
	return a.IsPrivate() || localNAT64.Contains(a) || compatible.Contains(a) // with ::1, which is this machine
}

// Private returns the networks that nobody reaches from outside: where proxies
// usually stand.
func Private() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
	}
}
