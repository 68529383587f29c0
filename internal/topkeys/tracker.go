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

// A Tracker counts decisions by their keys, in generations that both lists begin together: otherwise a key would
// have been denied more often than it asked. It is safe for concurrent use. A nil Tracker counts nothing.
type Tracker struct {
	clock      func() time.Time
	generation time.Duration // how long a sketch counts
	seed       maphash.Seed
	counters   int // of each sketch

	allowed, refused sampler // of decisions that were allowed, and of all others, which are often few

	mu            sync.Mutex // held for sampled decisions only
	asked, denied list
	began         [2]time.Time // this generation and the previous one; zero if there was none

	limits      map[penstock.Limit]*Source // those of limits in requests
	limitsSince time.Time
	others      *Source // of limits beyond maxLimits
}

const (
	// generation is how long a sketch counts by default. The one before it is kept, so a list is
	// about the last one to two generations.
	generation = time.Minute

	// maxLimits is how many limits in requests are told apart: callers choose them.
	maxLimits = 1024
)

// New returns a tracker. Nil options are all defaults.
func New(o *Options) *Tracker {
	own := *cmp.Or(o, &Options{})
	counters := min(cmp.Or(own.Counters, DefaultCounters), MaxCounters)
	if own.Now == nil {
		own.Now = time.Now
	}
	now := own.Now()
	t := &Tracker{
		clock: own.Now, generation: cmp.Or(own.Generation, generation), seed: maphash.MakeSeed(), counters: counters,
		asked: newList(counters), denied: newList(counters), began: [2]time.Time{now}, limits: map[penstock.Limit]*Source{},
	}
	t.allowed.second, t.refused.second = now, now
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

// A Sample is a decision that is counted, with its weight.
type Sample struct {
	outcome Outcome
	weight  uint64
}

// Sample reports whether a decision with that outcome is counted, for callers that would
// otherwise prepare the arguments of [Tracker.Record] in vain.
func (t *Tracker) Sample(o Outcome) (s Sample, ok bool) {
	s = Sample{o, t.samplerOf(o).sample()}
	return s, s.weight != 0
}

// samplerOf returns the sampler of decisions with an outcome. A denial has one weight in both lists, and where few
// decisions are denied, all of them count.
func (t *Tracker) samplerOf(o Outcome) *sampler {
	if o == Allowed {
		return &t.allowed
	}
	return &t.refused
}

// RecordSample counts a decision about a key under a rule that was sampled.
func (t *Tracker) RecordSample(sample Sample, s *Source, key string, cost, remaining int64) {
	t.recordSample(t.clock(), sample, &sampledDecision{source: s, key: key, outcome: sample.outcome, cost: cost, remaining: remaining})
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
		t.recordSample(now, s, &sampledDecision{source: t.limitSource(l, now), key: key, outcome: o, cost: cost, remaining: remaining})
	}
}

func (t *Tracker) recordSample(now time.Time, s Sample, d *sampledDecision) {
	denied := s.weight
	if s.outcome == Allowed {
		denied = 0
	}
	t.record(now, d, s.weight, denied)
}

const odd = 0x9e3779b97f4a7c15

func (t *Tracker) record(now time.Time, d *sampledDecision, asked, denied uint64) {
	d.hash = d.source.hash*odd ^ maphash.String(t.seed, d.key)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance(now)
	if !d.reported { // a report is one call, however many decisions it is about
		t.samplerOf(d.outcome).pace(now, asked)
	}
	at := now.Sub(t.began[0])
	t.asked.record(at, d, asked)
	if denied != 0 {
		t.denied.record(at, d, denied)
	}
}

// advance begins a new generation when it is time. What was the present is forgotten if it is too old as well.
func (t *Tracker) advance(now time.Time) {
	past := now.Sub(t.began[0])
	if past < t.generation {
		return
	}
	keep := past < 2*t.generation
	t.asked.age(keep)
	t.denied.age(keep)
	t.allowed.age(keep)
	t.refused.age(keep)
	previous := t.began[0]
	t.began = [2]time.Time{now}
	if keep {
		t.began[1] = previous
	}
}

// Keys returns the keys with the most decisions, and those with the most denials, those in shadow mode included: of
// one rule, or of all if the rule is nil. Limits in requests are the rule "". Both are of one moment, and since one.
func (t *Tracker) Keys(rule *string) (asked, denied Summary) {
	selects := func(s *slot, _ time.Time) bool { return rule == nil || s.source.Rule == *rule }
	return t.summaries(t.counters, selects, selects)
}

func (t *Tracker) summaries(room int, asks, denies selection) (asked, denied Summary) {
	ofAsked, ofDenied := newParts(room), newParts(room)
	now := t.clock()
	t.mu.Lock()
	t.advance(now)
	ofAsked.read(&t.asked, t.began, asks)
	ofDenied.read(&t.denied, t.began, denies)
	since := t.began[0]
	if !t.began[1].IsZero() {
		since = t.began[1]
	}
	refused := t.refused.largest()
	sampling := max(t.allowed.largest(), refused)
	t.mu.Unlock()
	asked, denied = Merge(ofAsked.of[:]...), Merge(ofDenied.of[:]...)
	asked.Since, asked.Sampling = since, sampling
	denied.Since, denied.Sampling = since, refused
	Agree(&asked, &denied)
	return asked, denied
}
