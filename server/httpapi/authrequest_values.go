package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// requestValues are the values that parameters take from the client's request.
type requestValues struct {
	*http.Request
	addresses *address.Resolver
	status    int // of a value that cannot be used
}

// bad returns the error of a value of the client.
func (v *requestValues) bad(format string, args ...any) error {
	return &fieldError{problem: fmt.Sprintf(format, args...), kind: ProblemBadKey, status: v.status}
}

// resolve returns the value of a parameter: "header:Name" stands for that header, "cookie:Name" and
// "query:Name" for that cookie and that parameter of the client's URL, "path" for the path of that URL,
// "address:Name" for the client's address in that header, "address" for that in X-Forwarded-For, and
// "address:203.0.113.9" for that address. Missing is the value of what the request does not have.
//
// The client can forge all of X-Forwarded-For but its end, so as a plain header it would
// be as many keys as the client likes.
func (v *requestValues) resolve(value, missing string) (string, error) {
	source, name, ok := strings.Cut(value, ":")
	switch {
	case value == "path":
		u, err := v.uri()
		return cleanPath(u.Path), err
	case value == "address":
		return v.address(forwardedFor)
	case !ok:
		return value, nil
	case source == "address", source == "header" && http.CanonicalHeaderKey(name) == forwardedFor:
		return v.address(name)
	case source == "header":
		return v.line(name, missing)
	case source == "cookie":
		return v.cookie(name, missing)
	case source == "query":
		return v.query(name, missing)
	}
	return value, nil
}

const forwardedFor = "X-Forwarded-For"

// cookie returns the value of a cookie, which must not be repeated, as a header must not.
func (v *requestValues) cookie(name, missing string) (string, error) {
	found := v.CookiesNamed(name)
	switch {
	case len(found) > 1:
		return "", v.bad("cookie %.80q: %d of them, want one", name, len(found))
	case len(found) == 0 || found[0].Value == "":
		return missing, nil
	}
	return found[0].Value, nil
}

// maxQuery bounds the parameters of the client's URL.
const maxQuery = 1000

// query returns the value of a parameter of the client's URL, which must not be repeated.
func (v *requestValues) query(name, missing string) (string, error) {
	u, err := v.uri()
	if err != nil {
		return "", err
	}
	all, err := httpserver.ParseQuery(u.RawQuery, maxQuery)
	if err != nil {
		return "", v.bad("query of %s: %.80s", forwardedURI, err)
	}
	found := 0
	for _, p := range all {
		if p.Name == name {
			missing = cmp.Or(p.Value, missing)
			found++
		}
	}
	if found > 1 {
		return "", v.bad("parameter %.80q: %d of them, want one", name, found)
	}
	return missing, nil
}

// forwardedURI is the header in which proxies pass the client's URL on.
const forwardedURI = "X-Forwarded-Uri"

// uri returns the client's URL.
func (v *requestValues) uri() (*url.URL, error) {
	line, err := v.line(forwardedURI, "")
	if err != nil {
		return &url.URL{}, err
	}
	u, err := url.ParseRequestURI(line)
	if err != nil {
		return &url.URL{}, v.bad("header %q: want the client's URL", forwardedURI)
	}
	return u, nil
}

// cleanPath returns a path without dots and repeated slashes, so that a client gets no counter of its own
// for another spelling of a path.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// line returns the value of a header, which must not be repeated: some applications use
// the first line, others the last or all of them. Whichever was counted here, a client
// could vary it and let the application see another.
func (v *requestValues) line(name, missing string) (string, error) {
	lines, variant := v.Header.Values(name), v.variant(name)
	switch {
	case len(lines) > 1:
		return "", v.bad("header %.80q: %d lines, want one", name, len(lines))
	case variant != "":
		return "", v.bad("header %.80q: some applications take %.80q for it", name, variant)
	case len(lines) == 0 || lines[0] == "":
		return missing, nil
	}
	return lines[0], nil
}

// variant returns a header whose name differs only in hyphens and underscores, or "". To
// applications behind CGI or WSGI it is the same header, so it counts as a repeated line.
func (v *requestValues) variant(name string) string {
	name = http.CanonicalHeaderKey(name)
	for other := range v.Header {
		if len(other) == len(name) && other != name && strings.EqualFold(withHyphens(other), withHyphens(name)) {
			return other
		}
	}
	return ""
}

func withHyphens(name string) string { return strings.ReplaceAll(name, "_", "-") }

// address returns the identity of the client in a header, or of an address. Without one
// there is no fallback: the address of the proxy would be one key for all its clients.
func (v *requestValues) address(name string) (string, error) {
	if key := v.addresses.Key(name, nil); key != "" {
		return key, nil
	}
	lines := v.Header.Values(name)
	if key := v.addresses.ForwardedKey(lines); key != "" {
		return key, nil
	}
	if len(lines) == 0 {
		return "", v.bad("header %.80q: missing, want the client's address", name)
	}
	return "", v.bad("header %.80q: %.80q: want the client's address at the end", name, lines[len(lines)-1])
}
