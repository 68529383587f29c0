package httplimit

import (
	"net/http"
	"net/netip"

	"github.com/penstock-io/penstock/internal/address"
)

// ClientIP returns a [Charge.Key] that is the client's address, found by the
// Proxies, the AddressHeader and the IPv6Prefix of the options. It is what is
// charged by default, and of use where a key is made of it and something else. It
// is "" if the client cannot be told from others.
func ClientIP(o *Options) func(*http.Request) string {
	if o == nil {
		o = &Options{}
	}
	book, header := address.NewResolver(o.Proxies, o.IPv6Prefix), "X-Forwarded-For"
	if o.AddressHeader != "" {
		header = http.CanonicalHeaderKey(o.AddressHeader)
	}
	return func(r *http.Request) string { return book.Key(r.RemoteAddr, r.Header[header]) }
}

// PrivateNetworks returns the networks that nobody reaches from outside, such as
// 10.0.0.0/8, for [Options.Proxies]: trust them where a load balancer or an ingress
// of your own stands in front, and nobody inside has a reason to lie.
func PrivateNetworks() []netip.Prefix { return address.Private() }

// Header returns a [Charge.Key] that is the value of a header field, such as
// X-API-Key. Whoever may choose it freely has as many keys as it likes: check it
// before, or limit addresses as well.
func Header(name string) func(*http.Request) string {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		if values := r.Header[name]; len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// Cookie returns a [Charge.Key] that is the value of a cookie. What is said of
// [Header] is true of cookies, too.
func Cookie(name string) func(*http.Request) string {
	return func(r *http.Request) string {
		c, err := r.Cookie(name)
		if err != nil {
			return ""
		}
		return c.Value
	}
}

// PathValue returns a [Charge.Key] that is a part of the path which matches a
// wildcard, as {id} in a pattern of [http.ServeMux] is one. The middleware has to
// be around the handler of that pattern; further out nothing has matched yet.
func PathValue(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.PathValue(name) }
}

// Global is a [Charge.Key] that is the same for every request: a limit on what
// the server does for all.
func Global(*http.Request) string { return "everybody" }
