package engine

import "github.com/penstock-io/penstock"

// A LocalCounters counts, as Take does, what a door decides itself because every nanosecond
// matters to it. It is for one goroutine, and adds up what it is told until Report,
// so that many decisions touch the counts that all share only once.
type LocalCounters struct {
	engine                    *Engine
	allowed, denied, shadowed uint64
	allowedUnits, deniedUnits uint64
	errors                    uint64
}

// LocalCounters returns a clerk who counts under the policy of requests without rules.
func (e *Engine) LocalCounters() LocalCounters { return LocalCounters{engine: e} }

// Count counts the decision on a request of that cost. In shadow it turns a denial
// into a pass.
func (c *LocalCounters) Count(cost int64, d *penstock.Decision) {
	switch {
	case cost <= 0:
	case d.Allowed:
		c.allowed++
		c.allowedUnits += uint64(max(d.Granted, 0))
	case c.engine.shadow:
		c.shadowed++
		d.Allowed, d.RetryAfter = true, 0
	default:
		c.denied++
		c.deniedUnits += uint64(min(cost, maxUnitsPerRequest))
	}
}

// Fail counts a request that could not be decided.
func (c *LocalCounters) Fail() { c.errors++ }

// Flush adds what was counted to the judge's counts.
func (c *LocalCounters) Flush() {
	t := c.engine.adHoc.counters.Counters
	if c.allowed > 0 {
		t.Allowed.Add(c.allowed)
		t.AllowedUnits.Add(c.allowedUnits)
	}
	if c.denied > 0 {
		t.Denied.Add(c.denied)
		t.DeniedUnits.Add(c.deniedUnits)
	}
	if c.shadowed > 0 {
		t.Shadowed.Add(c.shadowed)
	}
	if c.errors > 0 {
		t.Errors.Add(c.errors)
	}
	*c = LocalCounters{engine: c.engine}
}
