package engine

import (
	"cmp"

	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/rulestats"
)

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
