package storetest

import (
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// This file is all that the package knows about single algorithms: how each decides, and the most that
// each may admit.

// A state is the state of a key under a limit. Each algorithm uses one of these; the
// zero state is full under any limit.
type state struct {
	until   int64 // when the state expires
	bucket  algorithm.Bucket
	counter algorithm.Counter
	slide   algorithm.Slide
	ring    algorithm.Ring
	log     algorithm.Log
	permits algorithm.Permits
}

// decide returns the new state and the decision.
func (s state) decide(now int64, r penstock.Request) (state, penstock.Decision) {
	l := r.Limit.Normal()
	request := algorithm.Request{
		Cost: r.Cost, AtMost: r.AtMost, Overdraw: r.Overdraw, MaxDelay: int64(r.MaxDelay), KeepFree: r.KeepFree,
		NewID: r.NewID,
	}
	var outcome algorithm.Outcome
	var balance algorithm.Balance
	switch l.Algorithm {
	case penstock.TokenBucket:
		b := algorithm.TokenBucket{Rate: rate(l)}
		s.bucket, outcome = b.Decide(s.bucket, now, request)
		balance = b.Balance(max(s.bucket.Full-now, 0))
	case penstock.LeakyBucket:
		b := algorithm.LeakyBucket{Rate: rate(l)}
		s.bucket, outcome = b.Decide(s.bucket, now, request)
		balance = b.Balance(max(s.bucket.Full-now, 0))
	case penstock.FixedWindow:
		w := algorithm.FixedWindow{Count: l.Count, Overdraft: l.MaxDebt(), Tick: int64(tick)}
		s.counter, outcome = w.Decide(s.counter, now, window(l, now), request)
		balance = w.Balance(s.counter, now)
	case penstock.SlidingWindow:
		w := algorithm.SlidingWindow{Count: l.Count, Overdraft: l.MaxDebt(), Period: int64(l.Period), Tick: int64(tick)}
		s.slide, outcome = w.Decide(s.slide, now, request)
		balance = w.Balance(s.slide, now)
	case penstock.RollingWindow:
		s.ring, outcome, balance = decideRolling(l, s.ring, now, request)
	case penstock.SlidingLog:
		s.log, outcome, balance = decideLog(l, s.log, now, request)
	case penstock.Concurrent:
		request.ID = hashOf(r.ID)
		s.permits, outcome, balance = decidePermits(l, s.permits, now, request)
	}
	return s.settled(now, balance), decision(l, outcome, balance)
}

// settled returns the state with its expiry.
func (s state) settled(now int64, balance algorithm.Balance) state {
	switch {
	case balance.ResetAfter > 0:
		s.until = now + balance.ResetAfter
	case s.until > now:
		s.until = 0 // refunded; a state that has expired stays expired
	}
	return s
}

// refundDue returns the state and the decision after a refund of units that time will
// have paid back at due.
func (s state) refundDue(now int64, l penstock.Limit, units, due int64) (state, penstock.Decision) {
	var outcome algorithm.Outcome
	var balance algorithm.Balance
	switch l.Algorithm {
	case penstock.TokenBucket, penstock.LeakyBucket:
		r := rate(l)
		s.bucket, outcome = r.RefundDue(s.bucket, now, units, due)
		balance = r.Balance(max(s.bucket.Full-now, 0))
	case penstock.FixedWindow:
		w := algorithm.FixedWindow{Count: l.Count, Overdraft: l.MaxDebt(), Tick: int64(tick)}
		s.counter, outcome = w.RefundDue(s.counter, now, window(l, now), units, due)
		balance = w.Balance(s.counter, now)
	case penstock.SlidingWindow:
		w := algorithm.SlidingWindow{Count: l.Count, Overdraft: l.MaxDebt(), Period: int64(l.Period), Tick: int64(tick)}
		s.slide, outcome = w.RefundDue(s.slide, now, units, due)
		balance = w.Balance(s.slide, now)
	case penstock.RollingWindow:
		w := algorithm.NewRollingWindow(l.Count, int64(l.Period), int64(l.Buckets), int64(tick))
		s.ring, _, _ = decideRolling(l, s.ring, now, algorithm.Request{}) // a normalized copy
		outcome = w.RefundDue(&s.ring, now, units, due)
		balance = w.Balance(&s.ring, now)
	case penstock.SlidingLog:
		w := algorithm.SlidingLog{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
		s.log, _, _ = decideLog(l, s.log, now, algorithm.Request{})
		outcome = w.RefundDue(&s.log, now, units, due)
		balance = w.Balance(&s.log, now)
	}
	return s.settled(now, balance), decision(l, outcome, balance)
}

func rate(l penstock.Limit) algorithm.Rate {
	r, _ := algorithm.NewRate(l.Count, int64(l.Period), l.Burst, l.MaxDebt(), int64(tick))
	return r
}

// decideRolling decides on a copy of the ring, and returns the copy.
func decideRolling(l penstock.Limit, r algorithm.Ring, now int64, request algorithm.Request) (algorithm.Ring, algorithm.Outcome, algorithm.Balance) {
	w := algorithm.NewRollingWindow(l.Count, int64(l.Period), int64(l.Buckets), int64(tick))
	if r.Counts = slices.Clone(r.Counts); r.Counts == nil {
		r.Counts = make([]int64, w.Buckets+1)
	}
	w.Normalize(&r, now)
	outcome := w.Decide(&r, now, request)
	if outcome.Granted != 0 {
		w.Record(&r, now, outcome.Granted)
	}
	return r, outcome, w.Balance(&r, now)
}

// decideLog decides on a copy of the log, and returns the copy, which has room for all
// that can be granted.
func decideLog(l penstock.Limit, old algorithm.Log, now int64, request algorithm.Request) (algorithm.Log, algorithm.Outcome, algorithm.Balance) {
	w := algorithm.SlidingLog{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
	log := algorithm.Log{Times: make([]int64, max(int(l.Count), old.Len))}
	old.CopyTo(&log)
	w.Normalize(&log, now)
	outcome := w.Decide(&log, now, request)
	if outcome.Granted != 0 {
		w.Record(&log, now, outcome.Granted)
	}
	return log, outcome, w.Balance(&log, now)
}

// decidePermits decides on a copy of the permits, and returns the copy.
func decidePermits(l penstock.Limit, p algorithm.Permits, now int64, request algorithm.Request) (algorithm.Permits, algorithm.Outcome, algorithm.Balance) {
	c := algorithm.Concurrent{Count: l.Count, Period: int64(l.Period), Tick: int64(tick)}
	p.Words = append(slices.Clone(p.Words[:algorithm.PermitWords*p.Len]), make([]int64, algorithm.PermitWords)...)
	c.Normalize(&p, now)
	outcome := c.Decide(&p, now, request)
	if outcome.Granted != 0 {
		c.Record(&p, now, request, outcome.Granted)
	}
	p.Words = p.Words[:algorithm.PermitWords*p.Len]
	return p, outcome, c.Balance(&p, now)
}

// hashOf returns a hash of an ID that is the same in each run.
func hashOf(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id)) // never fails
	return h.Sum64()
}

// decision converts the result of an algorithm.
func decision(l penstock.Limit, outcome algorithm.Outcome, balance algorithm.Balance) penstock.Decision {
	return penstock.Decision{
		Allowed:    outcome.Allowed,
		Granted:    outcome.Granted,
		Limit:      maxUnits(l),
		Remaining:  balance.Remaining,
		RetryAfter: time.Duration(outcome.RetryAfter),
		ResetAfter: time.Duration(balance.ResetAfter),
		Delay:      time.Duration(outcome.Delay),
	}
}

// maxUnits returns how many units a limit can grant at once.
func maxUnits(l penstock.Limit) int64 {
	if l.IsBucket() {
		return l.Normal().Burst
	}
	return l.Count
}

// bound returns how many units may be granted from the first grant to the last,
// both included.
func bound(l penstock.Limit, first, last granted) int64 {
	l = l.Normal()
	switch l.Algorithm {
	case penstock.TokenBucket:
		return l.Burst + perInterval(l, first, last)
	case penstock.LeakyBucket:
		// Units pass one after the other, and only those of the last grant
		// have not passed when it starts.
		return perInterval(l, first, last) + last.units
	}
	if l.Algorithm == penstock.FixedWindow && l.Align != penstock.AlignFirst {
		if window(l, first.at.UnixNano()).End > last.at.UnixNano() {
			return l.Count
		}
		return math.MaxInt64
	}
	if last.at.Sub(first.at) >= l.Period {
		return math.MaxInt64
	}
	switch l.Algorithm {
	case penstock.FixedWindow:
		return 2 * l.Count
	case penstock.SlidingWindow:
		return max(l.Count, 2*l.Count-2)
	}
	return l.Count
}

// perInterval returns how many units refill between two grants. Delays are rounded
// up, so grants with a delay may seem closer than they are.
func perInterval(l penstock.Limit, first, last granted) int64 {
	stretch := last.actAt().Sub(first.actAt())
	if first.delay > 0 {
		stretch += tick
	}
	interval := (l.Period + time.Duration(l.Count) - 1) / time.Duration(l.Count)
	return int64(stretch / interval)
}
