// Package auth identifies the caller of a request: whether it is a program on this
// machine that connects directly, and the bearer token that it sends. The engine decides
// which of the two a refund or a reset needs.
package auth

import (
	"net"
	"net/netip"
	"slices"
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

// IsLocal reports whether a program on this machine sent the request itself. Its peer
// must be local, it must be addressed to a name of this machine, and none of its header
// fields may be that of a proxy. HTTP headers and gRPC metadata are both such fields.
//
// A proxy that leaves no such sign is not recognized; then only a token helps.
func IsLocal(peer net.Addr, host string, fields map[string][]string) bool {
	if !IsLocalPeer(peer) || hasProxyField(fields) {
		return false
	}
	return isUnix(peer) || isLocalName(host)
}

// IsLocalPeer reports whether the other end of a connection is on this machine: it is
// 127.0.0.1, ::1 or a Unix socket. The rest of 127.0.0.0/8 is not local: sidecar proxies
// connect from there on behalf of remote clients, Istio's from 127.0.0.6.
func IsLocalPeer(a net.Addr) bool {
	addr := PeerAddr(a)
	return isUnix(a) || addr == localIPv4 || addr == netip.IPv6Loopback()
}

var localIPv4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func isUnix(a net.Addr) bool {
	_, ok := a.(*net.UnixAddr)
	return ok
}

// PeerAddr returns the IP address of the other end of a connection, or the zero Addr of a
// Unix socket.
func PeerAddr(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// IsLoopback reports whether a listener at the address can be reached from this
// machine only.
func IsLoopback(a net.Addr) bool { return isUnix(a) || PeerAddr(a).IsLoopback() }

// Fields that proxies add to what they forward, and beginnings of such fields.
var (
	proxyFields = []string{
		"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip",
	}
	proxyPrefixes = []string{"X-Forwarded-", "X-Envoy-", "X-Original-"}
)

// hasProxyField reports whether a proxy added a field to the request.
func hasProxyField(fields map[string][]string) bool {
	for name := range fields {
		is := func(field string) bool { return strings.EqualFold(name, field) }
		begins := func(prefix string) bool {
			return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
		}
		if slices.ContainsFunc(proxyFields, is) || slices.ContainsFunc(proxyPrefixes, begins) {
			return true
		}
	}
	return false
}

// isLocalName reports whether a host, with or without a port, can only be this
// machine.
func isLocalName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
