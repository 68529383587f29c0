package replay

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
)

// A grid finds out which limits would never deny a key. For a bucket that is the largest backlog of the
// key's requests at each of some rates: a bucket with a burst of that size is never empty. For a window it is
// the most that is ever used of it, if nothing is denied.
type grid struct {
	limit  penstock.Limit
	counts []int64 // of a bucket's rates, per period
	window *probe  // of a window
}

// A need is what a key needs.
type need struct {
	last   int64
	levels []float64 // of backlogs, one for each count
	most   []int32   // the largest so far, in whole units; of a window one number
}

// A probe is a window that denies nothing.
type probe struct {
	limit  penstock.Limit
	memory *penstock.Memory
	now    time.Time
}

func newProbe(l penstock.Limit, maxKeys int) *probe {
	p := &probe{limit: l}
	for _, most := range []int64{1e9, 1e6, 1e4, l.Count} { // the most that the algorithm can count
		if p.limit.Count = most; p.limit.Validate() == nil {
			break
		}
	}
	p.memory = penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: maxKeys, Now: func() time.Time { return p.now }})
	return p
}

// used takes units of a key, and returns how many of the window are used then.
func (p *probe) used(key string, at, cost int64) int32 {
	p.now = time.Unix(0, at)
	d, err := p.memory.Take(context.Background(), penstock.Request{Key: key, Limit: p.limit, Cost: cost})
	if err != nil || !d.Allowed {
		return int32(p.limit.Count)
	}
	return int32(p.limit.Count - d.Remaining)
}

// gridDecades is how far counts reach above and below that of the limit.
const gridDecades = 2

// roundCounts are the counts that are tried in each decade.
var roundCounts = []float64{1, 1.5, 2, 3, 4, 5, 7}

func newGrid(l penstock.Limit, maxKeys int) *grid {
	g := &grid{limit: l.Normal()}
	if l.IsBucket() {
		g.counts = countsAround(g.limit.Count)
	} else {
		g.window = newProbe(l, maxKeys)
	}
	return g
}

// countsAround returns round numbers around a count, in their order.
func countsAround(count int64) (counts []int64) {
	first := math.Floor(math.Log10(float64(max(count, 1)))) - gridDecades
	for decade := first; decade <= first+2*gridDecades; decade++ {
		for _, c := range roundCounts {
			counts = append(counts, int64(c*math.Pow(10, decade)))
		}
	}
	counts = append(counts, count)
	slices.Sort(counts)
	counts = slices.Compact(counts)
	return slices.DeleteFunc(counts, func(c int64) bool { return c < 1 })
}

// rounding is how far a backlog may be above a whole number because of the arithmetic: less than what
// drains in a nanosecond at most rates.
const rounding = 1e-9

// add adds a request to what a key needs.
func (g *grid) add(n *need, key string, at, cost int64) *need {
	if n == nil {
		n = &need{last: at, levels: make([]float64, len(g.counts)), most: make([]int32, max(len(g.counts), 1))}
	}
	if g.window != nil {
		n.most[0] = max(n.most[0], g.window.used(key, at, cost))
		return n
	}
	periods := float64(at-n.last) / float64(g.limit.Period)
	for i, count := range g.counts {
		level := max(n.levels[i]-periods*float64(count), 0) + float64(cost)
		n.levels[i] = level
		n.most[i] = max(n.most[i], int32(min(math.Ceil(level-rounding), math.MaxInt32)))
	}
	n.last = at
	return n
}

// A Suggestion is the smallest limit under which a share of the keys is never denied, or keys with a share of the requests.
type Suggestion struct {
	Limit string  `json:"limit"`
	Share float64 `json:"share"`
	Of    string  `json:"of"`        // keys, or requests
	Now   float64 `json:"share_now"` // of the keys that the rule has not denied

	// All means that no key is left out, not even the one that needs the most: the share is too large for that.
	All bool `json:"all_keys"`

	// Curve is, for a bucket, which burst each rate needs.
	Curve []Point `json:"curve,omitempty"`
}

// A Point is a rate, as a count per period, and the burst that it needs.
type Point struct {
	Count int64  `json:"count"`
	Burst int64  `json:"burst"`
	Limit string `json:"limit"`
	all   bool   // see Suggestion
}

// suggest returns the smallest limit for a share of the keys or requests, or nil if there are none.
func (r *ruleStatistics) suggest(o *Options) *Suggestion {
	if r.grid == nil || len(r.keys) == 0 {
		return nil
	}
	total, denied := int64(0), int64(0)
	for _, k := range r.keys {
		if total += k.weight(o.SuggestByRequests); k.denied > 0 {
			denied += k.weight(o.SuggestByRequests)
		}
	}
	s := &Suggestion{Share: o.Suggest, Of: "keys", Now: 1 - float64(denied)/float64(total)}
	if o.SuggestByRequests {
		s.Of = "requests"
	}
	if r.grid.window != nil {
		count, all := r.quantile(0, o.Suggest, o.SuggestByRequests)
		s.Limit, s.All = r.grid.text(count, 0), all
		return s
	}
	for i, count := range r.grid.counts {
		burst, all := r.quantile(i, o.Suggest, o.SuggestByRequests)
		s.Curve = append(s.Curve, Point{count, burst, r.grid.text(count, burst), all})
	}
	s.Curve = trim(s.Curve)
	s.Limit, s.All = best(s.Curve).Limit, best(s.Curve).all
	return s
}

// quantile returns what a share of the keys needs at most, and whether that is what all need. By requests, each key counts as
// often as it was seen.
func (r *ruleStatistics) quantile(i int, share float64, byRequests bool) (units int64, isAll bool) {
	type keyNeed struct{ units, weight int64 }
	all, total := make([]keyNeed, len(r.keys)), int64(0)
	for j, k := range r.keys {
		all[j] = keyNeed{int64(k.need.most[i]), k.weight(byRequests)}
		total += all[j].weight
	}
	slices.SortFunc(all, func(a, b keyNeed) int { return cmp.Compare(a.units, b.units) })
	wanted, last := int64(math.Ceil(share*float64(total))), len(all)-1
	for _, n := range all[:last] {
		if wanted -= n.weight; wanted <= 0 {
			return n.units, false
		}
	}
	return all[last].units, true
}

func (k *keyStatistics) weight(byRequests bool) int64 {
	if byRequests {
		return k.requests
	}
	return 1
}

// best returns the smallest rate whose burst is no more than the units of one period.
func best(curve []Point) Point {
	for _, p := range curve {
		if p.Burst <= p.Count {
			return p
		}
	}
	return curve[len(curve)-1]
}

// trim drops the rates at the end that need the same burst, and those at the beginning that need more than
// a thousand times the last.
func trim(curve []Point) []Point {
	last := curve[len(curve)-1].Burst
	end := slices.IndexFunc(curve, func(p Point) bool { return p.Burst == last })
	begin := slices.IndexFunc(curve, func(p Point) bool { return p.Burst <= 1000*last })
	return curve[begin : end+1]
}

// text returns the limit with other numbers. A burst of 0 is none.
func (g *grid) text(count, burst int64) string {
	l := g.limit
	l.Name, l.Count, l.Burst = "", count, burst
	if burst == count {
		l.Burst = 0
	}
	return l.String()
}
