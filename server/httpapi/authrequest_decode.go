package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// An authRequest is the request of /v1/auth. It is decoded from the URL, which the
// proxy's configuration fixes; clients contribute only the values of headers that
// the URL names, or a list of the rule file.
type authRequest struct {
	takeRequest
	denyStatus int
	list       string          // the name of a list of descriptors
	groups     [][]rules.Entry // the entries of each descriptor
}

// maxParameters leaves room for a few descriptors, and the parameters with a fixed meaning.
const maxParameters = 64

// lists returns the list of descriptors of a name in a domain, or nil.
type lists func(domain, name string) [][]rules.Entry

// listOf returns a list of the rules.
func (s *Server) listOf(domain, name string) [][]rules.Entry {
	if set := s.engine.Rules(); set != nil {
		return set.Domain(domain).List(name)
	}
	return nil
}

// decodeAuthRequest reads a request from the URL. Mistakes in the URL are the operator's
// and come first. A header without a usable value may be the client's doing: that error
// has the status of a denial, because a proxy may let requests pass on which /v1/auth
// fails.
func decodeAuthRequest(r *http.Request, addresses *address.Resolver, lists lists) (*authRequest, error) {
	all, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, &fieldError{problem: err.Error()}
	}
	a := &authRequest{takeRequest: newTakeRequest(rules.MaxListed), denyStatus: http.StatusTooManyRequests}
	if err := a.decodeParameters(all); err != nil {
		return nil, err
	}
	if err := a.addDescriptors(lists); err != nil {
		return nil, err
	}
	if err := a.checkParameters(); err != nil {
		return nil, err
	}
	return a, a.resolve(&requestValues{Request: r, addresses: addresses, status: a.denyStatus})
}

// decodeParameters reads the parameters with a fixed meaning, and collects the others, which are the
// entries of descriptors.
func (a *authRequest) decodeParameters(all []httpserver.Parameter) error {
	a.groups = make([][]rules.Entry, 1)
	for _, p := range all {
		last := len(a.groups) - 1
		switch field := fieldOf(p.Name) & parameterFields; {
		case p.Name == "and" && p.Value == "":
			a.groups = append(a.groups, nil)
		case field == 0:
			a.groups[last] = append(a.groups[last], rules.Entry{Key: p.Name, Value: p.Value})
		case a.fields.has(field):
			return in(p.Name, &fieldError{problem: "duplicate parameter"})
		default:
			a.fields |= field
			if err := a.decodeParameter(field, p.Value); err != nil {
				return in(p.Name, err)
			}
		}
	}
	return nil
}

// checkParameters returns an error if parameters are missing, in the words of a URL, or contradict
// each other.
func (a *authRequest) checkParameters() error {
	switch {
	case !a.fields.has(ruleFields | keyFields):
		return in("key", &fieldError{problem: "want key and limit, or domain and entries such as user=42"})
	case a.fields.has(fieldDomain) && !a.fields.has(fieldDescriptors|ownFields):
		return in("domain", &fieldError{problem: "want an entry beside the domain, such as user=42, or a list"})
	}
	return a.check()
}

// decodeParameter reads a parameter with a fixed meaning. All others are entries of descriptors, which
// "and" separates.
func (a *authRequest) decodeParameter(field fieldSet, value string) (err error) {
	switch field {
	case fieldKey:
		if a.Request.Key = value; value == "" {
			return errEmptyKey()
		}
	case fieldLimit:
		a.Limit = value
	case fieldDomain:
		a.Domain = value
	case fieldList:
		a.list = value
	case fieldMaxDelay:
		return a.decodeMaxDelay(value)
	case fieldCost:
		if a.Request.Cost, err = strconv.ParseInt(value, 10, 64); err != nil || a.Request.Cost < 0 {
			return &fieldError{problem: fmt.Sprintf("%.40q: want a whole number, 0 or more", value), kind: ProblemBadCost}
		}
	case fieldDeny:
		if a.denyStatus, err = strconv.Atoi(value); err != nil || a.denyStatus < 400 || a.denyStatus > 599 {
			return &fieldError{problem: fmt.Sprintf("%.40q: want a status from 400 to 599", value)}
		}
	}
	return nil
}

func (a *authRequest) decodeMaxDelay(value string) (err error) {
	r := &jsonReader{text: value}
	if a.Request.MaxDelay, err = r.seconds(); err != nil {
		return err
	}
	return r.end()
}

// addDescriptors adds the descriptors of the URL, or of the list that it names.
func (a *authRequest) addDescriptors(lists lists) error {
	groups := a.groups
	switch first := firstKey(groups); {
	case a.list != "" && first != nil:
		return in("list", &fieldError{problem: "a list cannot be combined with entries"})
	case a.list != "":
		if groups = lists(a.Domain, a.list); groups == nil {
			return in("list", &fieldError{problem: fmt.Sprintf("the rules of domain %.80q have no list %.80q", a.Domain, a.list)})
		}
	case first == nil && len(groups) == 1:
		return nil
	case first != nil && !a.fields.has(fieldDomain):
		return in(*first, &fieldError{problem: fmt.Sprintf("unknown parameter %.80q; entries of a descriptor need a domain", *first)})
	case len(groups) > rules.MaxListed:
		return in("and", &fieldError{problem: fmt.Sprintf("%d descriptors, want at most %d", len(groups), rules.MaxListed)})
	}
	a.fields |= fieldDescriptors
	for _, group := range groups {
		if err := a.addDescriptor(group); err != nil {
			return err
		}
	}
	return nil
}

// firstKey returns the key of the first entry, or nil if there is none.
func firstKey(groups [][]rules.Entry) *string {
	for _, group := range groups {
		if len(group) > 0 {
			return &group[0].Key
		}
	}
	return nil
}

// addDescriptor adds a descriptor of entries.
func (a *authRequest) addDescriptor(group []rules.Entry) error {
	switch {
	case len(group) == 0:
		return in("and", &fieldError{problem: "want entries before and after it"})
	case slices.ContainsFunc(group, func(e rules.Entry) bool { return e.Key == "" }):
		return &fieldError{problem: "a parameter has no name"}
	case len(group) > maxEntries:
		return &fieldError{problem: fmt.Sprintf("%d entries, want at most %d", len(group), maxEntries)}
	}
	d := engine.Descriptor{Entries: slices.Clone(group), Cost: a.Request.Cost, Permits: engine.NoPermits}
	a.Descriptors = append(a.Descriptors, d)
	a.hasCost = append(a.hasCost, true)
	return nil
}

// resolve replaces the values of the URL by those of the client's request that they stand for.
func (a *authRequest) resolve(values *requestValues) error {
	key, err := values.resolve(a.Request.Key, a.Request.Key)
	if err != nil {
		return in("key", err)
	}
	a.Request.Key = shorten(key)
	for _, d := range a.Descriptors {
		for i := range d.Entries {
			e := &d.Entries[i]
			if e.Value, err = values.resolve(e.Value, ""); err != nil {
				return in(e.Key, err)
			}
		}
	}
	return nil
}

// shorten returns a key, or its hash if it is too long. The client chooses the
// length of its headers, and a proxy may pass a request on which /v1/auth fails,
// so a long key must not be an error.
func shorten(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return string(rules.ShortenKey([]byte(key), 0))
}
