package algorithmtest

import (
	"fmt"
	"math/big"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var slidingWindow = newKind("sliding-window", row{
	debt:   true,
	newKey: func() key { return &slidingKey{} },
	newLedger: func(l limit) ledger {
		return &slidingLedger{count: l.count, overdraft: l.overdraft, period: l.period}
	},
	refill: func(l limit, _ int64) int64 { return 2 * l.period },
})

type slidingKey struct {
	limit algorithm.SlidingWindow
	slide algorithm.Slide
}

func (k *slidingKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.slide, now, req)
	k.slide = after
	return result{v, k.limit.Balance(k.slide, now)}
}

func (k *slidingKey) refundDue(now, units, due int64) (r result) {
	k.slide, r.Outcome = k.limit.RefundDue(k.slide, now, units, due)
	r.Balance = k.limit.Balance(k.slide, now)
	return r
}

func (k *slidingKey) change(l limit) {
	k.limit = algorithm.SlidingWindow{Count: l.count, Overdraft: l.overdraft, Period: l.period, Tick: l.tick}
}

func (k *slidingKey) fork() key { copied := *k; return &copied }

// state describes the counts after the windows that have ended since the last write.
func (k *slidingKey) state(now int64) string {
	s := k.slide
	for s.End <= now && s != (algorithm.Slide{End: s.End}) {
		if s.Overdrawn {
			s.Current = min(s.Current, k.limit.Count)
		}
		s = algorithm.Slide{Previous: s.Current, End: s.End + k.limit.Period}
	}
	if s.Previous == 0 && s.Current == 0 {
		return "unused"
	}
	return fmt.Sprintf("%+v", s)
}

func (k *slidingKey) valid(now int64) bool {
	s := k.slide
	return s == algorithm.Slide{} || s.Previous >= 0 && s.Current >= 0 && s.Previous+s.Current > 0 &&
		s.End > now-k.limit.Period && s.End <= now+k.limit.Period
}

// A slidingLedger numbers windows from the one that the first unit opened, and weights
// the previous window by how much is left of the current one.
type slidingLedger struct {
	history
	count       int64
	overdraft   int64
	overdrawn   bool
	overdrawnAt int64 // the number of the window that is overdrawn
	period      int64
	start       int64 // of window 0
}

func (s *slidingLedger) max() int64 { return s.count }

// within returns a filter for the entries of the window that contains t, or so many
// before it.
func (s *slidingLedger) within(t, before int64) func(at int64) bool {
	window := (t-s.start)/s.period - before
	return func(at int64) bool { return (at-s.start)/s.period == window }
}

// weighed returns for how many units so many of the previous window count.
func (s *slidingLedger) weighed(t, previous int64) int64 {
	rest := s.period - (t-s.start)%s.period
	share := big.NewRat(rest, s.period)
	return ceil(share.Mul(share, whole(previous))).Int64()
}

func (s *slidingLedger) window(t int64) int64 { return (t - s.start) / s.period }

// previous returns the units of the window before that of t. The debt of an overdrawn
// window has ended with it.
func (s *slidingLedger) previous(t int64) int64 {
	units := s.sum(s.within(t, 1))
	if s.overdrawn && s.overdrawnAt == s.window(t)-1 {
		units = min(units, s.count)
	}
	return units
}

func (s *slidingLedger) used(t int64) int64 {
	return s.sum(s.within(t, 0)) + s.weighed(t, s.previous(t))
}

func (s *slidingLedger) room(t int64) int64 { return max(s.count+s.overdraft-s.used(t), 0) }

// write makes the end of a debt final: raising the limit does not bring it back.
func (s *slidingLedger) write(now int64) {
	if s.overdrawn && s.overdrawnAt != s.window(now) {
		s.removeOldest(s.sum(s.within(now, 1))-s.previous(now), s.within(now, 1))
		s.overdrawn = false
	}
}

func (s *slidingLedger) mark(now int64) {
	s.overdrawn = s.sum(s.within(now, 0)) > 0 && s.used(now) > s.count
	s.overdrawnAt = s.window(now)
}

func (s *slidingLedger) fits(t, n, _ int64) bool { return n <= s.count-s.used(t) }

func (s *slidingLedger) unused(t int64) bool { return s.used(t) == 0 }

func (s *slidingLedger) delay(_, _ int64) int64 { return 0 }

func (s *slidingLedger) charge(now, n int64) {
	s.write(now)
	if s.unused(now) {
		s.history, s.start = nil, now
	}
	s.history = append(s.history, entry{now, n})
	s.mark(now)
}

func (s *slidingLedger) refund(now, n int64) int64 {
	if s.sum(s.within(now, 0))+s.sum(s.within(now, 1)) == 0 {
		return 0
	}
	s.write(now)
	current := s.removeNewest(n, s.within(now, 0))
	previous := s.removeNewest(n-current, s.within(now, 1))
	if s.overdrawn {
		s.mark(now)
	}
	return current + previous
}

// truncate erases a window that is not used any more, as any call does, and with it a
// debt that has ended.
func (s *slidingLedger) truncate(now int64) {
	if s.unused(now) {
		s.history, s.overdrawn = nil, false
	}
}

func (s *slidingLedger) change(l limit) { s.count, s.overdraft = l.count, l.overdraft }
