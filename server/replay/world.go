package replay

import (
	"context"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A world is the daemon's engine under one set of rules, in virtual time.
type world struct {
	set    *rules.Set
	engine *engine.Engine
	memory *penstock.Memory
	now    time.Time

	twin     *world              // which has decided the same request by the same rules; may be nil
	limiters []*penstock.Limiter // by the index of the rule; nil if it takes the engine to decide by it

	domain string           // of requests of logs
	forms  []descriptorForm // of their descriptors
	ds     []engine.Descriptor
	result engine.Result
	key    []byte
	rule   *rules.Rule // of the only descriptor, if its limit has decided; then key is its key

	denied   int64   // requests
	deniedBy []int64 // by the index of the rule; those of shadow rules, too
	failed   int64
	firstErr error
}

// A descriptorForm is a descriptor that rules ask for: the keys of a path of nodes, in their order.
type descriptorForm struct {
	entries []rules.Entry
	values  []int // of the request
}

func newWorld(set *rules.Set, maxKeys int) *world {
	w := &world{set: set, deniedBy: make([]int64, len(set.Rules()))}
	w.memory = penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: maxKeys, MaxBytes: int64(maxKeys) << 10, Now: func() time.Time { return w.now }})
	w.engine = engine.New(w.memory, nil)
	w.engine.SetRules(set)
	w.limiters = make([]*penstock.Limiter, len(set.Rules()))
	for i, r := range set.Rules() {
		domain, _ := r.Path()
		if engine.IsPlain(r) && r.Also == nil && r.KeepFree == 0 && !set.Domain(domain).CompatEnvoy {
			w.limiters[i], _ = penstock.New(w.memory, r.Limit) // nil beside an error, which the engine returns then
		}
	}
	return w
}

// useLogs makes the world decide requests of logs by the rules of a domain. Slots has the index of each
// entry's value.
func (w *world) useLogs(domain string, slots map[string]int) {
	w.domain = domain
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
	w.ds = w.ds[:0]
	for i := range w.forms {
		if t := &w.forms[i]; t.fill(values) {
			w.ds = append(w.ds, engine.Descriptor{Entries: t.entries, Cost: 1})
		}
	}
	return w.ds
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

// decide decides a request, and reports whether it is denied. The result is valid if ok.
func (w *world) decide(at int64, domain string, ds []engine.Descriptor) (over, ok bool) {
	if len(ds) == 0 {
		return false, false
	}
	w.now = time.Unix(0, at)
	if err := w.decideNow(domain, ds); err != nil {
		if w.failed++; w.firstErr == nil {
			w.firstErr = err
		}
		return false, false
	}
	if w.result.OverLimit {
		w.denied++
	}
	for i := range w.result.Statuses {
		if s := &w.result.Statuses[i]; isDenied(s) {
			w.deniedBy[s.Rule.Index]++
		}
	}
	return w.result.OverLimit, true
}

// decideNow decides a request. One descriptor under a rule that decides by its limit alone needs no engine: half of the
// time of a replay is saved.
func (w *world) decideNow(domain string, ds []engine.Descriptor) error {
	w.rule = nil
	if w.twin != nil && w.twin.rule != nil {
		return w.takeFrom(w.twin.rule, viewOf(w.twin.key), ds[0].Cost)
	}
	if len(ds) == 1 && ds[0].Cost > 0 {
		if rule, key := w.keyOf(domain, &ds[0]); rule != nil && w.limiters[rule.Index] != nil {
			return w.takeFrom(rule, viewOf(key), ds[0].Cost)
		}
	}
	return w.engine.Decide(context.Background(), domain, ds, &w.result)
}

// takeFrom decides by the limit of a rule.
func (w *world) takeFrom(rule *rules.Rule, key string, cost int64) error {
	q := w.limiters[rule.Index].Request(key)
	q.Cost = cost
	d, err := w.memory.Take(context.Background(), q)
	w.rule = rule
	w.result.OverLimit = !d.Allowed
	w.result.Statuses = append(w.result.Statuses[:0], engine.Status{Rule: rule, Decision: d, OverLimit: !d.Allowed})
	return err
}

// viewOf returns the bytes as a text that changes with them. A memory store keeps no key.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// isDenied reports whether a rule denies its descriptor, or would if it were not in shadow mode.
func isDenied(s *engine.Status) bool {
	return s.Rule != nil && !s.Rule.Unlimited && !s.Decision.Allowed
}

// keyOf returns the key under which a descriptor is counted, and the rule that it matches. It is valid until the
// next call.
func (w *world) keyOf(domain string, d *engine.Descriptor) (*rules.Rule, []byte) {
	if w.rule != nil { // decideNow has asked already
		return w.rule, w.key
	}
	rule, key := w.set.Domain(domain).Match(d.Entries, w.key[:0])
	w.key = rules.ShortenKey(key, 0)
	return rule, w.key
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
