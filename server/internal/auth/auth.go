// Package auth identifies the caller of a request: its address and the bearer
// token that it sends. Callers on this machine may refund and reset without a
// token; all others need one.
package auth

import (
	"net"
	"net/netip"
	"strings"
)

// BearerToken returns the token of an Authorization header, or "" if the header
// has another scheme. The scheme is not case-sensitive.
func BearerToken(authorization string) string {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// PeerAddr returns the IP address of the other end of a connection. A unix
// socket has no IP address; its peer is on this machine, so the result is the
// loopback address. It is the zero Addr for any other kind of address.
func PeerAddr(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.UnixAddr:
		return netip.IPv6Loopback()
	}
	return netip.Addr{}
}

// IsLoopback reports whether a listener at the address can be reached from this
// machine only.
func IsLoopback(a net.Addr) bool { return PeerAddr(a).IsLoopback() }
