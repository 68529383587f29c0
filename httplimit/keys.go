package httplimit

import (
	"cmp"
	"net/http"
	"net/netip"

	"github.com/penstock-io/penstock/internal/address"
)

// ClientIP returns a [Charge.Key] that is the client's address, found by the
// options' Proxies, AddressHeader and IPv6Prefix. It is the default key, and
// useful as a part of others. It returns "" if the client cannot be identified.
func ClientIP(o *Options) func(*http.Request) string {
	o = cmp.Or(o, &Options{})
	resolver, header := address.NewResolver(o.Proxies, o.IPv6Prefix), "X-Forwarded-For"
	if o.AddressHeader != "" {
		header = http.CanonicalHeaderKey(o.AddressHeader)
	}
	return func(r *http.Request) string { return resolver.Key(r.RemoteAddr, r.Header[header]) }
}

// PrivateNetworks returns the private networks, such as 10.0.0.0/8, for
// [Options.Proxies]: trust them if your own load balancer or ingress is in front
// and hosts inside are trusted.
func PrivateNetworks() []netip.Prefix { return address.Private() }

// Header returns a [Charge.Key] that is the value of a header field, such as
// X-API-Key. A client that can choose it freely has any number of keys: verify it
// first, or limit addresses too.
func Header(name string) func(*http.Request) string {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		if values := r.Header[name]; len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// Cookie returns a [Charge.Key] that is the value of a cookie. The warning of
// [Header] applies.
func Cookie(name string) func(*http.Request) string {
	return func(r *http.Request) string {
		c, err := r.Cookie(name)
		if err != nil {
			return ""
		}
		return c.Value
	}
}

// PathValue returns a [Charge.Key] that is the value of a path wildcard, such as
// {id} in a pattern of [http.ServeMux]. The middleware must be around the handler
// of that pattern, where the path has been matched.
func PathValue(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.PathValue(name) }
}

// Global is a [Charge.Key] that is the same for every request: a limit on the
// whole service.
func Global(*http.Request) string { return "global" }
