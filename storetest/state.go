package storetest

import (
	"slices"
	"time"

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
	l := r.Limit.Normal()
	ask := algorithm.Request{Cost: r.Cost, AtMost: r.AtMost, MaxDelay: int64(r.MaxDelay)}
	var v algorithm.Outcome
	var st algorithm.Balance
	switch l.Algorithm {
	case penstock.TokenBucket:
		b := algorithm.TokenBucket{Rate: rate(l)}
		s.bucket, v = b.Decide(s.bucket, now, ask)
		st = b.Balance(max(s.bucket.Full-now, 0))
	case penstock.LeakyBucket:
		b := algorithm.LeakyBucket{Rate: rate(l)}
		s.drained, v = b.Decide(s.drained, now, ask)
		st = b.Balance(max(s.drained-now, 0))
	case penstock.FixedWindow:
		w := algorithm.FixedWindow{Count: l.Count, Tick: int64(tick)}
		s.counter, v = w.Decide(s.counter, now, window(l, now), ask)
		st = w.Balance(s.counter, now)
	case penstock.SlidingWindow:
		w := algorithm.SlidingWindow{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
		s.slide, v = w.Decide(s.slide, now, ask)
		st = w.Balance(s.slide, now)
	case penstock.RollingWindow:
		s.ring, v, st = roll(l, s.ring, now, ask)
	case penstock.SlidingLog:
		s.log, v, st = write(l, s.log, now, ask)
	}
	switch {
	case st.ResetAfter > 0:
		s.until = now + st.ResetAfter
	case s.until > now:
		s.until = 0 // given back; what has run out has still come to its end
	}
	return s, decision(l, v, st)
}

func rate(l penstock.Limit) algorithm.Rate {
	r, _ := algorithm.NewRate(l.Count, int64(l.Period), l.Burst, int64(tick))
	return r
}

// roll decides by a copy of the ring, which is returned.
func roll(l penstock.Limit, r algorithm.Ring, now int64, ask algorithm.Request) (algorithm.Ring, algorithm.Outcome, algorithm.Balance) {
	w := algorithm.NewRollingWindow(l.Count, int64(l.Period), int64(l.Buckets), int64(tick))
	if r.Counts = slices.Clone(r.Counts); r.Counts == nil {
		r.Counts = make([]int64, w.Buckets+1)
	}
	w.Normalize(&r, now)
	v := w.Decide(&r, now, ask)
	if v.Granted != 0 {
		w.Record(&r, now, v.Granted)
	}
	return r, v, w.Balance(&r, now)
}

// write decides by a copy of the log, which is returned. The copy has room for
// all that can be granted.
func write(l penstock.Limit, old algorithm.Log, now int64, ask algorithm.Request) (algorithm.Log, algorithm.Outcome, algorithm.Balance) {
	w := algorithm.SlidingLog{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
	log := algorithm.Log{Moments: make([]int64, max(int(l.Count), old.Len))}
	old.CopyTo(&log)
	w.Normalize(&log, now)
	v := w.Decide(&log, now, ask)
	if v.Granted != 0 {
		w.Record(&log, now, v.Granted)
	}
	return log, v, w.Balance(&log, now)
}

// decision puts what the algorithms say into the words of the API.
func decision(l penstock.Limit, v algorithm.Outcome, st algorithm.Balance) penstock.Decision {
	return penstock.Decision{
		Allowed:    v.Allowed,
		Granted:    v.Granted,
		Limit:      most(l),
		Remaining:  st.Remaining,
		RetryAfter: time.Duration(v.RetryAfter),
		ResetAfter: time.Duration(st.ResetAfter),
		Delay:      time.Duration(v.Delay),
	}
}

// most returns how many units a limit can grant at once.
func most(l penstock.Limit) int64 {
	if isBucket(l) {
		return l.Normal().Burst
	}
	return l.Count
}
