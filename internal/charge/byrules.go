package charge

import (
	"context"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
)

// Rules are in place of charges: they choose the limits of a request of type R by its descriptors.
type Rules[R any] struct {
	Limiter     penstock.RuleLimiter
	Domain      string
	Descriptors [][]Entry[R]
	Cost        func(R) int64 // nil for one unit
	Settles     bool          // whether the cost is settled after the request
}

// An Entry is a key of a descriptor, and what its value is: nil for the client's address.
type Entry[R any] struct {
	Key   string
	Value func(R) string
}

// ruled is what rules decided about a request.
type ruled struct {
	penstock.RuleRequest
	answers []penstock.RuleAnswer
}

// enterByRules is Enter with rules.
func (g *Guard[R, E]) enterByRules(r R, p *Passage[R, E]) (err error) {
	ctx, q, cost := p.Context, &ruled{RuleRequest: penstock.RuleRequest{Domain: g.Rules.Domain}}, int64(1)
	if g.Rules.Cost != nil {
		cost = g.Rules.Cost(r)
	}
	p.List, p.ruled, p.Since = g.fixed, q, g.fixed.now()
	if q.Descriptors, err = g.describe(r, cost); err != nil {
		return g.fail(r, p, err)
	}
	if len(q.Descriptors) == 0 {
		return nil
	}
	answers := make([]penstock.RuleAnswer, len(q.Descriptors))
	allowed, err := g.Rules.Limiter.TakeByRules(ctx, q.RuleRequest, answers)
	if err != nil {
		return g.fail(r, p, err)
	}
	q.answers = answers
	if allowed && slices.ContainsFunc(answers, holdsPermit) {
		p.Release = func() { g.releaseByRules(ctx, r, q) }
	}
	if p.Release != nil && g.NoPermits {
		p.Release()
		g.Report(ctx, r, g.PermitsAlone)
		return g.PermitsAlone
	}
	return g.conclude(r, p, allowed)
}

// describe returns the descriptors of a request, without those that lack a value, as Envoy does. Only the
// client's address must be known: otherwise nothing might limit such requests.
func (g *Guard[R, E]) describe(r R, cost int64) (all []penstock.Descriptor, err error) {
	if cost < 0 {
		return nil, errNegative
	}
	for _, given := range g.Rules.Descriptors {
		d := penstock.Descriptor{Cost: cost}
		for _, e := range given {
			of := e.Value
			if of == nil {
				of = g.Address
			}
			if value := of(r); value != "" {
				d.Entries = append(d.Entries, penstock.Entry{Key: e.Key, Value: value})
			} else if e.Value == nil && err == nil {
				err = g.unknownClient
			}
		}
		if err != nil || len(d.Entries) == len(given) {
			all = append(all, d)
		}
	}
	return all, err
}

func holdsPermit(a penstock.RuleAnswer) bool {
	return a.Limited && a.Limit.HasPermits() && a.Decision.Granted > 0
}

// awaitByRules is await with rules.
func (g *Guard[R, E]) awaitByRules(r R, p *Passage[R, E]) error {
	if len(p.ruled.answers) == 0 {
		return nil
	}
	began := time.Now()
	if wait(p.Context, penstock.TightestAnswer(true, p.ruled.answers).Decision.Delay) {
		return nil
	}
	g.refundByRules(p.Context, r, p.ruled, time.Since(began))
	return p.Context.Err()
}

// refundByRules refunds what a request was charged, as far as it has not refilled since, and releases its permits.
func (g *Guard[R, E]) refundByRules(ctx context.Context, r R, q *ruled, age time.Duration) {
	g.returnByRules(ctx, r, q.RuleRequest, func(i int) int64 {
		return StillCharged(q.answers[i].Limit, &q.answers[i].Decision, age)
	})
}

// releaseByRules releases the permits of a request.
func (g *Guard[R, E]) releaseByRules(ctx context.Context, r R, q *ruled) {
	request := q.RuleRequest
	request.Release = true
	g.returnByRules(ctx, r, request, func(i int) int64 { return request.Descriptors[i].Cost })
}

// Taken returns what rules charged a request under each limit.
func (p *Passage[R, E]) Taken() (n int64) {
	for i := range p.ruled.answers {
		n = max(n, p.ruled.answers[i].Decision.Granted)
	}
	return n
}

// SettleByRules corrects what rules charged a request to cost, under each limit by itself, as [Settle] does.
// More is charged as far as units are left.
func (g *Guard[R, E]) SettleByRules(r R, p *Passage[R, E], cost int64) {
	ctx, age := context.WithoutCancel(p.Context), time.Since(p.Since)
	for i := range p.ruled.answers {
		a, d := &p.ruled.answers[i], p.ruled.Descriptors[i]
		if d.Cost = cost; cost != penstock.Reset {
			d.Cost = max(cost, 0) - a.Decision.Granted
			d.Cost = max(d.Cost, -StillCharged(a.Limit, &a.Decision, age))
		}
		if !a.Limited || a.Limit.HasPermits() || d.Cost == 0 {
			continue
		}
		request := penstock.RuleRequest{Domain: g.Rules.Domain, Descriptors: []penstock.Descriptor{d}, AtMost: d.Cost > 0}
		_, err := g.Rules.Limiter.TakeByRules(ctx, request, make([]penstock.RuleAnswer, 1))
		g.Report(ctx, r, err)
	}
}

// returnByRules returns units of each descriptor of a request.
func (g *Guard[R, E]) returnByRules(ctx context.Context, r R, request penstock.RuleRequest, units func(i int) int64) {
	returned := slices.Clone(request.Descriptors)
	for i := range returned {
		returned[i].Cost = -units(i)
	}
	request.Descriptors = returned
	_, err := g.Rules.Limiter.TakeByRules(context.WithoutCancel(ctx), request, make([]penstock.RuleAnswer, len(returned)))
	g.Report(ctx, r, err)
}

// costs reports whether a request by rules costs something.
func (q *ruled) costs() bool {
	return slices.ContainsFunc(q.Descriptors, func(d penstock.Descriptor) bool { return d.Cost != 0 })
}

// shown returns the answers of limits that a client is told of.
func (q *ruled) shown(denied bool) []penstock.RuleAnswer {
	return slices.DeleteFunc(slices.Clone(q.answers), func(a penstock.RuleAnswer) bool { return !a.IsShown(!denied) })
}
