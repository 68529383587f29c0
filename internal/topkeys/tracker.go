// Package topkeys finds the keys with the most decisions, and with the most denials, of the
// last minutes. It needs bounded memory whatever the keys are, and allocates nothing for a
// decision.
package topkeys

import (
	"cmp"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// DefaultCounters is enough to find every key with a 4,096th of the decisions.
const DefaultCounters = 4096

// MaxCounters is the most that a [Tracker] can have: as many slots as a uint16 can name, with room for 0 in the index.
const MaxCounters = 1<<16 - 1

// An Outcome is the outcome of a decision.
type Outcome uint8

// The outcomes. A shadowed decision was allowed, and would have been denied outside shadow
// mode.
const (
	Allowed Outcome = iota
	Denied
	Shadowed
)

// String returns the name of the outcome.
func (o Outcome) String() string { return [...]string{"allowed", "denied", "shadowed"}[o] }

// Options configure a [Tracker].
type Options struct {
	// Counters is how many keys each list can hold. Default: DefaultCounters.
	Counters int

	// Generation is for how long keys are counted before the count begins anew; the one before it is
	// kept. Default: a minute.
	Generation time.Duration

	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// A Tracker counts decisions by their keys. It is safe for concurrent use. A nil Tracker
// counts nothing.
type Tracker struct {
	clock         func() time.Time
	seed          maphash.Seed
	counters      int // of each sketch
	asked, denied *list

	mu          sync.Mutex
	limits      map[penstock.Limit]*Source // those of limits in requests
	limitsSince time.Time
	others      *Source // of limits beyond maxLimits
}

// maxLimits is how many limits in requests are told apart: callers choose them.
const maxLimits = 1024

// New returns a tracker. Nil options are all defaults.
func New(o *Options) *Tracker {
	own := *cmp.Or(o, &Options{})
	own.Counters = min(cmp.Or(own.Counters, DefaultCounters), MaxCounters)
	own.Generation = cmp.Or(own.Generation, generation)
	if own.Now == nil {
		own.Now = time.Now
	}
	now := own.Now()
	t := &Tracker{
		clock: own.Now, seed: maphash.MakeSeed(), counters: own.Counters, limits: map[penstock.Limit]*Source{},
		asked: newList(&own, now), denied: newList(&own, now),
	}
	t.others = t.NewSource("")
	return t
}

// A Source is what keys are counted under: a rule, or a limit that requests bring.
type Source struct {
	Rule  string // "" for a limit in requests
	Limit string // text of such a limit; "" for a rule, and if there are too many limits to tell them apart
	hash  uint64
}

// NewSource returns the source of a rule. Sources of the same rule share their counts. A nil
// tracker returns nil.
func (t *Tracker) NewSource(rule string) *Source {
	if t == nil {
		return nil
	}
	return &Source{Rule: rule, hash: maphash.String(t.seed, rule)}
}

// limitSource returns the source of a limit in requests. Limits are forgotten after a
// generation, so that those of a flood do not stay.
func (t *Tracker) limitSource(l *penstock.Limit, now time.Time) *Source {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.limits[*l]; s != nil {
		return s
	}
	if len(t.limits) >= maxLimits && now.Sub(t.limitsSince) >= generation {
		clear(t.limits)
		t.limitsSince = now
	}
	if len(t.limits) >= maxLimits {
		return t.others
	}
	own := *l
	own.Name, own.Zone = strings.Clone(l.Name), strings.Clone(l.Zone) // the caller may reuse their memory
	s := &Source{Limit: own.String(), hash: maphash.Comparable(t.seed, own)}
	t.limits[own] = s
	return s
}

// Record counts a decision about a key under a rule.
func (t *Tracker) Record(s *Source, key string, o Outcome, cost, remaining int64) {
	if t == nil {
		return
	}
	if sample, ok := t.Sample(o); ok {
		t.RecordSample(sample, s, key, cost, remaining)
	}
}

// A Sample is a decision that is counted, with its weights in the two lists.
type Sample struct {
	outcome       Outcome
	asked, denied uint64
}

// Sample reports whether a decision with that outcome is counted, for callers that would
// otherwise prepare the arguments of [Tracker.Record] in vain.
func (t *Tracker) Sample(o Outcome) (s Sample, ok bool) {
	s.outcome, s.asked = o, t.asked.sample()
	if o != Allowed { // sampled apart: where few decisions are denied, all of them count
		s.denied = t.denied.sample()
	}
	return s, s.asked|s.denied != 0
}

// RecordSample counts a decision about a key under a rule that was sampled.
func (t *Tracker) RecordSample(sample Sample, s *Source, key string, cost, remaining int64) {
	d := sampledDecision{source: s, key: key, outcome: sample.outcome, cost: cost, remaining: remaining}
	t.record(t.clock(), &d, sample.asked, sample.denied)
}

// RecordReport counts decisions about a key under a rule that were made elsewhere and are
// reported together. All of them count, and none is kept as one of the last.
func (t *Tracker) RecordReport(s *Source, key string, allowed, denied uint64) {
	if t == nil || allowed+denied == 0 {
		return
	}
	t.record(t.clock(), &sampledDecision{source: s, key: key, reported: true}, allowed+denied, denied)
}

// RecordLimit counts a decision about a key under a limit that the request brought.
func (t *Tracker) RecordLimit(l *penstock.Limit, key string, o Outcome, cost, remaining int64) {
	if t == nil {
		return
	}
	if s, ok := t.Sample(o); ok {
		now := t.clock()
		d := sampledDecision{source: t.limitSource(l, now), key: key, outcome: o, cost: cost, remaining: remaining}
		t.record(now, &d, s.asked, s.denied)
	}
}

const odd = 0x9e3779b97f4a7c15

func (t *Tracker) record(now time.Time, d *sampledDecision, asked, denied uint64) {
	d.hash = d.source.hash*odd ^ maphash.String(t.seed, d.key)
	if d.weight = asked; asked != 0 {
		t.asked.record(now, d)
	}
	if d.weight = denied; denied != 0 {
		t.denied.record(now, d)
	}
}

// Asked returns the keys with the most decisions, of one rule or of all if the rule is nil.
// Limits in requests are the rule "".
func (t *Tracker) Asked(rule *string) Summary { return t.summary(t.asked, rule) }

// Denied returns the keys with the most denials, those in shadow mode included.
func (t *Tracker) Denied(rule *string) Summary { return t.summary(t.denied, rule) }

func (t *Tracker) summary(l *list, rule *string) Summary {
	return l.summary(t.clock(), t.counters, func(s *slot, _ time.Time) bool { return rule == nil || s.source.Rule == *rule })
}
