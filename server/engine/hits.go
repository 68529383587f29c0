package engine

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// Hits counts the hits of a rule as envoyproxy/ratelimit does: units, and not requests. They are
// counted if Options.CountHits is set.
type Hits struct {
	Total, OverLimit, NearLimit, WithinLimit atomic.Uint64

	OverLimitCached atomic.Uint64 // of which the store was not asked for
	Shadow          atomic.Uint64 // that a shadow rule let pass
}

// addLookup counts a descriptor that was decided, a peek included, in the lookups of denials.
func (ev *evaluation) addLookup(d *limitedDescriptor) {
	switch s := ev.engine.denials; {
	case s == nil:
	case d.isCachedDenial():
		s.hits.Add(1)
	default:
		s.misses.Add(1)
	}
}

// addHits counts the hits of a descriptor that was decided. A request that crosses the limit is
// over it by a part of its hits, and near it by another.
func (ev *evaluation) addHits(d *limitedDescriptor) {
	if d.cost == 0 {
		return
	}
	h, hits := ev.hitsOf(d), min(d.cost, maxUnitsPerRequest)
	h.Total.Add(uint64(hits))
	threshold := int64(math.Floor(float64(float32(d.maxHits) * float32(ev.engine.nearLimitRatio))))
	before := d.hitsBefore()
	over := min(max(before+hits-d.maxHits, 0), hits)
	switch {
	case d.isCachedDenial():
		over = hits
		h.OverLimitCached.Add(uint64(hits))
	case !d.denied:
		h.WithinLimit.Add(uint64(hits))
		h.NearLimit.Add(uint64(min(max(before+hits-threshold, 0), hits)))
		return
	default:
		h.NearLimit.Add(uint64(min(max(d.maxHits-max(threshold, before), 0), hits)))
	}
	h.OverLimit.Add(uint64(over))
	if d.rule.Shadow {
		h.Shadow.Add(uint64(over))
	}
}

// hitsBefore returns how many hits there were before the request.
func (d *limitedDescriptor) hitsBefore() int64 {
	if d.addsHits() {
		return d.before
	}
	dec := &d.status.Decision
	return max(dec.Limit-dec.Remaining-dec.Granted, 0)
}

// MaxMetricValues is by how many combinations of values the hits of one rule are told. Callers
// choose the values, so hits with further ones are told of the rule as a whole.
const MaxMetricValues = 1000

// ValueHits counts the hits of a rule by those values of requests that its metrics tell.
type ValueHits struct {
	mu   sync.RWMutex
	hits map[string]*Hits // by the path of Domain.AppendMetricPath
	full bool
}

// All returns the hits by path: the nodes of the rule, with a zero byte between them.
func (v *ValueHits) All() map[string]*Hits {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return maps.Clone(v.hits)
}

// find returns the hits of a path. It returns nil if there are too many paths already, and then
// reports whether it does so for the first time.
func (v *ValueHits) find(path []byte) (h *Hits, first bool) {
	v.mu.RLock()
	h = v.hits[string(path)]
	full := v.full
	v.mu.RUnlock()
	if h != nil || full {
		return h, false
	}
	return v.add(string(path))
}

func (v *ValueHits) add(path string) (h *Hits, first bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch h = v.hits[path]; {
	case h != nil:
		return h, false
	case len(v.hits) == MaxMetricValues:
		first, v.full = !v.full, true
		return nil, first
	case v.hits == nil:
		v.hits = map[string]*Hits{}
	}
	h = &Hits{}
	v.hits[path] = h
	return h, false
}

// hitsOf returns where the hits of a descriptor are counted.
func (ev *evaluation) hitsOf(d *limitedDescriptor) *Hits {
	stats := d.state.stats
	if !d.rule.HasMetricValues() || d.own {
		return &stats.Hits
	}
	var ok bool
	if ev.metricPath, ok = ev.domain.AppendMetricPath(ev.metricPath[:0], d.rule, ev.ds[d.index].Entries); !ok {
		return &stats.Hits
	}
	h, first := stats.HitsByValue.find(ev.metricPath)
	if first && ev.engine.onMetricValues != nil {
		ev.engine.onMetricValues(d.rule.Name)
	}
	if h == nil {
		return &stats.Hits
	}
	return h
}
