package grpclimit

import (
	"context"
	"crypto/rand"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// Rules choose the limits of a call by its descriptors:
//
//	grpclimit.UnaryServer(nil, &grpclimit.Options{Rules: &grpclimit.Rules{
//		Limiter: rules, // of rulelimit.Open
//		Domain:  "shop",
//		Descriptors: [][]grpclimit.Entry{
//			{{Key: "user", Value: grpclimit.Metadata("x-user")}},
//			{{Key: "address"}},
//			{{Key: "method", Value: grpclimit.Method}},
//		},
//	}})
//
// A call holds the permit of a rule with a concurrent limit until its handler has returned, or the
// limit's period has passed.
type Rules struct {
	// Limiter decides by rules: package rulelimit has one. Required.
	Limiter penstock.RuleLimiter

	// Domain is the domain of the rules. Required.
	Domain string

	// Descriptors say how a call becomes descriptors. One that lacks a value is
	// left out, and a call without any is not limited: describe the client's
	// address too. At least one is required.
	Descriptors [][]Entry
}

// An Entry is one key of a descriptor.
type Entry struct {
	// Key is the key in the rules. Required.
	Key string

	// Value returns the value: [Method], [Metadata], or what a program has put into the
	// call's context. Default: the client's address.
	Value func(context.Context, Call) string
}

func (q *Rules) compile(o *Options) *charge.Rules[arrival] {
	if q == nil {
		return nil
	}
	compiled := &charge.Rules[arrival]{Limiter: q.Limiter, Domain: q.Domain, Cost: ofArrival(o.Cost)}
	for _, given := range q.Descriptors {
		var d []charge.Entry[arrival]
		for _, e := range given {
			d = append(d, charge.Entry[arrival]{Key: e.Key, Value: ofArrival(e.Value)})
		}
		compiled.Descriptors = append(compiled.Descriptors, d)
	}
	return compiled
}

// Method is an [Entry.Value]: the method's full name.
func Method(_ context.Context, call Call) string { return call.Method }

// PermitID is an [Entry.Value] for the entry that names the permit of a call, under a rule with id.
func PermitID(context.Context, Call) string { return rand.Text() }
