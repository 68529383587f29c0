package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// An authRequest is the request of /v1/auth. It is decoded from the URL, which the
// proxy's configuration fixes; clients contribute only the values of headers that
// the URL names.
type authRequest struct {
	takeRequest
	denyStatus int
}

// maxParameters leaves room for the entries of a descriptor and four others.
const maxParameters = maxEntries + 4

// decodeAuthRequest reads a request from the URL. Mistakes in the URL are the operator's
// and come first. A header without a usable value may be the client's doing: that error
// has the status of a denial, because a proxy may let requests pass on which /v1/auth
// fails.
func decodeAuthRequest(r *http.Request, addresses *address.Resolver) (*authRequest, error) {
	all, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, &fieldError{problem: err.Error()}
	}
	a := &authRequest{takeRequest: newTakeRequest(1), denyStatus: http.StatusTooManyRequests}
	values := headerValues{r.Header, addresses}
	var entries []rules.Entry
	var badHeader *fieldError
	seen := map[string]bool{}
	for _, p := range all {
		decode, ok := parameters[p.Name]
		if ok && seen[p.Name] {
			return nil, in(p.Name, &fieldError{problem: "duplicate parameter"})
		}
		seen[p.Name] = true
		var err error
		if ok {
			err = decode(a, p.Value, values)
		} else {
			e := rules.Entry{Key: p.Name}
			e.Value, err = values.resolve(p.Value, "")
			entries = append(entries, e)
		}
		if err = in(p.Name, err); err != nil && !isBadHeader(err, &badHeader) {
			return nil, err
		}
	}
	if err := a.addEntries(entries); err != nil {
		return nil, err
	}
	if badHeader != nil {
		badHeader.status = a.denyStatus
		return nil, badHeader
	}
	if err := a.checkParameters(); err != nil {
		return nil, err
	}
	return a, a.check()
}

// checkParameters returns an error if parameters are missing, in the words of a URL.
func (a *authRequest) checkParameters() error {
	switch {
	case !a.fields.has(ruleFields | keyFields):
		return in("key", &fieldError{problem: "want key and limit, or domain and entries such as user=42"})
	case a.fields.has(fieldDomain) && !a.fields.has(fieldDescriptors|limitFields):
		return in("domain", &fieldError{problem: "want an entry beside the domain, such as user=42"})
	}
	return nil
}

// isBadHeader reports whether an error is about a header, and keeps the first one.
func isBadHeader(err error, first **fieldError) bool {
	var field *fieldError
	if !errors.As(err, &field) || !field.badHeader {
		return false
	}
	if *first == nil {
		*first = field
	}
	return true
}

// parameters are the parameters with a fixed meaning. All others are entries of a
// descriptor.
var parameters = map[string]func(a *authRequest, value string, v headerValues) error{
	"key":       (*authRequest).decodeKey,
	"limit":     (*authRequest).decodeLimit,
	"domain":    (*authRequest).decodeDomain,
	"cost":      (*authRequest).decodeCost,
	"deny":      (*authRequest).decodeDeny,
	"max_delay": (*authRequest).decodeMaxDelay,
}

func (a *authRequest) decodeKey(value string, v headerValues) error {
	a.fields |= fieldKey
	key, err := v.resolve(value, value)
	if err != nil {
		return err
	}
	if a.Request.Key = shorten(key); a.Request.Key == "" {
		return errEmptyKey()
	}
	return nil
}

func (a *authRequest) decodeLimit(value string, _ headerValues) error {
	a.fields |= fieldLimit
	a.Limit = value
	return nil
}

func (a *authRequest) decodeDomain(value string, _ headerValues) error {
	a.fields |= fieldDomain
	a.Domain = value
	return nil
}

func (a *authRequest) decodeCost(value string, _ headerValues) (err error) {
	if a.Request.Cost, err = strconv.ParseInt(value, 10, 64); err != nil || a.Request.Cost < 0 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want a whole number, 0 or more", value), kind: ProblemBadCost}
	}
	return nil
}

func (a *authRequest) decodeDeny(value string, _ headerValues) (err error) {
	if a.denyStatus, err = strconv.Atoi(value); err != nil || a.denyStatus < 400 || a.denyStatus > 599 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want a status from 400 to 599", value)}
	}
	return nil
}

func (a *authRequest) decodeMaxDelay(value string, _ headerValues) (err error) {
	a.fields |= fieldMaxDelay
	r := &jsonReader{text: value}
	if a.Request.MaxDelay, err = r.seconds(); err != nil {
		return err
	}
	return r.end()
}

// addEntries adds a descriptor with the entries, if there are any.
func (a *authRequest) addEntries(entries []rules.Entry) error {
	switch {
	case len(entries) == 0:
		return nil
	case !a.fields.has(fieldDomain):
		name := entries[0].Key
		return in(name, &fieldError{problem: fmt.Sprintf("unknown parameter %.80q; entries of a descriptor need a domain", name)})
	case slices.ContainsFunc(entries, func(e rules.Entry) bool { return e.Key == "" }):
		return &fieldError{problem: "a parameter has no name"}
	case len(entries) > maxEntries:
		return &fieldError{problem: fmt.Sprintf("%d entries, want at most %d", len(entries), maxEntries)}
	}
	a.fields |= fieldDescriptors
	a.Descriptors = []engine.Descriptor{{Entries: entries, Cost: a.Request.Cost, Permits: engine.NoPermits}}
	a.hasCost = []bool{true}
	return nil
}

// headerValues are the values that parameters take from headers.
type headerValues struct {
	header    http.Header
	addresses *address.Resolver
}

// resolve returns the value of a parameter: "header:Name" stands for that header,
// "address:Name" for the client's address in that header, and "address:203.0.113.9" for
// that address. Missing is the value of a header that the request does not have.
//
// The client can forge all of X-Forwarded-For but its end, so as a plain header it would
// be as many keys as the client likes.
func (v headerValues) resolve(value, missing string) (string, error) {
	if name, ok := strings.CutPrefix(value, "address:"); ok {
		return v.address(name)
	}
	name, ok := strings.CutPrefix(value, "header:")
	switch {
	case !ok:
		return value, nil
	case http.CanonicalHeaderKey(name) == "X-Forwarded-For":
		return v.address(name)
	}
	return v.line(name, missing)
}

// line returns the value of a header, which must not be repeated: some applications use
// the first line, others the last or all of them. Whichever was counted here, a client
// could vary it and let the application see another.
func (v headerValues) line(name, missing string) (string, error) {
	lines, variant := v.header.Values(name), v.variant(name)
	switch {
	case len(lines) > 1:
		return "", &fieldError{problem: fmt.Sprintf("header %.80q: %d lines, want one", name, len(lines)), kind: ProblemBadKey, badHeader: true}
	case variant != "":
		return "", &fieldError{problem: fmt.Sprintf("header %.80q: some applications take %.80q for it", name, variant), kind: ProblemBadKey, badHeader: true}
	case len(lines) == 0 || lines[0] == "":
		return missing, nil
	}
	return lines[0], nil
}

// variant returns a header whose name differs only in hyphens and underscores, or "". To
// applications behind CGI or WSGI it is the same header, so it counts as a repeated line.
func (v headerValues) variant(name string) string {
	name = http.CanonicalHeaderKey(name)
	for other := range v.header {
		if len(other) == len(name) && other != name && strings.EqualFold(withHyphens(other), withHyphens(name)) {
			return other
		}
	}
	return ""
}

func withHyphens(name string) string { return strings.ReplaceAll(name, "_", "-") }

// address returns the identity of the client in a header, or of an address. Without one
// there is no fallback: the address of the proxy would be one key for all its clients.
func (v headerValues) address(name string) (string, error) {
	if key := v.addresses.Key(name, nil); key != "" {
		return key, nil
	}
	lines := v.header.Values(name)
	if key := v.addresses.ForwardedKey(lines); key != "" {
		return key, nil
	}
	problem := fmt.Sprintf("header %.80q: missing, want the client's address", name)
	if len(lines) > 0 {
		problem = fmt.Sprintf("header %.80q: %.80q: want the client's address at the end", name, lines[len(lines)-1])
	}
	return "", &fieldError{problem: problem, kind: ProblemBadKey, badHeader: true}
}

// shorten returns a key, or its hash if it is too long. The client chooses the
// length of its headers, and a proxy may pass a request on which /v1/auth fails,
// so a long key must not be an error.
func shorten(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return string(engine.ShortenKey([]byte(key), 0))
}
