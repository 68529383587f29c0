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

// A visit is a request that a proxy asks about before it lets it pass. What is
// asked is in the URL, which the proxy's configuration says and its clients have
// no part in, unless it names one of their headers.
type visit struct {
	question
	deny int // the status of a denial
}

// maxParameters is as many as a descriptor's entries and what else there is.
const maxParameters = maxEntries + 4

// readVisit reads what is asked from the URL.
func readVisit(r *http.Request) (*visit, error) {
	all, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, &fieldError{problem: err.Error()}
	}
	v := &visit{question: question{cost: 1}, deny: http.StatusTooManyRequests}
	var entries []rules.Entry
	seen := map[string]bool{}
	for _, p := range all {
		read, own := parameters[p.Name]
		if !own {
			entries = append(entries, rules.Entry{Key: p.Name, Value: resolve(p.Value, "", r.Header)})
			continue
		}
		if seen[p.Name] {
			return nil, under(p.Name, &fieldError{problem: "is there twice"})
		}
		seen[p.Name] = true
		if err := read(v, p.Value, r.Header); err != nil {
			return nil, under(p.Name, err)
		}
	}
	if err := v.addEntries(entries); err != nil {
		return nil, err
	}
	return v, v.check()
}

// parameters have a meaning of their own. All others are entries of a descriptor.
var parameters = map[string]func(v *visit, value string, h http.Header) error{
	"key":       (*visit).readKey,
	"limit":     (*visit).readLimit,
	"domain":    (*visit).readDomain,
	"cost":      (*visit).readCost,
	"deny":      (*visit).readDeny,
	"max_delay": (*visit).readMaxDelay,
}

func (v *visit) readKey(value string, h http.Header) error {
	v.said |= saidKey
	v.key = shorten(resolve(value, value, h))
	if v.key == "" {
		return errNoKey()
	}
	return nil
}

func (v *visit) readLimit(value string, _ http.Header) error {
	v.said |= saidLimit
	v.limit = value
	return nil
}

func (v *visit) readDomain(value string, _ http.Header) error {
	v.said |= saidDomain
	v.domain = value
	return nil
}

func (v *visit) readCost(value string, _ http.Header) (err error) {
	if v.cost, err = strconv.ParseInt(value, 10, 64); err != nil || v.cost < 0 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want a whole number of 0 or more", value), kind: ProblemBadCost}
	}
	return nil
}

func (v *visit) readDeny(value string, _ http.Header) (err error) {
	if v.deny, err = strconv.Atoi(value); err != nil || v.deny < 400 || v.deny > 599 {
		return &fieldError{problem: fmt.Sprintf("%.40q: want the status of a denial, from 400 to 599", value)}
	}
	return nil
}

func (v *visit) readMaxDelay(value string, _ http.Header) (err error) {
	v.said |= saidMaxDelay
	r := &jsonReader{text: value}
	if v.maxDelay, err = r.seconds(); err != nil {
		return err
	}
	return r.end()
}

// addEntries makes a descriptor of the parameters that have no other meaning.
func (v *visit) addEntries(entries []rules.Entry) error {
	switch {
	case len(entries) == 0:
		return nil
	case !v.said.has(saidDomain):
		name := entries[0].Key
		return under(name, &fieldError{problem: fmt.Sprintf("%.80q is not known without a domain", name)})
	case slices.ContainsFunc(entries, func(e rules.Entry) bool { return e.Key == "" }):
		return &fieldError{problem: "a parameter has no name"}
	case len(entries) > maxEntries:
		return &fieldError{problem: fmt.Sprintf("%d entries: want at most %d", len(entries), maxEntries)}
	}
	v.said |= saidDescriptors
	v.descriptors = []engine.Descriptor{{Entries: entries, Cost: v.cost}}
	v.costed = []bool{true}
	return nil
}

// resolve returns what a parameter stands for: itself, or the value of the header
// that it names as "header:Name", or the other text if that is missing.
func resolve(value, missing string, h http.Header) string {
	name, ok := strings.CutPrefix(value, "header:")
	if !ok {
		return value
	}
	values := strings.Join(h.Values(name), ",")
	if http.CanonicalHeaderKey(name) == "X-Forwarded-For" {
		values = nearest(values)
	}
	if values == "" {
		return missing
	}
	return values
}

// nearest returns the last address of a list that every proxy adds one to: the
// one that the proxy before us saw. Whoever trusts the others trusts the client.
func nearest(forwarded string) string {
	return strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
}

// shorten returns a key, or its hash if it is too long. A proxy may let pass
// what it gets no answer about, and how long a header is is up to its client.
func shorten(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return string(engine.ShortenKey([]byte(key), 0))
}

// writeVisitProblem answers with what is wrong with the URL, or with the store.
func writeVisitProblem(w http.ResponseWriter, err error) {
	p := problemOf(err)
	p.Pointer, p.Parameter = "", strings.TrimPrefix(p.Pointer, "#/")
	httpserver.WriteProblem(w, p)
}
