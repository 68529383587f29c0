package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// HTTPCaller returns the address of the caller of an HTTP request, and the bearer
// token that it sent.
//
// Callers on this machine have more rights, so the address is the zero Addr where
// the request may have been made on behalf of another client: by a proxy, or by a
// page in a browser on this machine.
func HTTPCaller(r *http.Request) (addr netip.Addr, token string) {
	token = BearerToken(r.Header.Get("Authorization"))
	if isForwarded(r.Header) {
		return netip.Addr{}, token
	}
	if onUnixSocket(r) {
		return netip.IPv6Loopback(), token
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	addr = peer.Addr().Unmap()
	if err != nil || addr.IsLoopback() && mayBeCrossOrigin(r) {
		return netip.Addr{}, token
	}
	return addr, token
}

func onUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// isForwarded reports whether a proxy forwarded the request of another client.
func isForwarded(h http.Header) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if h[name] != nil {
			return true
		}
	}
	return false
}

// mayBeCrossOrigin reports whether a page of another site may have made a browser send
// the request. A host name that is not local counts as such a page: its owner can
// let the name resolve to this machine (DNS rebinding), and the browser then
// considers the request same-origin.
func mayBeCrossOrigin(r *http.Request) bool { return IsCrossOrigin(r) || !isLocalName(r.Host) }

// IsCrossOrigin reports whether a browser sent the request on behalf of a page of
// another origin. A page of the same site but another origin counts: it may belong
// to another owner.
func IsCrossOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host
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
