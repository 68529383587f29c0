// Package hitcount counts hits as envoyproxy/ratelimit does: units, and not requests.
package hitcount

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// Hits are counters of hits.
type Hits struct {
	Total, OverLimit, NearLimit, WithinLimit atomic.Uint64

	OverLimitCached atomic.Uint64 // of which the store was not asked for
	Shadow          atomic.Uint64 // that a shadow rule let pass
}

// A Decision is what is counted of one.
type Decision struct {
	Hits   int64 // above 0
	Before int64 // the hits that there were, of which negative ones mean that those of the request were not added
	Limit  int64

	NearLimitRatio float64 // hits above this part of the limit are near it

	Denied, Cached, Shadow bool
}

// Add counts a decision. A request that crosses the limit is over it by a part of its hits, and
// near it by another.
func (h *Hits) Add(d *Decision) {
	h.Total.Add(uint64(d.Hits))
	threshold := int64(math.Floor(float64(float32(d.Limit) * float32(d.NearLimitRatio))))
	before := d.Before
	if before < 0 && before+d.Hits > threshold {
		before = d.Limit // that service computes without a sign, so it takes it for a large number
	}
	over := d.part(before + d.Hits - d.Limit)
	switch {
	case d.Cached:
		over = uint64(d.Hits)
		h.OverLimitCached.Add(over)
	case !d.Denied:
		h.WithinLimit.Add(uint64(d.Hits))
		h.NearLimit.Add(d.part(before + d.Hits - threshold))
		return
	default:
		h.NearLimit.Add(d.part(d.Limit - max(threshold, before)))
	}
	h.OverLimit.Add(over)
	if d.Shadow {
		h.Shadow.Add(over)
	}
}

// part returns n if that many of the hits can be meant.
func (d *Decision) part(n int64) uint64 { return uint64(min(max(n, 0), d.Hits)) }

// MaxValues is by how many combinations of values hits are told. Callers choose the values.
const MaxValues = 1000

// ByValue counts hits by values of requests.
type ByValue struct {
	mu   sync.RWMutex
	hits map[string]*Hits
	full bool
}

// All returns the hits by path: what Find was given.
func (v *ByValue) All() map[string]*Hits {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return maps.Clone(v.hits)
}

// Find returns the hits of a path. It returns nil if there are too many paths already, and then
// reports whether it does so for the first time.
func (v *ByValue) Find(path []byte) (h *Hits, first bool) {
	v.mu.RLock()
	h = v.hits[string(path)]
	full := v.full
	v.mu.RUnlock()
	if h != nil || full {
		return h, false
	}
	return v.add(string(path))
}

func (v *ByValue) add(path string) (h *Hits, first bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch h = v.hits[path]; {
	case h != nil:
		return h, false
	case len(v.hits) == MaxValues:
		first, v.full = !v.full, true
		return nil, first
	case v.hits == nil:
		v.hits = map[string]*Hits{}
	}
	h = &Hits{}
	v.hits[path] = h
	return h, false
}

// ByDomain counts the hits of each domain by value.
type ByDomain struct{ domains sync.Map }

// Of returns the hits of a domain.
func (m *ByDomain) Of(domain string) *ByValue {
	v, ok := m.domains.Load(domain)
	if !ok {
		v, _ = m.domains.LoadOrStore(domain, &ByValue{})
	}
	return v.(*ByValue)
}

// All returns the hits of each domain.
func (m *ByDomain) All() map[string]*ByValue {
	all := map[string]*ByValue{}
	for domain, v := range m.domains.Range {
		all[domain.(string)] = v.(*ByValue)
	}
	return all
}
