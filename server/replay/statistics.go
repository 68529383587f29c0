package replay

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/rules"
)

// statistics count what happens to the keys of rules.
type statistics struct {
	rules    []ruleStatistics // by the index of the rule
	timeline timeline
	keys     int // that are counted
	maxKeys  int
	bytes    int // of their texts
}

type ruleStatistics struct {
	requests, denied, newly int64
	byHash                  map[uint64]*keyStatistics // of keys, which are told apart by a hash of 64 bits
	keys                    []*keyStatistics          // in the order in which they were seen
	others                  int64                     // requests of keys that are not counted, because there are too many …
	othersDenied            int64                     // … and how many of them were denied
	grid                    *grid                     // nil if no limit is suggested
}

// A keyStatistics is what happened to a key.
type keyStatistics struct {
	key                     string
	requests, denied, newly int64
	atOnce                  int64 // denials, if all requests of a second came at once
	first, last             int64 // denials
	need                    *need // nil if no limit is suggested
}

// A counted is a descriptor that was decided.
type counted struct {
	rule, deniedBy *rules.Rule // deniedBy is nil, the rule, or a further limit of the rule
	key            []byte
	at, atOnce     int64
	cost           int64
	newly          bool
}

var seed = maphash.MakeSeed()

func hashOf(key []byte) uint64 { return maphash.Bytes(seed, key) }

// averageKey is how long keys may be on average.
const averageKey = 256

func newStatistics(o *Options) statistics {
	all := o.Rules.Rules()
	s := statistics{rules: make([]ruleStatistics, len(all)), maxKeys: o.MaxKeys}
	s.timeline.rows = make([][columns]Bucket, len(all))
	for i, r := range all {
		s.rules[i].byHash = map[uint64]*keyStatistics{}
		if o.Suggest > 0 && !r.Unlimited && !r.Limit.HasPermits() {
			s.rules[i].grid = newGrid(r.Limit, o.MaxKeys)
		}
	}
	return s
}

func (s *statistics) add(c *counted) {
	for rule := c.rule; rule != nil; rule = rule.Also {
		s.addTo(&s.rules[rule.Index], rule == c.deniedBy, c)
		s.timeline.add(rule.Index, c.at, rule == c.deniedBy)
	}
}

func (s *statistics) addTo(r *ruleStatistics, denied bool, c *counted) {
	r.requests++
	if denied {
		r.denied++
	}
	hash := hashOf(c.key)
	key := r.byHash[hash]
	switch {
	case key != nil:
	case s.hasRoom(len(c.key)):
		key = &keyStatistics{key: string(c.key)}
		r.byHash[hash], r.keys = key, append(r.keys, key)
	default:
		if r.others++; denied {
			r.othersDenied++
		}
		return
	}
	key.requests++
	if r.grid != nil {
		key.need = r.grid.add(key.need, key.key, c.atOnce, c.cost)
	}
	if !denied {
		return
	}
	if key.denied++; key.denied == 1 {
		key.first = c.at
	}
	key.last = c.at
	if c.newly {
		key.newly++
		r.newly++
	}
}

// addAtOnce counts a denial of a key by the second reading.
func (s *statistics) addAtOnce(rule *rules.Rule, key []byte) {
	if k := s.rules[rule.Index].byHash[hashOf(key)]; k != nil {
		k.atOnce++
	}
}

// hasRoom reports whether there is room for one more key of so many bytes, and takes it.
func (s *statistics) hasRoom(bytes int) bool {
	if s.keys >= s.maxKeys || s.bytes >= s.maxKeys*averageKey {
		return false
	}
	s.keys++
	s.bytes += bytes
	return true
}

// mostDenied returns the keys with the most denials, and how many were denied at all.
func (r *ruleStatistics) mostDenied(most int) (top []Key, deniedKeys int64) {
	denied := slices.DeleteFunc(slices.Clone(r.keys), func(k *keyStatistics) bool { return k.denied == 0 })
	slices.SortFunc(denied, func(a, b *keyStatistics) int {
		return cmp.Or(cmp.Compare(b.newly, a.newly), cmp.Compare(b.denied, a.denied), strings.Compare(a.key, b.key))
	})
	for _, k := range denied[:min(len(denied), most)] {
		top = append(top, Key{
			Key: k.key, Requests: k.requests, Denied: k.denied, NewlyDenied: k.newly,
			First: time.Unix(0, k.first).UTC(), Last: time.Unix(0, k.last).UTC(),
		})
	}
	return top, int64(len(denied))
}

// columns is how many columns a timeline has.
const columns = 64

// A Bucket is what happened in one column of a timeline.
type Bucket struct {
	Requests int64 `json:"requests"`
	Denied   int64 `json:"denied"`
}

// A timeline counts requests by time. How long the logs are is known at their end, so columns become twice as
// long whenever there are too few.
type timeline struct {
	start int64
	width int64 // of a column
	rows  [][columns]Bucket
}

func (t *timeline) add(row int, at int64, denied bool) {
	if t.width == 0 {
		t.start, t.width = at-at%int64(time.Second), int64(time.Second)
	}
	i := (at - t.start) / t.width
	for ; i >= columns; i = (at - t.start) / t.width {
		t.double()
	}
	b := &t.rows[row][max(i, 0)]
	b.Requests++
	if denied {
		b.Denied++
	}
}

func (t *timeline) double() {
	t.width *= 2
	for i := range t.rows {
		row := &t.rows[i]
		for j := range columns / 2 {
			row[j] = Bucket{row[2*j].Requests + row[2*j+1].Requests, row[2*j].Denied + row[2*j+1].Denied}
		}
		clear(row[columns/2:])
	}
}

// used returns the columns of a row until that of a time.
func (t *timeline) used(row int, last int64) []Bucket {
	if t.width == 0 {
		return nil
	}
	return slices.Clone(t.rows[row][:min((last-t.start)/t.width+1, columns)])
}
