package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
)

// HTTPCaller returns the caller of an HTTP request, with the bearer token that it sent.
//
// Besides the conditions of [IsLocal], a local request has a version above HTTP/1.0,
// which only proxies still use, and does not come from a page in a browser.
func HTTPCaller(r *http.Request) callers.Caller {
	peer := httpPeer(r)
	return callers.Caller{
		Local:   r.ProtoAtLeast(1, 1) && !IsCrossOrigin(r) && IsLocal(peer, r.Host, r.Header),
		Token:   BearerToken(r.Header.Get("Authorization")),
		Address: PeerAddr(peer),
	}
}

// HTTPActor returns the caller of an HTTP request as the audit log names it.
func HTTPActor(r *http.Request, i callers.Identity) audit.Actor {
	a := NewActor(i, r.TLS)
	if a.Address = r.RemoteAddr; isUnix(httpPeer(r)) {
		a.Address = "unix"
	}
	return a
}

// reasonHeader is the header with the reason for a refund or reset.
const reasonHeader = "Penstock-Reason"

// HTTPEntry returns an entry of the audit log for a request with decisions.
func HTTPEntry(r *http.Request, i callers.Identity) audit.Entry {
	return audit.Entry{API: "http", Verb: r.Method + " " + r.URL.Path, Actor: HTTPActor(r, i), Reason: r.Header.Get(reasonHeader)}
}

// httpPeer returns the address of the other end of a request's connection, or nil. That
// of a Unix socket has no text form, so its own end stands for it.
func httpPeer(r *http.Request) net.Addr {
	if own, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); ok {
		return own
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return nil
	}
	return net.TCPAddrFromAddrPort(peer)
}

// IsCrossOrigin reports whether a browser sent the request on behalf of a page of
// another origin. A page of the same site but another origin counts: it may belong
// to another owner.
//
// It does not detect DNS rebinding, by which a page's own host name resolves to this
// machine; [IsLocal] rejects the name.
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
