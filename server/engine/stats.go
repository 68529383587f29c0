package engine

import (
	"errors"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/internal/topkeys"
)

// RuleStats are the statistics of a rule.
type RuleStats struct {
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

	Hits        hitcount.Hits    // without those in HitsByValue; counted if Options.CountHits is set
	HitsByValue hitcount.ByValue // of rules that rules.Rule.HasMetricValues

	Banned atomic.Uint64 // requests denied by a ban; they count as Denied or Shadowed, too

	Permits PermitStats // of a concurrent limit
}

// Allowed returns how many requests were allowed.
func (s *Stats) Allowed() uint64 { return s.singles.Load() + s.others.Load() }

// AllowedUnits returns how many units the allowed requests took.
func (s *Stats) AllowedUnits() uint64 { return s.singles.Load() + s.otherUnits.Load() }

// PermitStats count what becomes of permits. What is granted counts as AllowedUnits, renewals
// included. How many are held only the store knows.
type PermitStats struct {
	Released atomic.Uint64 // permits
	NotHeld  atomic.Uint64 // releases that found no permit: it had expired, or was never granted
	HeldIDs  atomic.Uint64 // requests denied for no other reason than that their ID held a permit
}

// RuleStats returns the live statistics of every rule with a limit, and of request
// limits.
func (e *Engine) RuleStats() []*RuleStats {
	all := []*RuleStats{e.requestLimitState.stats}
	t := e.table.Load()
	if t == nil {
		return all
	}
	for i, r := range t.set.Rules() {
		if !r.Unlimited {
			all = append(all, t.states[i].stats)
		}
	}
	return all
}

// A BannedCounter is how many requests to a rule were denied by a ban.
type BannedCounter struct {
	Rule  string
	Count uint64
}

// BannedCounters returns the counter of every rule.
func (e *Engine) BannedCounters() (all []BannedCounter) {
	t := e.table.Load()
	if t == nil {
		return nil
	}
	for i := range t.states {
		s := t.states[i].stats
		all = append(all, BannedCounter{s.Rule, s.Banned.Load()})
	}
	return all
}

func (s *Stats) addAllowed(units int64) {
	if units == 1 {
		s.singles.Add(1)
		return
	}
	s.others.Add(1)
	s.otherUnits.Add(uint64(min(max(units, 0), maxUnitsPerRequest)))
}

// maxUnitsPerRequest is the most that one request adds to a counter, so that a huge cost
// cannot make it overflow.
const maxUnitsPerRequest = 1 << 40

// addDenied counts a take that was denied, or in shadow mode would have been.
func (s *Stats) addDenied(units int64, shadow bool) {
	if shadow {
		s.Shadowed.Add(1)
		return
	}
	s.Denied.Add(1)
	s.DeniedUnits.Add(uint64(min(units, maxUnitsPerRequest)))
}

// updateStats updates the statistics of the rules. A settlement is in them only if the store
// failed: what it settles was counted when it was taken.
func (ev *evaluation) updateStats(err error) {
	if ev.terms.Settle && (err == nil || errors.Is(err, penstock.ErrUnknownID)) {
		return
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		if err == nil && d.cost >= 0 && ev.engine.options.CountHits {
			ev.addLookup(d)
			ev.addHits(d)
		}
		granted, stats := d.granted(), d.state.stats.Stats
		switch {
		case err != nil:
			stats.Errors.Add(1)
		case d.cost < 0 && d.rule.ID != "" && d.decided:
			stats.Permits.addRelease(granted)
		case d.cost <= 0:
		case d.denied:
			ev.addDenied(d)
			ev.addKey(d)
		case granted > 0:
			stats.addAllowed(granted)
			ev.addKey(d)
		}
	}
}

// addRelease counts a release of permits.
func (s *PermitStats) addRelease(granted int64) {
	if granted < 0 {
		s.Released.Add(uint64(-granted))
		return
	}
	s.NotHeld.Add(1)
}

// addDenied counts a denial, also towards the penalty of its rule. A key with an override
// of its own is not penalized: the ban would replace it. Nor is one that the fallback
// denies: it may be within its limit.
func (ev *evaluation) addDenied(d *limitedDescriptor) {
	stats, shadow := d.state.stats.Stats, d.rule.Shadow || ev.engine.options.Shadow
	stats.addDenied(d.cost, shadow)
	switch {
	case d.isBanned():
		stats.Banned.Add(1)
		return
	case d.rule.Penalty != nil && d.override == nil && !shadow && d.status.Decision.Source != penstock.SourceFallback:
		ev.engine.overrides.CountDenial(d.rule.Name, ev.keyOf(d), d.rule.Penalty)
	}
	free := d.status.Decision.Remaining - d.template.KeepFree
	if d.newID && free >= d.cost { // its ID is the only reason: the permits were free
		stats.Permits.HeldIDs.Add(1)
	}
}

// addKey counts the key of a descriptor that was decided.
func (ev *evaluation) addKey(d *limitedDescriptor) {
	keys := ev.engine.options.TopKeys
	if keys == nil {
		return
	}
	outcome := outcomeOf(d.denied, d.rule.Shadow || ev.engine.options.Shadow)
	remaining := d.status.Decision.Remaining
	if d.state.source == nil {
		keys.RecordLimit(&d.rule.Limit, ev.keyOf(d), outcome, d.cost, remaining)
	} else if sample, ok := keys.Sample(outcome); ok {
		keys.RecordSample(sample, d.state.source, ev.keyOf(d), d.cost, remaining)
	}
}

// LocalStats counts the decisions of an API that calls the store itself for speed. It
// belongs to one goroutine, and collects counts until Flush, so that many decisions update
// the shared counters only once.
type LocalStats struct {
	engine                    *Engine
	allowed, denied, shadowed uint64
	allowedUnits, deniedUnits uint64
	errors                    uint64
}

// LocalStats returns counters for ad-hoc limits.
func (e *Engine) LocalStats() LocalStats { return LocalStats{engine: e} }

// Count counts the decision about a key, under a request limit and with that cost. In
// shadow mode it changes a denial into an allowed decision.
func (c *LocalStats) Count(l *penstock.Limit, key string, cost int64, d *penstock.Decision) {
	if cost <= 0 {
		return
	}
	c.engine.options.TopKeys.RecordLimit(l, key, outcomeOf(!d.Allowed, c.engine.options.Shadow), cost, d.Remaining)
	switch {
	case d.Allowed:
		c.allowed++
		c.allowedUnits += uint64(min(max(d.Granted, 0), maxUnitsPerRequest))
	case c.engine.options.Shadow:
		c.shadowed++
		d.Allowed, d.RetryAfter = true, 0
	default:
		c.denied++
		c.deniedUnits += uint64(min(cost, maxUnitsPerRequest))
	}
}

func outcomeOf(denied, shadow bool) topkeys.Outcome {
	switch {
	case !denied:
		return topkeys.Allowed
	case shadow:
		return topkeys.Shadowed
	}
	return topkeys.Denied
}

// Fail counts a request that could not be decided.
func (c *LocalStats) Fail() { c.errors++ }

// Flush adds the counts to the engine's counters, and resets them.
func (c *LocalStats) Flush() {
	t := c.engine.requestLimitState.stats.Stats
	addSome(&t.others, c.allowed)
	addSome(&t.otherUnits, c.allowedUnits)
	addSome(&t.Denied, c.denied)
	addSome(&t.DeniedUnits, c.deniedUnits)
	addSome(&t.Shadowed, c.shadowed)
	addSome(&t.Errors, c.errors)
	*c = LocalStats{engine: c.engine}
}

// addSome adds to a shared counter, and leaves it to others if there is nothing to add.
func addSome(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}
