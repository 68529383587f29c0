// Package rulestats counts what becomes of requests: for each rule, and for all limits that requests bring.
// It does not know how they are decided.
package rulestats

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/internal/topkeys"
)

// A Rule has the statistics of a rule.
type Rule struct {
	Rule  string // the rule's name; "" for ad-hoc limits
	Limit int64  // most units that can be taken at once; 0 for ad-hoc limits

	HasPermits bool // the limit is concurrent

	*Stats
}

// Stats count takes, and neither peeks nor refunds. They survive a reload of the rules.
type Stats struct {
	Denied, Shadowed atomic.Uint64 // requests; Shadowed would have been denied
	DeniedUnits      atomic.Uint64
	Errors           atomic.Uint64

	// Allowed requests: most take one unit, and are counted by one atomic operation.
	singles            atomic.Uint64 // requests that took one unit
	others, otherUnits atomic.Uint64 // requests that took more or none, and what they took

	Hits        hitcount.Hits    // without those in HitsByValue; counted if engine.Options.CountHits is set
	HitsByValue hitcount.ByValue // of rules that rules.Rule.HasMetricValues

	Banned atomic.Uint64 // requests denied by a ban; they count as Denied or Shadowed, too

	Permits Permits // of a concurrent limit
}

// Allowed returns how many requests were allowed.
func (s *Stats) Allowed() uint64 { return s.singles.Load() + s.others.Load() }

// AllowedUnits returns how many units the allowed requests took.
func (s *Stats) AllowedUnits() uint64 { return s.singles.Load() + s.otherUnits.Load() }

// Permits count what becomes of permits. What is granted counts as AllowedUnits, renewals
// included. How many are held only the store knows.
type Permits struct {
	Released atomic.Uint64 // permits
	NotHeld  atomic.Uint64 // releases that found no permit: it had expired, or was never granted
	HeldIDs  atomic.Uint64 // requests denied for no other reason than that their ID held a permit
}

// AddAllowed counts a take that was granted units.
func (s *Stats) AddAllowed(units int64) {
	if units == 1 {
		s.singles.Add(1)
		return
	}
	s.others.Add(1)
	s.otherUnits.Add(uint64(min(max(units, 0), MaxUnits)))
}

// MaxUnits is the most that one request adds to a counter, so that a huge cost
// cannot make it overflow.
const MaxUnits = 1 << 40

// AddDenied counts a take that was denied, or in shadow mode would have been.
func (s *Stats) AddDenied(units int64, shadow bool) {
	if shadow {
		s.Shadowed.Add(1)
		return
	}
	s.Denied.Add(1)
	s.DeniedUnits.Add(uint64(min(units, MaxUnits)))
}

// AddReported counts requests for one unit each that others have decided.
func (s *Stats) AddReported(allowed, denied uint64) {
	s.singles.Add(allowed)
	s.Denied.Add(denied)
	s.DeniedUnits.Add(denied)
}

// AddRelease counts a release of permits.
func (s *Permits) AddRelease(granted int64) {
	if granted < 0 {
		s.Released.Add(uint64(-granted))
		return
	}
	s.NotHeld.Add(1)
}

// OutcomeOf returns what the top keys count a decision as.
func OutcomeOf(denied, shadow bool) topkeys.Outcome {
	switch {
	case !denied:
		return topkeys.Allowed
	case shadow:
		return topkeys.Shadowed
	}
	return topkeys.Denied
}

// Local counts the decisions of an API that calls the store itself for speed. It
// belongs to one goroutine, and collects counts until Flush, so that many decisions update
// the shared counters only once.
type Local struct {
	to      *Stats
	topKeys *topkeys.Tracker
	shadow  bool

	allowed, denied, shadowed uint64
	allowedUnits, deniedUnits uint64
	errors                    uint64
}

// NewLocal returns counters that are flushed to the statistics of request limits. In shadow mode,
// denials are counted and allowed.
func NewLocal(to *Stats, topKeys *topkeys.Tracker, shadow bool) Local {
	return Local{to: to, topKeys: topKeys, shadow: shadow}
}

// Count counts the decision about a key, under a request limit and with that cost. In
// shadow mode it changes a denial into an allowed decision.
func (c *Local) Count(l *penstock.Limit, key string, cost int64, d *penstock.Decision) {
	if cost <= 0 {
		return
	}
	c.topKeys.RecordLimit(l, key, OutcomeOf(!d.Allowed, c.shadow), cost, d.Remaining)
	switch {
	case d.Allowed:
		c.allowed++
		c.allowedUnits += uint64(min(max(d.Granted, 0), MaxUnits))
	case c.shadow:
		c.shadowed++
		d.Allowed, d.RetryAfter = true, 0
	default:
		c.denied++
		c.deniedUnits += uint64(min(cost, MaxUnits))
	}
}

// Fail counts a request that could not be decided.
func (c *Local) Fail() { c.errors++ }

// Flush adds the counts to the shared statistics, and resets them.
func (c *Local) Flush() {
	t := c.to
	addSome(&t.others, c.allowed)
	addSome(&t.otherUnits, c.allowedUnits)
	addSome(&t.Denied, c.denied)
	addSome(&t.DeniedUnits, c.deniedUnits)
	addSome(&t.Shadowed, c.shadowed)
	addSome(&t.Errors, c.errors)
	*c = NewLocal(c.to, c.topKeys, c.shadow)
}

// addSome adds to a shared counter, and leaves it to others if there is nothing to add.
func addSome(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}
