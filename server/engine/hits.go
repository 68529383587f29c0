package engine

import (
	"math"
	"sync/atomic"
)

// Hits counts the hits of a rule as envoyproxy/ratelimit does: units, and not requests. They are
// counted if Options.CountHits is set.
type Hits struct {
	Total, OverLimit, NearLimit, WithinLimit atomic.Uint64

	OverLimitCached atomic.Uint64 // of which the store was not asked for
	Shadow          atomic.Uint64 // that a shadow rule let pass
}

// countHits counts the hits of a descriptor that was decided. A request that crosses the limit is
// over it by a part of its hits, and near it by another.
func (ev *evaluation) countHits(h *Hits, d *limitedDescriptor) {
	hits := min(d.cost, maxUnitsPerRequest)
	h.Total.Add(uint64(hits))
	threshold := int64(math.Floor(float64(float32(d.count) * float32(ev.engine.nearLimitRatio))))
	before := ev.usedBefore(d)
	switch {
	case ev.isCachedDenial(d):
		h.OverLimit.Add(uint64(hits))
		h.OverLimitCached.Add(uint64(hits))
		ev.countShadow(d, h, hits)
	case !d.denied:
		h.WithinLimit.Add(uint64(hits))
		h.NearLimit.Add(uint64(min(max(before+hits-threshold, 0), hits)))
	default:
		over := min(max(before+hits-d.count, 0), hits)
		h.OverLimit.Add(uint64(over))
		h.NearLimit.Add(uint64(min(max(d.count-max(threshold, before), 0), hits)))
		ev.countShadow(d, h, over)
	}
}

func (ev *evaluation) countShadow(d *limitedDescriptor, h *Hits, hits int64) {
	if d.rule.Shadow {
		h.Shadow.Add(uint64(hits))
	}
}

// usedBefore returns how many hits there were before the request.
func (ev *evaluation) usedBefore(d *limitedDescriptor) int64 {
	if d.isCounting() {
		return d.before
	}
	dec := &ev.result.Statuses[d.index].Decision
	return max(dec.Limit-dec.Remaining-dec.Granted, 0)
}
