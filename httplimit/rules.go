package httplimit

import (
	"crypto/rand"
	"net/http"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// Rules choose the limits of a request by its descriptors:
//
//	httplimit.Protect(nil, &httplimit.Options{Rules: &httplimit.Rules{
//		Limiter: rules, // of rulelimit.Open
//		Domain:  "shop",
//		Descriptors: [][]httplimit.Entry{
//			{{Key: "user", Value: httplimit.Header("X-User")}},
//			{{Key: "address"}},
//			{{Key: "path", Value: httplimit.Path}, {Key: "method", Value: httplimit.Method}},
//		},
//	}})
//
// A request holds the permit of a rule with a concurrent limit until its handler has returned, or the
// limit's period has passed.
type Rules struct {
	// Limiter decides by rules: package rulelimit has one. Required.
	Limiter penstock.RuleLimiter

	// Domain is the domain of the rules. Required.
	Domain string

	// Descriptors say how a request becomes descriptors. One that lacks a value
	// is left out, and a request without any is not limited: describe the client's
	// address too. At least one is required.
	Descriptors [][]Entry
}

// An Entry is one key of a descriptor.
type Entry struct {
	// Key is the key in the rules. Required.
	Key string

	// Value returns the value: [Path], [Method], [Header], [Cookie], [Query], [PathValue],
	// or what a program has put into the request's context. Default: the client's address.
	Value func(*http.Request) string
}

func (q *Rules) compile(o *Options) *charge.Rules[*http.Request] {
	if q == nil {
		return nil
	}
	compiled := &charge.Rules[*http.Request]{Limiter: q.Limiter, Domain: q.Domain, Cost: o.Cost, Settles: o.After != nil}
	for _, given := range q.Descriptors {
		var d []charge.Entry[*http.Request]
		for _, e := range given {
			d = append(d, charge.Entry[*http.Request](e))
		}
		compiled.Descriptors = append(compiled.Descriptors, d)
	}
	return compiled
}

// Path is an [Entry.Value]: the path of the URL.
func Path(r *http.Request) string { return r.URL.Path }

// Method is an [Entry.Value]: the method.
func Method(r *http.Request) string { return r.Method }

// Query returns an [Entry.Value] that is the first value of a URL parameter.
func Query(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.URL.Query().Get(name) }
}

// PermitID is an [Entry.Value] for the entry that names the permit of a request, under a rule with id.
func PermitID(*http.Request) string { return rand.Text() }
