package engine

import (
	"cmp"
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/rulestats"
)

// RuleStats are the statistics of a rule.
type RuleStats = rulestats.Rule

// RuleStats returns the live statistics of every rule with a limit, and of request
// limits.
func (e *Engine) RuleStats() []*RuleStats {
	all := []*RuleStats{e.requestLimitState.stats}
	t := e.table.Load()
	for i, r := range t.set.Rules() {
		if !r.Unlimited {
			all = append(all, t.states[i].stats)
		}
	}
	return all
}

// StatsOfRules returns the live statistics of every rule, also of those without a limit: bans deny requests to them.
func (e *Engine) StatsOfRules() (all []*RuleStats) {
	t := e.table.Load()
	for i := range t.states {
		all = append(all, t.states[i].stats)
	}
	return all
}

// updateStats updates the statistics of the rules. A settlement is in them only if the store
// failed: what it settles was counted when it was taken.
func (ev *evaluation) updateStats(err error) {
	if ev.terms.Settle && (err == nil || errors.Is(err, penstock.ErrUnknownID)) {
		return
	}
	if len(ev.tried) > 0 && err == nil {
		ev.compare()
	}
	o := &ev.engine.options
	countHits, countKeys := o.CountHits && err == nil, o.TopKeys != nil && err == nil
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.trial != nil {
			continue
		}
		if countHits && d.cost >= 0 {
			ev.engine.Denials.CountLookup(d.isCachedDenial())
		}
		if countHits && d.cost > 0 {
			d.addHits(ev.hitsOf(d), o.NearLimitRatio)
		}
		if countKeys && d.cost > 0 && (d.denied || d.granted() > 0) {
			d.addKey(ev.engine, ev.keyOf(d))
		}
		granted, stats := d.granted(), d.state.stats.Stats
		switch {
		case err != nil:
			stats.Errors.Add(1)
		case d.cost < 0 && d.rule.ID != "" && d.decided:
			stats.Permits.AddRelease(granted)
		case d.cost <= 0:
		case d.denied:
			d.addDenied(ev.engine, ev.keyOf(d))
		case granted > 0:
			stats.AddAllowed(granted)
		}
	}
}

// addDenied counts a denial, also towards the penalty of its rule, if the limit is spent. A key with an
// override of its own is not penalized: the ban would replace it. Nor is one that the fallback denies: it may be
// within its limit.
func (d *limitedDescriptor) addDenied(e *Engine, key string) {
	stats, shadow := d.state.stats.Stats, d.rule.Shadow || e.options.Shadow
	stats.AddDenied(d.cost, shadow)
	switch {
	case d.isBanned():
		stats.Banned.Add(1)
		return
	case d.rule.Penalty != nil && d.override == nil && !shadow && d.status.Decision.Source != penstock.SourceFallback && d.isSpent():
		e.options.Overrides.CountDenial(d.rule.Name, key, d.rule.Penalty)
	}
	free := d.status.Decision.Remaining - d.template.KeepFree
	if d.newID && free >= d.cost { // its ID is the only reason: the permits were free
		stats.Permits.HeldIDs.Add(1)
	}
}

// isSpent reports whether the descriptor is denied because of what was used before, so that a request without wishes of
// its own is denied too: wishes are to keep units free, to hold no permit yet, to wait less than the queue takes, and a
// cost that the limit never grants. Whoever can name a key could have it banned by wishes while little was used.
func (d *limitedDescriptor) isSpent() bool {
	dec, wanted := &d.status.Decision, d.cost
	if wanted > dec.Limit-d.rule.KeepFree {
		wanted = 1
	}
	switch {
	case d.tooMany:
		return false
	case d.way.peekFirst: // charged since, however much was left
		return d.spent
	case !d.hurried && d.maxDelay > 0 && dec.ResetAfter > d.maxDelay: // the queue is longer than its API can hold a request
		return true
	}
	return dec.Remaining-d.rule.KeepFree < wanted
}

// addKey counts the key of a descriptor that was decided.
func (d *limitedDescriptor) addKey(e *Engine, key string) {
	keys := e.options.TopKeys
	outcome := rulestats.OutcomeOf(d.denied, d.rule.Shadow || e.options.Shadow)
	remaining := d.status.Decision.Remaining
	if d.state.source == nil {
		keys.RecordLimit(&d.rule.Limit, key, outcome, d.cost, remaining)
	} else if sample, ok := keys.Sample(outcome); ok {
		keys.RecordSample(sample, d.state.source, key, d.cost, remaining)
	}
}

// addHits counts the hits of a descriptor that was decided.
func (d *limitedDescriptor) addHits(to *hitcount.Hits, nearLimitRatio float64) {
	hits := min(d.cost, rulestats.MaxUnits)
	to.Add(&hitcount.Decision{
		Hits: hits, Before: d.hitsBefore(hits), Limit: d.maxHits, NearLimitRatio: nearLimitRatio,
		Denied: d.denied, Cached: d.isCachedDenial(), Shadow: d.rule.Shadow,
	})
}

// hitsBefore returns how many hits there were before the request, if its own were added.
func (d *limitedDescriptor) hitsBefore(own int64) int64 {
	if d.addsHits() {
		return d.sum - own
	}
	dec := &d.status.Decision
	return max(dec.Limit-dec.Remaining-dec.Granted, 0)
}

// hitsOf returns where the hits of a descriptor are counted.
func (ev *evaluation) hitsOf(d *limitedDescriptor) *hitcount.Hits {
	var told bool
	stats, byValue := d.state.stats, &d.state.stats.HitsByValue
	switch entries := ev.ds[d.index].Entries; {
	case d.own:
		byValue = ev.engine.OwnHits.Of(ev.domain.Name)
		ev.metricPath, told = rules.AppendOwnMetricPath(ev.metricPath[:0], entries)
	case d.rule.HasMetricValues():
		ev.metricPath, told = ev.domain.AppendMetricPath(ev.metricPath[:0], d.rule, entries)
	default:
		return &stats.Hits
	}
	if !told {
		return &stats.Hits
	}
	h, first := byValue.Find(ev.metricPath)
	if first && ev.engine.options.OnMetricValues != nil {
		ev.engine.options.OnMetricValues(cmp.Or(d.rule.Name, "overrides of "+ev.domain.Name))
	}
	return cmp.Or(h, &stats.Hits)
}
