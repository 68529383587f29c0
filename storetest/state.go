package storetest

import (
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// A state is what is remembered about a key under a limit. One of the six is in
// use; the zero state is as good as new under any limit.
type state struct {
	until   int64 // the state matters
	bucket  algorithm.Bucket
	drained int64
	counter algorithm.Counter
	slide   algorithm.Slide
	ring    algorithm.Ring
	log     algorithm.Log
}

// decide returns what becomes of the state, and the decision.
func (s state) decide(now int64, r penstock.Request) (state, penstock.Decision) {
	limit := normal(r.Limit)
	ask := algorithm.Ask{Cost: r.Cost, AtMost: r.AtMost, MaxDelay: int64(r.MaxDelay)}
	var a algorithm.Answer
	switch limit.Algorithm {
	case penstock.TokenBucket:
		b := algorithm.TokenBucket{Rate: rate(limit)}
		s.bucket, a = b.Decide(s.bucket, now, ask)
	case penstock.LeakyBucket:
		b := algorithm.LeakyBucket{Rate: rate(limit)}
		s.drained, a = b.Decide(s.drained, now, ask)
	case penstock.FixedWindow:
		w := algorithm.FixedWindow{Count: limit.Count, Tick: int64(tick)}
		s.counter, a = w.Decide(s.counter, now, window(limit, now), ask)
	case penstock.SlidingWindow:
		w := algorithm.SlidingWindow{Count: limit.Count, Period: int64(limit.Period), Tick: int64(tick)}
		s.slide, a = w.Decide(s.slide, now, ask)
	case penstock.RollingWindow:
		s.ring, a = roll(limit, s.ring, now, ask)
	case penstock.SlidingLog:
		s.log, a = write(limit, s.log, now, ask)
	}
	s.until = 0
	if a.ResetAfter > 0 {
		s.until = now + a.ResetAfter
	}
	return s, decision(limit, a)
}

// normal returns a limit with its defaults filled in. The text of a limit has
// them all.
func normal(l penstock.Limit) penstock.Limit {
	n, err := penstock.ParseLimit(l.String())
	if err != nil {
		return l // the store's own check has let it pass
	}
	return n
}

func rate(l penstock.Limit) algorithm.Rate {
	r, _ := algorithm.NewRate(l.Count, int64(l.Period), l.Burst, int64(tick))
	return r
}

// roll decides by a copy of the ring, which is returned.
func roll(l penstock.Limit, r algorithm.Ring, now int64, ask algorithm.Ask) (algorithm.Ring, algorithm.Answer) {
	w := algorithm.NewRollingWindow(l.Count, int64(l.Period), int64(l.Buckets), int64(tick))
	if r.Counts = slices.Clone(r.Counts); r.Counts == nil {
		r.Counts = make([]int64, w.Buckets+1)
	}
	w.Settle(&r, now)
	a := w.Decide(&r, now, ask)
	if a.Granted != 0 {
		w.Record(&r, now, a.Granted)
	}
	return r, a
}

// write decides by a copy of the log, which is returned. The copy has room for
// all that can be granted.
func write(l penstock.Limit, old algorithm.Log, now int64, ask algorithm.Ask) (algorithm.Log, algorithm.Answer) {
	w := algorithm.SlidingLog{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
	log := algorithm.Log{Moments: make([]int64, max(int(l.Count), old.Len))}
	old.CopyTo(&log)
	w.Settle(&log, now)
	a := w.Decide(&log, now, ask)
	if a.Granted != 0 {
		w.Record(&log, now, a.Granted)
	}
	return log, a
}
