package storetest

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/algorithm/algorithmtest"
)

// This file is all that the package knows about single algorithms.

// A state is the state of a key under a limit. The zero state is full under any limit.
type state struct {
	until int64 // when the state expires
	key   algorithmtest.State
}

// decide returns the new state and the decision.
func (s state) decide(now int64, r penstock.Request) (state, penstock.Decision) {
	l := r.Limit.Normal()
	request := algorithm.Request{
		Cost: r.Cost, AtMost: r.AtMost, Overdraw: r.Overdraw, MaxDelay: int64(r.MaxDelay), KeepFree: r.KeepFree,
		ID: hashOf(r.ID), NewID: r.NewID,
	}
	key, outcome, balance := s.key.Decide(modelLimit(l), now, request)
	return state{s.until, key}.settled(now, balance), decision(l, outcome, balance)
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
	key, outcome, balance := s.key.RefundDue(modelLimit(l), now, units, due)
	return state{s.until, key}.settled(now, balance), decision(l, outcome, balance)
}

func modelLimit(l penstock.Limit) algorithmtest.Limit {
	return algorithmtest.Limit{
		Algorithm: l.Algorithm.String(), Count: l.Count, Period: int64(l.Period), Burst: l.Burst, Debt: l.MaxDebt(),
		Buckets: int64(l.Buckets), Tick: int64(tick),
		Windows: windows(l),
	}
}

// windows are those of a fixed window.
type windows penstock.Limit

func (w windows) Window(now int64) algorithm.Window { return window(penstock.Limit(w), now) }

func rate(l penstock.Limit) algorithm.Rate {
	r, _ := algorithm.NewRate(l.Count, int64(l.Period), l.Burst, l.MaxDebt(), int64(tick))
	return r
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
	if l.IsBucket() { // a new algorithm
		panic(fmt.Sprintf("storetest/state.go: bound has no case for %v", l.Algorithm)) //nolint:forbidigo // tests alone call it
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
