package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/rules"
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

// decodeAuthRequest reads a request from the URL.
func decodeAuthRequest(r *http.Request) (*authRequest, error) {
	all, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, &fieldError{problem: err.Error()}
	}
	a := &authRequest{takeRequest: takeRequest{cost: 1}, denyStatus: http.StatusTooManyRequests}
	var entries []rules.Entry
	seen := map[string]bool{}
	for _, p := range all {
		decode, ok := parameters[p.Name]
		if !ok {
			entries = append(entries, rules.Entry{Key: p.Name, Value: resolve(p.Value, "", r.Header)})
			continue
		}
		if seen[p.Name] {
			return nil, in(p.Name, &fieldError{problem: "duplicate parameter"})
		}
		seen[p.Name] = true
		if err := decode(a, p.Value, r.Header); err != nil {
			return nil, in(p.Name, err)
		}
	}
	if err := a.addEntries(entries); err != nil {
		return nil, err
	}
	return a, a.check()
}

// parameters are the parameters with a fixed meaning. All others are entries of a
// descriptor.
var parameters = map[string]func(a *authRequest, value string, h http.Header) error{
	"key":       (*authRequest).decodeKey,
	"limit":     (*authRequest).decodeLimit,
	"domain":    (*authRequest).decodeDomain,
	"cost":      (*authRequest).decodeCost,
	"deny":      (*authRequest).decodeDeny,
	"max_delay": (*authRequest).decodeMaxDelay,
}

func (a *authRequest) decodeKey(value string, h http.Header) error {
	a.fields |= fieldKey
	a.key = shorten(resolve(value, value, h))
	if a.key == "" {
		return errEmptyKey()
	}
	return nil
}

func (a *authRequest) decodeLimit(value string, _ http.Header) error {
	a.fields |= fieldLimit
	a.limit = value
	return nil
}

func (a *authRequest) decodeDomain(value string, _ http.Header) error {
	a.fields |= fieldDomain
	a.domain = value
	return nil
}

func (a *authRequest) decodeCost(value string, _ http.Header) (err error) {
	if a.cost, err = strconv.ParseInt(value, 10, 64); err != nil || a.cost < 0 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want a whole number, 0 or more", value), kind: ProblemBadCost}
	}
	return nil
}

func (a *authRequest) decodeDeny(value string, _ http.Header) (err error) {
	if a.denyStatus, err = strconv.Atoi(value); err != nil || a.denyStatus < 400 || a.denyStatus > 599 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want a status from 400 to 599", value)}
	}
	return nil
}

func (a *authRequest) decodeMaxDelay(value string, _ http.Header) (err error) {
	a.fields |= fieldMaxDelay
	r := &jsonReader{text: value}
	if a.maxDelay, err = r.seconds(); err != nil {
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
	a.descriptors = []engine.Descriptor{{Entries: entries, Cost: a.cost}}
	a.hasCost = []bool{true}
	return nil
}

// resolve returns the value of a parameter. "header:Name" stands for the value of
// that header, or for missing if the request has no such header.
func resolve(value, missing string, h http.Header) string {
	name, ok := strings.CutPrefix(value, "header:")
	if !ok {
		return value
	}
	values := strings.Join(h.Values(name), ",")
	if http.CanonicalHeaderKey(name) == "X-Forwarded-For" {
		values = lastAddress(values)
	}
	if values == "" {
		return missing
	}
	return values
}

// lastAddress returns the last address of X-Forwarded-For, which the nearest proxy
// added. The client can forge all addresses before it.
func lastAddress(forwardedFor string) string {
	return strings.TrimSpace(forwardedFor[strings.LastIndexByte(forwardedFor, ',')+1:])
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
