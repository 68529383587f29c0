package engine

import (
	"maps"
	"sync"

	"github.com/penstock-io/penstock/server/rules"
)

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
func (ev *evaluation) hitsOf(domain *rules.Domain, d *limitedDescriptor, entries []rules.Entry) *Hits {
	all := &d.state.counters.Hits
	if !d.rule.HasMetricValues() || d.hasOwnLimit {
		return all
	}
	var ok bool
	if ev.metricPath, ok = domain.AppendMetricPath(ev.metricPath[:0], d.rule, entries); !ok {
		return all
	}
	h, first := d.state.counters.HitsByValue.find(ev.metricPath)
	if first {
		ev.engine.onMetricValues(d.rule.Name)
	}
	if h == nil {
		return all
	}
	return h
}
