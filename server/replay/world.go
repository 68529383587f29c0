package replay

import (
	"cmp"
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
	"github.com/penstock-io/penstock/server/engine"
)

// A world is the daemon's engine under one set of rules, in virtual time.
type world struct {
	set      *rules.Set
	limiters []*penstock.Limiter // by the index of the rule; nil if it takes the engine to decide by it
	readings []*reading

	forms   []descriptorForm // of the descriptors of requests of logs
	sent    []engine.Descriptor
	domain  string // of the request …
	ds      []engine.Descriptor
	matches []match // … of its descriptors

	failed   int64
	firstErr error
}

// The readings. Requests of logs with whole seconds are decided as if they came evenly spread over their second and, by a
// second reading, as if all came at once.
const (
	spread = iota
	atOnce
)

// A reading is what is decided if requests have come at certain times.
type reading struct {
	engine   *engine.Engine
	memory   *penstock.Memory
	now      time.Time
	result   engine.Result
	denied   int64   // requests
	deniedBy []int64 // by the index of the rule; those of shadow rules, too
}

// A match is the rule of a descriptor that takes units, or nil, and the key under which it is counted.
type match struct {
	rule *rules.Rule
	key  []byte
	cost int64
}

// A descriptorForm is a descriptor that rules ask for: the keys of a path of nodes, in their order.
type descriptorForm struct {
	entries []rules.Entry
	values  []int // of the request
}

func newWorld(set *rules.Set, maxKeys, readings int) *world {
	w := &world{set: set, limiters: make([]*penstock.Limiter, len(set.Rules()))}
	for range readings {
		w.readings = append(w.readings, newReading(set, maxKeys))
	}
	for i, r := range set.Rules() {
		domain, _ := r.Path()
		if engine.IsPlain(r) && r.Also == nil && r.KeepFree == 0 && !set.Domain(domain).CompatEnvoy {
			w.limiters[i], _ = penstock.New(w.readings[0].memory, r.Limit) // nil beside an error, which the engine returns then
		}
	}
	return w
}

func newReading(set *rules.Set, maxKeys int) *reading {
	v := &reading{deniedBy: make([]int64, len(set.Rules()))}
	v.memory = penstock.NewMemory(&penstock.MemoryOptions{
		MaxKeys: maxKeys, MaxBytes: int64(maxKeys) << 10, Now: func() time.Time { return v.now },
	})
	v.engine = engine.New(v.memory, nil)
	v.engine.SetRules(set)
	return v
}

// useLogs makes the world decide requests of logs by the rules of a domain. Slots has the index of each
// entry's value.
func (w *world) useLogs(domain string, slots map[string]int) {
	for _, keys := range keyLists(w.set, domain) {
		t := descriptorForm{}
		for _, key := range keys {
			t.entries = append(t.entries, rules.Entry{Key: key})
			t.values = append(t.values, slots[key])
		}
		w.forms = append(w.forms, t)
	}
}

// descriptors returns those of a request with these values. One that lacks a value is not sent, as by Envoy.
func (w *world) descriptors(values []string) []engine.Descriptor {
	w.sent = w.sent[:0]
	for i := range w.forms {
		if t := &w.forms[i]; t.fill(values) {
			w.sent = append(w.sent, engine.Descriptor{Entries: t.entries, Cost: 1})
		}
	}
	return w.sent
}

func (t *descriptorForm) fill(values []string) bool {
	for i, slot := range t.values {
		if values[slot] == "" {
			return false
		}
		t.entries[i].Value = values[slot]
	}
	return true
}

// match finds the rules of a request to decide.
func (w *world) match(domain string, ds []engine.Descriptor) {
	w.domain, w.ds = domain, ds
	w.matches = slices.Grow(w.matches[:0], len(ds))[:len(ds)] // with the memory of earlier keys
	for i := range ds {
		m := &w.matches[i]
		m.rule, m.key, m.cost = nil, m.key[:0], ds[i].Cost
		if m.cost > 0 {
			m.rule, m.key = w.set.Domain(domain).Match(ds[i].Entries, m.key)
			m.key = rules.ShortenKey(m.key, 0)
		}
	}
}

// decide decides the request by a reading, and reports whether it is denied. The result is valid if ok.
func (w *world) decide(i int, q *accesslog.Request) (over, ok bool) {
	if len(w.ds) == 0 {
		return false, false
	}
	v := w.readings[i]
	v.now = time.Unix(0, [...]int64{spread: q.Spread, atOnce: q.Time}[i])
	if err := w.decideNow(v); err != nil {
		if i == spread { // a request is counted once
			w.fail(err)
		}
		return false, false
	}
	if v.result.OverLimit {
		v.denied++
	}
	for i := range v.result.Statuses {
		if s := &v.result.Statuses[i]; isDenied(s) {
			v.deniedBy[s.Rule.Index]++
		}
	}
	return v.result.OverLimit, true
}

// fail counts a request that cannot be decided.
func (w *world) fail(err error) {
	w.failed++
	w.firstErr = cmp.Or(w.firstErr, err)
}

// decideNow decides the request. One descriptor under a rule that decides by its limit alone needs no engine: half of the
// time of a replay is saved.
func (w *world) decideNow(v *reading) error {
	m := &w.matches[0]
	if len(w.ds) > 1 || m.rule == nil || w.limiters[m.rule.Index] == nil {
		return v.engine.Decide(context.Background(), w.domain, w.ds, &v.result)
	}
	q := w.limiters[m.rule.Index].Request(viewOf(m.key))
	q.Cost = m.cost
	d, err := v.memory.Take(context.Background(), q)
	v.result.OverLimit = !d.Allowed
	v.result.Statuses = append(v.result.Statuses[:0], engine.Status{Rule: m.rule, Decision: d, OverLimit: !d.Allowed})
	return err
}

// viewOf returns the bytes as a text that changes with them. A memory store keeps no key.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// isDenied reports whether a rule denies its descriptor, or would if it were not in shadow mode.
func isDenied(s *engine.Status) bool {
	return s.Rule != nil && !s.Rule.Unlimited && !s.Decision.Allowed
}

// keyLists returns the different lists of keys that the rules of a domain have.
func keyLists(set *rules.Set, domain string) (lists [][]string) {
	seen := map[string]bool{}
	for _, r := range set.Rules() {
		of, nodes := r.Path()
		if of != domain {
			continue
		}
		keys := make([]string, len(nodes))
		for i, n := range nodes {
			keys[i], nodes[i].Value = n.Key, ""
		}
		if id := string(rules.AppendKey(nil, nodes)); !seen[id] {
			seen[id] = true
			lists = append(lists, keys)
		}
	}
	return lists
}
