package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/server/engine"
)

// The model decides as documented, in the simplest way: fixed windows, one number per key.

// modelRules has one rule of each kind, by name. The name of a key is the kind
// of its rule.
const modelRules = `
domain: DOMAIN
COMPAT
descriptors:
  - {key: hard1, rate_limit: {unit: year, requests_per_unit: 4, name: basic}}
  - {key: hard2, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: quota1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: quota2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 6}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: both, shadow_mode: true, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: instead, rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: basic}]}}
`

var modelLimits = map[string]int64{"hard1": 4, "hard2": 9, "quota1": 3, "quota2": 6, "shadow": 3, "both": 3, "instead": 9}

type model struct {
	compat bool
	used   map[string]int64
}

// A part is one descriptor of a request, in the model.
type part struct {
	kind, key string
	cost      int64
	limit     int64
	limited   bool
	denied    bool
}

func (p *part) quota() bool  { return strings.HasPrefix(p.kind, "quota") || p.kind == "both" }
func (p *part) shadow() bool { return p.kind == "shadow" || p.kind == "both" }
func (p *part) hard() bool   { return !p.quota() && !p.shadow() }

// decide returns the result of a request, and charges it.
func (m *model) decide(ps []*part) (over bool) {
	if m.compat {
		for _, p := range ps {
			m.take(p, true)
		}
		return anyOver(ps)
	}
	total := map[string]int64{}
	for _, p := range ps {
		if p.limited && p.hard() && p.cost > 0 {
			total[p.key] += p.cost
		}
	}
	before := m.copy()
	for _, p := range ps { // quota rules first, each by itself
		if p.quota() && !p.shadow() && p.cost > 0 {
			m.take(p, false)
		}
	}
	if over = anyOver(ps); !over {
		for _, p := range ps {
			if p.limited && p.hard() && p.cost > 0 && m.used[p.key]+total[p.key] > p.limit {
				p.denied, over = true, true
			}
		}
	}
	if over {
		m.used = before
		return true
	}
	for _, p := range ps {
		if p.hard() && p.cost > 0 {
			m.take(p, false)
		}
	}
	for _, p := range ps {
		if p.shadow() || p.cost <= 0 {
			m.take(p, false)
		}
	}
	return false
}

// anyOver reports whether the statuses deny the request.
func anyOver(ps []*part) bool {
	quotas, overQuotas := 0, 0
	for _, p := range ps {
		if p.limited && p.denied && p.hard() {
			return true
		}
		if p.limited && p.quota() {
			quotas++
			if p.denied && !p.shadow() {
				overQuotas++
			}
		}
	}
	return quotas > 0 && quotas == overQuotas
}

// take takes the cost of a part, or nothing. Counting takes it in any case, and denies a peek
// too if more than the limit was taken.
func (m *model) take(p *part, counting bool) {
	if !p.limited {
		return
	}
	left := p.limit - m.used[p.key]
	p.denied = p.cost > left && (p.cost > 0 || p.cost == 0 && counting)
	if !p.denied || counting {
		m.used[p.key] = max(m.used[p.key]+p.cost, 0)
	}
}

func (m *model) copy() map[string]int64 {
	used := map[string]int64{}
	for key, n := range m.used {
		used[key] = n
	}
	return used
}

func TestDecideMatchesModel(t *testing.T) {
	for _, compat := range []bool{false, true} {
		t.Run(fmt.Sprintf("compat=%v", compat), func(t *testing.T) {
			set := parse(t, strings.Replace(modelRules, "COMPAT", map[bool]string{true: "compat: envoy"}[compat], 1))
			rapid.Check(t, func(t *rapid.T) {
				e := engine.New(newMemory(), nil)
				e.SetRules(set)
				m := &model{compat: compat, used: map[string]int64{}}
				for range rapid.IntRange(1, 12).Draw(t, "requests") {
					ds, ps := drawRequest(t)
					var v engine.Result
					if err := e.Decide(t.Context(), "DOMAIN", ds, &v); err != nil {
						t.Fatal(err)
					}
					if over := m.decide(ps); v.OverLimit != over {
						t.Fatalf("%v: %s, but over should be %v", ds, textOf(&v), over)
					}
					m.compare(t, ds, ps, &v)
				}
			})
		})
	}
}

func drawRequest(t *rapid.T) ([]engine.Descriptor, []*part) {
	var ds []engine.Descriptor
	var ps []*part
	replaced := false
	for range rapid.IntRange(1, 5).Draw(t, "descriptors") {
		kind := rapid.SampledFrom([]string{"hard1", "hard2", "quota1", "quota2", "shadow", "both", "free", "instead", "unknown"}).Draw(t, "kind")
		key := kind + "=" + rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value")
		cost := rapid.Int64Range(-2, 5).Draw(t, "cost")
		limit, limited := modelLimits[kind]
		ds = append(ds, descriptor(cost, key))
		ps = append(ps, &part{kind: kind, key: key, cost: cost, limit: limit, limited: limited})
		replaced = replaced || kind == "instead"
	}
	for _, p := range ps {
		p.limited = p.limited && !(replaced && p.kind == "hard1")
	}
	return ds, ps
}

// compare fails the test if statuses or remaining units differ from the model.
func (m *model) compare(t *rapid.T, ds []engine.Descriptor, ps []*part, v *engine.Result) {
	times := map[string]int{}
	for i, p := range ps {
		if st := v.Statuses[i]; st.OverLimit != (p.limited && p.denied && !p.shadow()) {
			t.Fatalf("%v: %s, but descriptor %d is denied %v", ds, textOf(v), i, p.denied)
		}
		times[p.key]++
	}
	for i, p := range ps { // of duplicates, only the last has the final count
		if p.limited && times[p.key] == 1 && v.Statuses[i].Decision.Remaining != max(p.limit-m.used[p.key], 0) {
			t.Fatalf("%v: %s, but of %s %d are used", ds, textOf(v), p.key, m.used[p.key])
		}
	}
}
