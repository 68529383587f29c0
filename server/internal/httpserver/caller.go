package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Caller returns the address that a request comes from, and the token that it
// brings.
//
// Callers on this machine may do more than others, so the address is the caller's
// own or none: it is the zero Addr where somebody else may be behind the request,
// through a proxy or through a page in a browser on this machine.
func Caller(r *http.Request) (from netip.Addr, token string) {
	token = bearer(r.Header.Get("Authorization"))
	if isRelayed(r.Header) {
		return netip.Addr{}, token
	}
	if fromUnixSocket(r) {
		return netip.IPv6Loopback(), token // which has no address, and whose other end is here
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	from = at.Addr().Unmap()
	if err != nil || from.IsLoopback() && mayBePage(r) {
		return netip.Addr{}, token
	}
	return from, token
}

func fromUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// isRelayed reports whether a proxy says that it passes on another's request.
func isRelayed(h http.Header) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if h[name] != nil {
			return true
		}
	}
	return false
}

// mayBePage reports whether a page from elsewhere may have made a browser send
// the request. Under a name of its own, which the page's owner lets point to this
// machine, the browser would take that for the page's own server.
func mayBePage(r *http.Request) bool { return FromPage(r) || !isLocalName(r.Host) }

// FromPage reports whether a browser says that a page of another site has made it
// send the request. One of the same site may be somebody else's as well.
func FromPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	from, err := url.Parse(origin)
	return err != nil || from.Host != r.Host
}

// isLocalName reports whether a host, with or without a port, can be no other
// machine than this.
func isLocalName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	at, err := netip.ParseAddr(host)
	return err == nil && at.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// bearer returns the token of an Authorization header, or "".
func bearer(authorization string) string {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// IsLoopback reports whether only this machine can reach the address of a
// listener.
func IsLoopback(a net.Addr) bool {
	if a.Network() == "unix" {
		return true
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}
