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

// query returns the value of a parameter of the client's URL, which must not be repeated, and which applications
// that separate parameters by semicolons too must not read differently.
func (v *requestValues) query(name, missing string) (string, error) {
	u, err := v.uri()
	if err != nil {
		return "", err
	}
	got, err := v.readQuery(u.RawQuery, name)
	if err != nil {
		return "", err
	}
	other, err := v.readQuery(strings.ReplaceAll(u.RawQuery, ";", "&"), name)
	switch {
	case err != nil:
		return "", err
	case got != other:
		return "", v.bad("parameter %.80q: some applications separate parameters by semicolons", name)
	}
	return cmp.Or(got.value, missing), v.unique("parameter", name, got.found, got.similar)
}

// maxQuery bounds the parameters of the client's URL.
const maxQuery = 1000

// A queryReading is what an application finds under the name of a parameter.
type queryReading struct {
	value          string
	found, similar int // parameters of that name, and of all names that some applications take for it
}

func (v *requestValues) readQuery(raw, name string) (got queryReading, err error) {
	all, err := httpserver.ParseQuery(raw, maxQuery)
	if err != nil {
		return got, v.bad("query of %s: %.80s", forwardedURI, err)
	}
	for _, p := range all {
		if p.Name == name {
			got.value = cmp.Or(p.Value, got.value)
			got.found++
		}
		if isSimilar(p.Name, name) {
			got.similar++
		}
	}
	return got, nil
}

// unique returns an error unless a value was found at most once, and under no similar name beside.
func (v *requestValues) unique(what, name string, found, similar int) error {
	switch {
	case found > 1:
		return v.bad("%s %.80q: %d of them, want one", what, name, found)
	case similar != found:
		return v.bad("%s %.80q: some applications take another one for it", what, name)
	}
	return nil
}

// forwardedURI is the header in which proxies pass the client's URL on.
const forwardedURI = "X-Forwarded-Uri"

// uri returns the client's URL. A fragment, which no client sends, is cut by some servers and belongs to the path for
// others; a backslash in the path is a slash to some. Whichever was counted here, a client could vary it.
func (v *requestValues) uri() (*url.URL, error) {
	line, err := v.line(forwardedURI, "")
	if err != nil {
		return &url.URL{}, err
	}
	before, _, _ := strings.Cut(line, "?")
	u, err := url.ParseRequestURI(line)
	if err != nil || strings.Contains(line, "#") || strings.Contains(before, `\`) {
		return &url.URL{}, v.bad("header %q: want the client's URL", forwardedURI)
	}
	return u, nil
}

// cleanPath returns a path without dots and repeated slashes, so that a client gets no counter of its own
// for another spelling of a path.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	last := p[strings.LastIndexByte(p, '/')+1:]
	if clean != "/" && (last == "" || last == "." || last == "..") {
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
