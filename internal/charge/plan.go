package charge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A Charge says which limiter middleware charges a request of type R to, under which key, and
// how much. Without LimiterFor, or if that returns nil, it is Limiter; without Key it is the
// client's address, and without Cost one unit.
type Charge[R any] struct {
	Limiter    *penstock.Limiter
	LimiterFor func(R) *penstock.Limiter
	Key        func(R) string
	Cost       func(R) int64
	Settles    bool // whether the cost is settled after the request
}

// limiterOf returns the limiter that a request is charged to, or nil.
func (c *Charge[R]) limiterOf(r R) *penstock.Limiter {
	if c.LimiterFor != nil {
		if lim := c.LimiterFor(r); lim != nil {
			return lim
		}
	}
	return c.Limiter
}

// A Plan is the charges of middleware, which keeps an E beside each limiter that it charges.
type Plan[R, E any] struct {
	Package      string // of the middleware, for messages
	Charges      []Charge[R]
	Address      func(R) string // of the client, or ""
	Unnamed      string         // the name of an only limit that has none; by default its text
	PermitsAlone error          // means that a concurrent limit is among others, or is settled
	Extra        func(i int, name string) E

	unknownClient error
	fixed         *List[R, E] // nil if a limiter depends on the request

	mu     sync.RWMutex
	chosen map[combination]*List[R, E]
}

// A combination is the limiters that were chosen for a request, nil where there is none.
type combination [maxCombined]*penstock.Limiter

const (
	// maxCombined is the most limiters whose list is kept.
	maxCombined = 4

	// maxCombinations bounds the lists: a program may make a limiter for each
	// request.
	maxCombinations = 256
)

// Prepare makes the plan ready to use. It panics if the middleware would limit nothing.
func (p *Plan[R, E]) Prepare() *Plan[R, E] {
	p.unknownClient = fmt.Errorf("%s: %w: neither a key nor the client's address is known", p.Package, penstock.ErrBadKey)
	limiters, fixed := make([]*penstock.Limiter, len(p.Charges)), true
	for i, c := range p.Charges {
		switch {
		case c.Limiter == nil && c.LimiterFor == nil:
			panic(p.Package + ": no limiter: want one, or LimiterFor") //nolint:forbidigo // no error to return, and no limit would be worse
		case isConcurrent(c.Limiter) && (len(p.Charges) > 1 || c.Settles):
			panic(p.PermitsAlone.Error()) //nolint:forbidigo // likewise
		}
		limiters[i], fixed = c.Limiter, fixed && c.LimiterFor == nil
	}
	if fixed {
		p.fixed = p.listOf(limiters)
	}
	return p
}

// For returns the charges of a request. Requests under the same limiters share them.
func (p *Plan[R, E]) For(r R) *List[R, E] {
	if p.fixed != nil {
		return p.fixed
	}
	var key combination
	limiters := key[:0]
	for i := range p.Charges {
		limiters = append(limiters, p.Charges[i].limiterOf(r))
	}
	if len(limiters) > maxCombined {
		return p.listOf(limiters)
	}
	p.mu.RLock()
	list := p.chosen[key]
	p.mu.RUnlock()
	if list == nil {
		list = p.listOf(limiters)
		p.keep(key, list)
	}
	return list
}

// keep remembers a list. If there are too many, all others are dropped first, so that limiters
// that are no longer used can be freed.
func (p *Plan[R, E]) keep(key combination, list *List[R, E]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen == nil || len(p.chosen) >= maxCombinations {
		p.chosen = map[combination]*List[R, E]{}
	}
	p.chosen[key] = list
}

// A List is the charges of a request, in the order in which they are taken.
type List[R, E any] struct {
	*Set
	Items   []Item[E]
	Settles bool // one of them is settled after the request
	Permits bool // the request holds a permit

	plan    *Plan[R, E]
	charges []*Charge[R]
}

// An Item is what middleware knows of one charge.
type Item[E any] struct {
	Limiter *penstock.Limiter
	Name    string // of its limit
	Extra   E
}

// listOf prepares charges to the limiters, without those whose limiter is nil.
func (p *Plan[R, E]) listOf(limiters []*penstock.Limiter) *List[R, E] {
	set, order := NewSet(limiters)
	l := &List[R, E]{Set: set, Permits: set.HasPermits(), plan: p}
	for _, i := range order {
		name := p.nameOf(limiters[i].Limit())
		l.charges = append(l.charges, &p.Charges[i])
		l.Items = append(l.Items, Item[E]{Limiter: limiters[i], Name: name, Extra: p.Extra(i, name)})
		l.Settles = l.Settles || p.Charges[i].Settles
	}
	return l
}

func (p *Plan[R, E]) nameOf(limit penstock.Limit) string {
	switch {
	case limit.Name != "":
		return limit.Name
	case len(p.Charges) > 1 || p.Unnamed == "":
		return limit.String()
	}
	return p.Unnamed
}

// Now returns the time if a later settlement or refund needs it.
func (l *List[R, E]) Now() (t time.Time) {
	if l.Settles || len(l.Items) > 1 {
		t = time.Now()
	}
	return t
}

// Take determines key and cost for each limiter, and takes.
func (l *List[R, E]) Take(ctx context.Context, r R, parts []Part) (decided int, allowed bool, err error) {
	known := true
	for i := range parts { // all of them: see Undecided
		parts[i] = l.part(i, r)
		known = known && parts[i].Key != ""
	}
	if !known {
		return 0, true, l.plan.unknownClient
	}
	return l.Set.Take(ctx, parts)
}

// part returns what is charged to one limiter. Its key is "" if neither a key nor the client's
// address is known: charging all such requests to one key would let one client block the others.
func (l *List[R, E]) part(i int, r R) Part {
	c := l.charges[i]
	p := Part{Key: l.plan.keyOf(c, r), Cost: 1}
	if c.Cost != nil {
		p.Cost = c.Cost(r)
	}
	return p
}

func (p *Plan[R, E]) keyOf(c *Charge[R], r R) string {
	if c.Key == nil {
		return p.Address(r)
	}
	if key := c.Key(r); IsKey(key) {
		return key
	}
	return AddressKey(p.Address(r))
}

// AcquirePermit acquires the permit that a request holds, as [Acquire] does. A request that
// costs nothing is allowed without one.
func (l *List[R, E]) AcquirePermit(ctx context.Context, r R) (handler context.Context, release func(), p Part, err error) {
	if len(l.Items) > 1 || l.Settles {
		return nil, nil, p, l.plan.PermitsAlone
	}
	switch p = l.part(0, r); {
	case p.Cost == 0:
		p.Decision.Allowed = true
	case p.Key == "":
		err = l.plan.unknownClient
	default:
		handler, release, p.Decision, err = Acquire(ctx, l.Items[0].Limiter, p.Key, p.Cost)
	}
	return handler, release, p, err
}
