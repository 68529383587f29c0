package rls

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// The model answers as envoyproxy/ratelimit does: a map of counters, to which the hits of every
// request are added before they are compared with the limit. It shares no code with the
// engine. Where that service has a fault, the model does not have it:
//
//   - colliding names: it joins the parts of a counter's name by underscores, so that
//     (a, b_x) and (a_b, x) share a counter.
//   - colliding windows: the unit is no part of a counter's name, so that an override of another
//     unit shares the counter in the first minute of an hour.
//   - lost metadata: a rule loses its metadata when a flag changes the name of its metric.
//     Metadata is not compared here.
//   - the end of the process: an override without a unit ends it. Here it is an error.
//   - an addend above 2^63 is an error there.

// A peerNode is a node of the rule tree.
type peerNode struct {
	key, value              string
	limit                   *peerLimit
	shadow, quota, shared   bool
	children                []*peerNode
	unlimited               bool
	name, replaces, pattern string
}

type peerLimit struct {
	count uint32
	unit  rules.Unit
}

// A peerStatus is the answer about one descriptor.
type peerStatus struct {
	over      bool
	limit     *peerLimit
	name      string
	remaining uint32
	reset     int64
}

type peerModel struct {
	top         []*peerNode
	counters    map[string]uint64
	quota, stop bool // QUOTA_MODE, STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
}

// A peerMatch is what applies to a descriptor.
type peerMatch struct {
	limit         *peerLimit // nil if nothing is counted
	node          *peerNode  // nil for an override, or without a rule
	counter       string
	shadow, quota bool
	name          string
}

// answer decides a request at a second of Unix time.
func (p *peerModel) answer(q *Request, now int64) (over bool, statuses []peerStatus) {
	matches := make([]peerMatch, len(q.Descriptors))
	replaced := map[string]bool{}
	for i := range q.Descriptors {
		matches[i] = p.match(&q.Descriptors[i])
		if n := matches[i].node; n != nil && n.replaces != "" {
			replaced[n.replaces] = true
		}
	}
	for i := range matches {
		m := &matches[i]
		if m.node != nil && !m.node.unlimited && m.name != "" && replaced[m.name] {
			*m = peerMatch{}
		}
	}
	held, quotas, quotasOver := p.held(q, matches, now), 0, 0
	for i := range matches {
		m := &matches[i]
		hits := q.peerHits(&q.Descriptors[i])
		if held[i] {
			hits = 0
		}
		st := p.count(m, hits, now)
		m.quota = m.quota || p.quota && (m.node == nil || !m.node.unlimited)
		if m.quota {
			quotas++
			if st.over {
				quotasOver++
			}
		}
		over = over || st.over && !m.quota
		statuses = append(statuses, st)
	}
	return over || quotas > 0 && quotas == quotasOver, statuses
}

// held returns the descriptors whose hits are not added: those that fit, if some do not.
func (p *peerModel) held(q *Request, matches []peerMatch, now int64) []bool {
	held, anyOver := make([]bool, len(matches)), false
	for i := range matches {
		m := &matches[i]
		over := m.limit != nil && p.counters[m.counterAt(now)]+q.peerHits(&q.Descriptors[i]) > uint64(m.limit.count)
		held[i], anyOver = !over, anyOver || over
	}
	if !p.stop || !anyOver {
		clear(held)
	}
	return held
}

// counterAt returns the name of the counter in the window of a second.
func (m *peerMatch) counterAt(now int64) string {
	return fmt.Sprint(m.counter, "/", m.limit.unit, "/", now/int64(m.limit.unit.Length()/time.Second))
}

func (q *Request) peerHits(d *Descriptor) uint64 {
	if d.HasHitsAddend {
		return d.HitsAddend
	}
	return uint64(max(q.HitsAddend, 1))
}

// count adds the hits and compares.
func (p *peerModel) count(m *peerMatch, hits uint64, now int64) peerStatus {
	switch {
	case m.node != nil && m.node.unlimited:
		return peerStatus{remaining: 1<<32 - 1}
	case m.limit == nil:
		return peerStatus{}
	}
	length, counter := int64(m.limit.unit.Length()/time.Second), m.counterAt(now)
	p.counters[counter] += hits
	after := p.counters[counter]
	st := peerStatus{limit: m.limit, name: m.name, reset: length - now%length}
	if after > uint64(m.limit.count) {
		st.over = !m.shadow
		return st
	}
	st.remaining = m.limit.count - uint32(after)
	return st
}

// match walks down the tree: the exact node, else the first pattern, else the node without a
// value. What was chosen is final.
func (p *peerModel) match(d *Descriptor) peerMatch {
	name := func(n *peerNode, e rules.Entry) string {
		if n != nil && n.shared && n.pattern != "" && !n.isExact(e) {
			return fmt.Sprintf("%q=%q,", e.Key, n.value)
		}
		return fmt.Sprintf("%q=%q,", e.Key, e.Value)
	}
	own, counter := "", ""
	for _, e := range d.Entries {
		own += name(nil, e)
	}
	if d.HasLimit {
		return peerMatch{limit: &peerLimit{d.Limit.RequestsPerUnit, rules.Unit(d.Limit.Unit)}, counter: own}
	}
	at := p.top
	for i, e := range d.Entries {
		n := choose(at, e)
		if n == nil {
			return peerMatch{}
		}
		counter += name(n, e)
		if i == len(d.Entries)-1 {
			return peerMatch{limit: n.limit, node: n.orNil(), counter: counter, shadow: n.shadow, quota: n.quota, name: n.name}
		}
		at = n.children
	}
	return peerMatch{}
}

// orNil returns nil for a node without a limit, which nothing applies to.
func (n *peerNode) orNil() *peerNode {
	if n.limit == nil && !n.unlimited {
		return nil
	}
	return n
}

func (n *peerNode) isExact(e rules.Entry) bool { return n.key == e.Key && n.value == e.Value }

func choose(at []*peerNode, e rules.Entry) *peerNode {
	for _, n := range at {
		if n.value != "" && n.isExact(e) {
			return n
		}
	}
	for _, n := range at {
		if before, after, ok := strings.Cut(n.pattern, "*"); ok && n.key == e.Key && len(e.Value) >= len(before)+len(after) &&
			strings.HasPrefix(e.Value, before) && strings.HasSuffix(e.Value, after) {
			return n
		}
	}
	for _, n := range at {
		if n.value == "" && n.key == e.Key {
			return n
		}
	}
	return nil
}

// A peerRandom draws rules and requests.
type peerRandom struct{ *rand.Rand }

func (r peerRandom) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r peerRandom, from ...T) T { return from[r.IntN(len(from))] }

func (r peerRandom) unit() rules.Unit {
	return pick(r, rules.Second, rules.Minute, rules.Hour, rules.Day, rules.Week, rules.Month, rules.Year)
}

// nodes draws siblings, without duplicates.
func (r peerRandom) nodes(depth int) (all []*peerNode) {
	seen := map[string]bool{}
	for range 1 + r.IntN(5) {
		n := &peerNode{key: pick(r, "a", "b"), value: pick(r, "", "", "x", "y", "x*", "*", "*z")}
		if seen[n.key+"="+n.value] {
			continue
		}
		seen[n.key+"="+n.value] = true
		if strings.Contains(n.value, "*") {
			n.pattern, n.shared = n.value, r.chance(40)
		}
		r.addLimit(n)
		if depth > 1 && r.chance(60) {
			n.children = r.nodes(depth - 1)
		}
		all = append(all, n)
	}
	return all
}

func (r peerRandom) addLimit(n *peerNode) {
	switch {
	case r.chance(15):
		return
	case r.chance(8):
		n.unlimited = true
	default:
		n.limit = &peerLimit{uint32(pick(r, 0, 1, 3, 10, 1000)), r.unit()}
	}
	n.name, n.replaces = pick(r, "", "", "one", "two"), pick(r, "", "", "", "one", "two")
	if n.name == n.replaces {
		n.replaces = ""
	}
	if !n.unlimited {
		n.shadow, n.quota = r.chance(10), r.chance(15)
	}
}

// appendYAML appends nodes as a rule file has them.
func appendYAML(b *strings.Builder, all []*peerNode, indent string) {
	for _, n := range all {
		fmt.Fprintf(b, "%s- key: %s\n", indent, n.key)
		if n.value != "" {
			fmt.Fprintf(b, "%s  value: %q\n", indent, n.value)
		}
		fmt.Fprintf(b, "%s  shadow_mode: %t\n%s  quota_mode: %t\n", indent, n.shadow, indent, n.quota)
		if n.shared {
			fmt.Fprintf(b, "%s  share_threshold: true\n", indent)
		}
		if n.limit != nil || n.unlimited {
			fmt.Fprintf(b, "%s  rate_limit:\n", indent)
			if n.unlimited {
				fmt.Fprintf(b, "%s    unlimited: true\n", indent)
			} else {
				fmt.Fprintf(b, "%s    unit: %v\n%s    requests_per_unit: %d\n", indent, n.limit.unit, indent, n.limit.count)
			}
			if n.name != "" {
				fmt.Fprintf(b, "%s    name: %s\n", indent, n.name)
			}
			if n.replaces != "" {
				fmt.Fprintf(b, "%s    replaces: [{name: %s}]\n", indent, n.replaces)
			}
		}
		if len(n.children) > 0 {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			appendYAML(b, n.children, indent+"    ")
		}
	}
}

// request draws a call: a take, a peek, a report of many hits, some with an override.
func (r peerRandom) request() *Request {
	q := &Request{Domain: "peer", HitsAddend: uint32(pick(r, 0, 0, 1, 2, 600))}
	for range 1 + r.IntN(3) {
		d := Descriptor{}
		for range 1 + r.IntN(3) {
			d.Entries = append(d.Entries, rules.Entry{Key: pick(r, "a", "a", "b", "c"), Value: pick(r, "", "x", "y", "xz", "q")})
		}
		if r.chance(50) {
			d.HasHitsAddend, d.HitsAddend = true, pick[uint64](r, 0, 0, 0, 1, 5, 600, 1<<33)
		}
		if r.chance(20) {
			d.HasLimit, d.Limit = true, Override{RequestsPerUnit: uint32(pick(r, 0, 1, 5, 20, 2000)), Unit: int32(r.unit())}
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

var peerRequests = flag.Int("peer.requests", 3000, "requests whose answers are compared with a model of envoyproxy/ratelimit")

const requestsPerRuleSet = 50

// TestCompatAnswersAsEnvoysService compares every answer with the model: overall codes, and
// code, limit, name, remaining hits and reset of each descriptor.
func TestCompatAnswersAsEnvoysService(t *testing.T) {
	seed := fixedseed.Seed()
	r := peerRandom{rand.New(rand.NewPCG(seed, 0))}
	overs := 0
	for range (*peerRequests + requestsPerRuleSet - 1) / requestsPerRuleSet {
		p := &peerModel{top: r.nodes(3), counters: map[string]uint64{}, quota: r.chance(20), stop: r.chance(30)}
		var yaml strings.Builder
		yaml.WriteString("domain: peer\ndescriptors:\n")
		appendYAML(&yaml, p.top, "  ")
		now := noon.Add(time.Duration(r.IntN(400*24)) * time.Hour)
		s := newPeerService(t, yaml.String(), &now, &engine.Options{CompatEnvoy: true, QuotaMode: p.quota, StopIncrement: p.stop})
		for range requestsPerRuleSet {
			now = now.Add(pick(r, 0, 0, 0, time.Millisecond, 700*time.Millisecond, time.Second, 40*time.Second, 50*time.Minute, 20*time.Hour, 20*24*time.Hour))
			over, differs := compareWithPeer(t, s, p, r.request(), now)
			if differs != "" {
				t.Fatalf("seed %d at %v, quota mode %v, stop %v: %s\nrules:\n%s", seed, now, p.quota, p.stop, differs, yaml.String())
			}
			if over {
				overs++
			}
		}
	}
	if overs == 0 {
		t.Error("no request was over its limit")
	}
}

func newPeerService(t *testing.T, yaml string, now *time.Time, o *engine.Options) *Service {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "peer.yaml", Text: []byte(yaml)})
	if err != nil {
		t.Fatalf("%v\n%s", err, yaml)
	}
	clock := func() time.Time { return *now }
	e := engine.New(penstock.NewMemory(&penstock.MemoryOptions{Now: clock, Tick: time.Millisecond, MaxKeys: 1000}), o)
	e.SetRules(set)
	return NewService(e, &ServiceOptions{Now: clock})
}

// compareWithPeer returns how the answers to a request differ, or "".
func compareWithPeer(t *testing.T, s *Service, p *peerModel, q *Request, now time.Time) (over bool, differs string) {
	t.Helper()
	c := Call{Request: *q}
	if err := s.Handle(t.Context(), &c, testCaller(true)); err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	over, statuses := p.answer(q, now.Unix())
	var got, want strings.Builder
	fmt.Fprintln(&got, c.Response.OverLimit)
	fmt.Fprintln(&want, over)
	for i := range statuses {
		st, w := &c.Response.Statuses[i], &statuses[i]
		fmt.Fprintln(&got, st.OverLimit, st.HasLimit, st.Limit.RequestsPerUnit, st.Limit.Unit, st.Limit.Name, st.Remaining, st.Reset)
		limit := peerLimit{}
		if w.limit != nil {
			limit = *w.limit
		}
		fmt.Fprintln(&want, w.over, w.limit != nil, limit.count, limit.unit, w.name, w.remaining, w.reset)
	}
	if got.String() == want.String() {
		return over, ""
	}
	return over, fmt.Sprintf("%+v\ngot\n%swant\n%s", *q, got.String(), want.String())
}
