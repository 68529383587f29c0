package peertest_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	types "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A random draws rules and requests, always the same from the same seed.
type random struct {
	*rand.Rand
	words
	units    map[string]bool // that rules and overrides may have
	oneLimit bool            // each counter is compared with one limit
}

// words are what keys and values are drawn from.
type words struct {
	keys, ruleValues, values []string
}

var (
	plainWords      = words{[]string{"a", "b"}, []string{"", "", "x", "y", "x*", "*", "*z", "x*z"}, []string{"", "x", "y", "xz", "xyz", "q"}}
	underscoreWords = words{[]string{"a", "b", "a_b"}, []string{"", "", "x", "b_x", "b_*", "*_y", "*", "x_*z", "_"}, []string{"", "x", "b_x", "b_y", "x_z", "_", "_y", "b_x_y"}}
)

func (r *random) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r *random, from ...T) T { return from[r.IntN(len(from))] }

// units are those of limits, with their seconds.
var units = []struct {
	name    string
	seconds int64
}{{"SECOND", 1}, {"MINUTE", 60}, {"HOUR", 3600}, {"DAY", 86400}, {"WEEK", 604800}, {"MONTH", 2592000}, {"YEAR", 31536000}}

// distinctUnits returns the units that can be told apart for ten minutes: the peer's counters are named by the
// second in which a window begins, so an override shares the counter of a window of another unit that begins with
// it. Seconds are told apart from minutes by the test, which does not ask in the first one of a minute.
func distinctUnits(now time.Time) map[string]bool {
	distinct := map[string]bool{"YEAR": true}
	for i, u := range units[1 : len(units)-1] {
		distinct[u.name] = true
		for t := now.Unix(); t < now.Unix()+600; t += 10 {
			for _, longer := range units[i+2:] {
				if t/u.seconds*u.seconds == t/longer.seconds*longer.seconds {
					distinct[u.name] = false
				}
			}
		}
	}
	return distinct
}

func (r *random) unit() string {
	if u := units[r.IntN(len(units))].name; r.units[u] {
		return u
	}
	return "YEAR"
}

// nodes draws siblings, without duplicates.
func (r *random) nodes(depth int) (all []any) {
	seen := map[string]bool{}
	for range 1 + r.IntN(5) {
		key, value := pick(r, r.keys...), pick(r, r.ruleValues...)
		joined := key
		if value != "" {
			joined += "_" + value
		}
		if seen[joined] {
			continue
		}
		seen[joined] = true
		n := map[string]any{"key": key, "value": value, "detailed_metric": r.chance(15), "value_to_metric": r.chance(15)}
		if strings.Contains(value, "*") {
			n["share_threshold"] = r.chance(40)
		}
		r.addLimit(n)
		if depth > 1 && r.chance(60) {
			n["descriptors"] = r.nodes(depth - 1)
		}
		all = append(all, n)
	}
	return all
}

func (r *random) addLimit(n map[string]any) {
	limit := map[string]any{}
	switch {
	case r.chance(15):
		return
	case r.chance(8):
		limit["unlimited"] = true
	default:
		limit["requests_per_unit"], limit["unit"] = pick(r, 0, 1, 3, 10, 1000), r.unit()
		n["shadow_mode"], n["quota_mode"] = r.chance(10), r.chance(15)
	}
	name, replaces := pick(r, "", "", "one", "two"), pick(r, "", "", "", "one", "two")
	if name != "" {
		limit["name"] = name
	}
	if replaces != "" && replaces != name {
		limit["replaces"] = []any{map[string]any{"name": replaces}}
	}
	n["rate_limit"] = limit
	if r.chance(40) { // nested maps have names of their own: the peer changes its rules when it merges them
		n["metadata"] = map[string]any{"first": r.IntN(1000), pick(r, "p", "q"): []any{true, "text"}, "m" + r.name(): map[string]any{"deep": 1.5}}
	}
}

func (r *random) name() string { return string(rune('a'+r.IntN(26))) + string(rune('a'+r.IntN(26))) }

// batch draws a rule file, and requests. JSON is YAML, too.
func (r *random) batch() batch {
	seconds := r.chance(20)
	r.units["SECOND"] = seconds
	return batch{map[string]any{"descriptors": r.nodes(3)}, r.requests(), seconds}
}

func fileOf(rules map[string]any, domain string) []byte {
	rules["domain"] = domain
	text, err := json.MarshalIndent(rules, "", " ")
	if err != nil {
		panic(err)
	}
	return text
}

// requests draws the calls of a batch.
func (r *random) requests() (all []*pb.RateLimitRequest) {
	counters := map[string]string{}
	for range requestsPerRuleSet {
		all = append(all, r.request(counters))
	}
	return all
}

// request draws a call: a take, a peek, a report of many hits, some with an override.
func (r *random) request(counters map[string]string) *pb.RateLimitRequest {
	q := &pb.RateLimitRequest{HitsAddend: pick[uint32](r, 0, 0, 1, 2, 600)}
	for range 1 + r.IntN(3) {
		d := &common.RateLimitDescriptor{Entries: r.entries(counters)}
		if r.chance(50) {
			d.HitsAddend = wrapperspb.UInt64(pick[uint64](r, 0, 0, 0, 1, 5, 600, 1<<33))
		}
		switch override := r.chance(20); {
		case override && r.oneLimit: // if a counter is over one limit, the peer's local cache takes it to be over all
			if d.Entries[0].Key == "c" { // of which there is no rule
				d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: types.RateLimitUnit_YEAR}
			}
		case override:
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: pick[uint32](r, 0, 1, 5, 20, 2000), Unit: types.RateLimitUnit_YEAR}
			if unit := types.RateLimitUnit_value[r.unit()]; unit != 0 { // they have no week
				d.Limit.Unit = types.RateLimitUnit(unit)
			}
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// entries draws entries. The peer joins them by underscores for the name of a counter, so that those of different
// entries can meet; callers choose values, so that is not done here, and no such entries are drawn.
func (r *random) entries(counters map[string]string) (all []*common.RateLimitDescriptor_Entry) {
	joined, apart := "", ""
	for range 1 + r.IntN(3) {
		e := &common.RateLimitDescriptor_Entry{Key: pick(r, append(r.keys, "a", "c")...), Value: pick(r, r.values...)}
		joined += e.Key + "_" + e.Value + "_"
		apart += e.Key + "=" + e.Value + ","
		all = append(all, e)
	}
	if before, ok := counters[joined]; ok && before != apart {
		return r.entries(counters)
	}
	counters[joined] = apart
	return all
}
