package charge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
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

// lists are the lists of charges that were prepared.
type lists[R, E any] struct {
	fixed *List[R, E] // nil if a limiter depends on the request

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

// Prepare makes the guard ready to use. It panics if the middleware would limit nothing.
func (g *Guard[R, E]) Prepare() *Guard[R, E] {
	g.errorLog = lograte.PerSecond()
	g.unknownClient = fmt.Errorf("%s: %w: neither a key nor the client's address is known", g.Package, penstock.ErrBadKey)
	if q := g.Rules; q != nil && (q.Limiter == nil || q.Domain == "" || len(q.Descriptors) == 0) {
		panic(g.Package + ": no rules: want a limiter, a domain and descriptors") //nolint:forbidigo // no error to return, and no limit would be worse
	}
	limiters, fixed := make([]*penstock.Limiter, len(g.Charges)), true
	for i, c := range g.Charges {
		switch {
		case c.Limiter == nil && c.LimiterFor == nil:
			panic(g.Package + ": no limiter: want one, LimiterFor or Rules") //nolint:forbidigo // likewise
		case isConcurrent(c.Limiter) && (len(g.Charges) > 1 || c.Settles):
			panic(g.PermitsAlone.Error()) //nolint:forbidigo // likewise
		}
		limiters[i], fixed = c.Limiter, fixed && c.LimiterFor == nil
	}
	if fixed {
		g.fixed = g.listOf(limiters)
		g.fixed.Settles = g.fixed.Settles || g.Rules != nil && g.Rules.Settles
	}
	return g
}

// listFor returns the charges of a request. Requests under the same limiters share them.
func (g *Guard[R, E]) listFor(r R) *List[R, E] {
	if g.fixed != nil {
		return g.fixed
	}
	var key combination
	limiters := key[:0]
	for i := range g.Charges {
		limiters = append(limiters, g.Charges[i].limiterOf(r))
	}
	if len(limiters) > maxCombined {
		return g.listOf(limiters)
	}
	g.mu.RLock()
	list := g.chosen[key]
	g.mu.RUnlock()
	if list == nil {
		list = g.listOf(limiters)
		g.keep(key, list)
	}
	return list
}

// keep remembers a list. If there are too many, all others are dropped first, so that limiters
// that are no longer used can be freed.
func (g *Guard[R, E]) keep(key combination, list *List[R, E]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.chosen == nil || len(g.chosen) >= maxCombinations {
		g.chosen = map[combination]*List[R, E]{}
	}
	g.chosen[key] = list
}

// A List is the charges of a request, in the order in which they are taken.
type List[R, E any] struct {
	*Set
	Items   []Item[E]
	Settles bool // one of them is settled after the request

	guard   *Guard[R, E]
	permits bool // the request holds a permit
	charges []*Charge[R]
}

// An Item is what middleware knows of one charge.
type Item[E any] struct {
	Limiter *penstock.Limiter
	Name    string // of its limit
	Extra   E
}

// listOf prepares charges to the limiters, without those whose limiter is nil.
func (g *Guard[R, E]) listOf(limiters []*penstock.Limiter) *List[R, E] {
	set, order := NewSet(limiters)
	l := &List[R, E]{Set: set, permits: set.HasPermits(), guard: g}
	for _, i := range order {
		name := g.nameOf(limiters[i].Limit())
		l.charges = append(l.charges, &g.Charges[i])
		l.Items = append(l.Items, Item[E]{Limiter: limiters[i], Name: name, Extra: g.Extra(i, name)})
		l.Settles = l.Settles || g.Charges[i].Settles
	}
	return l
}

func (g *Guard[R, E]) nameOf(limit penstock.Limit) string {
	switch {
	case limit.Name != "":
		return limit.Name
	case len(g.Charges) > 1 || g.Unnamed == "":
		return limit.String()
	}
	return g.Unnamed
}

// now returns the time if a later settlement or refund needs it.
func (l *List[R, E]) now() (t time.Time) {
	if l.Settles || len(l.Items) > 1 {
		t = time.Now()
	}
	return t
}

// take determines key and cost for each limiter, and takes.
func (l *List[R, E]) take(ctx context.Context, r R, p *Passage[R, E]) (decided int, allowed bool, err error) {
	parts, known := p.all(), true
	for i := range parts { // all of them: see costs
		parts[i] = l.part(i, r)
		known = known && parts[i].Key != ""
	}
	if !known {
		return 0, true, l.guard.unknownClient
	}
	return l.Set.Take(ctx, parts, p.Since)
}

// part returns what is charged to one limiter. Its key is "" if neither a key nor the client's
// address is known: charging all such requests to one key would let one client block the others.
func (l *List[R, E]) part(i int, r R) Part {
	c := l.charges[i]
	p := Part{Key: l.guard.keyOf(c, r), Cost: 1}
	if c.Cost != nil {
		p.Cost = c.Cost(r)
	}
	return p
}

func (g *Guard[R, E]) keyOf(c *Charge[R], r R) string {
	if c.Key == nil {
		return g.Address(r)
	}
	if key := c.Key(r); IsKey(key) {
		return key
	}
	return AddressKey(g.Address(r))
}

// acquire acquires the permit that a request holds, as [Acquire] does. A request that costs nothing is
// allowed without one.
func (l *List[R, E]) acquire(ctx context.Context, r R) (handler context.Context, release func(), p Part, err error) {
	switch p = l.part(0, r); {
	case p.Cost == 0:
		p.Decision.Allowed = true
	case p.Key == "":
		err = l.guard.unknownClient
	default:
		handler, release, p.Decision, err = Acquire(ctx, l.Items[0].Limiter, p.Key, p.Cost)
	}
	return handler, release, p, err
}
