package algorithm

import "math/bits"

// The sliding window of two counters.
//
// Idea: count the current window and the one before. Assume that the units of the
// previous window were spread evenly. Then the share of them that is still within one
// Period equals the share of the current window that is yet to come:
//
//	used = current + ⌈previous · rest / Period⌉
//
//	├──── previous ────┼──── current ────┤
//	          ├─── one Period ───┤
//	                             now     rest
//
// State: both counts, when the current window ends, and whether a request overdrew it.
// Windows begin at the key's first request, so keys do not all roll over at once.
//
// Bound: 2·Count − 2 in one Period (1 if Count is 1). This is reached: one unit opens
// a window, Count − 1 more come just before its end, and because those are assumed to
// be spread evenly, nearly Count − 1 more fit within one Period of them. Traffic that
// does not aim for this case stays close to Count.
//
// Overdrafts: a request with Overdraw is charged even if it does not fit, up to
// Overdraft units beyond Count. The debt ends with the window: at most Count units of
// an overdrawn window count as previous.

// A Slide is the state of a sliding window.
type Slide struct {
	Previous int64
	Current  int64
	End      int64 // of the current window

	Overdrawn bool // whether some of the current units are a debt
}

// A SlidingWindow decides on a [Slide]. Count and Overdraft together must be below
// 2³¹.
type SlidingWindow struct {
	Count     int64
	Overdraft int64 // units beyond Count that a request may overdraw
	Period    int64 // in whole ticks
	Tick      int64
}

// Decide returns the new counts and the outcome. If the counts only aged, it
// returns them as they were: the next call ages them again, so a denial needs no
// write.
func (w *SlidingWindow) Decide(s Slide, now int64, req Request) (Slide, Outcome) {
	aged := w.age(s, now)
	normal := w.normalize(aged, now)
	after, out := normal, Outcome{Allowed: true}
	switch {
	case req.Cost > 0:
		out = w.take(normal, now, &req)
		after.Current += out.Granted
		if out.Granted > 0 { // unless the request overdraws, it fits
			after.Overdrawn = req.Overdraw && w.overdraws(after, now)
		}
	case req.Cost < 0:
		out = req.refund(normal.Current + normal.Previous)
		if out.Granted < 0 {
			after = normal.without(-out.Granted)
			after.Overdrawn = normal.Overdrawn && w.overdraws(after, now)
		}
	}
	switch {
	case after.Current == 0 && after.Previous == 0:
		return Slide{}, out
	case after == aged:
		return s, out
	}
	return after, out
}

// Balance returns the state of counts that Decide returned.
func (w *SlidingWindow) Balance(s Slide, now int64) Balance {
	s = w.age(s, now)
	if s.Current == 0 && s.Previous == 0 {
		return Balance{Remaining: w.Count}
	}
	return Balance{
		Remaining:  max(w.Count-w.used(s, now), 0),
		ResetAfter: RoundUp(w.empty(s)-now, w.Tick),
	}
}

// age moves the counts to the window that contains now.
func (w *SlidingWindow) age(s Slide, now int64) Slide {
	if s.End <= now {
		s = Slide{Previous: w.kept(s), End: s.End + w.Period}
	}
	if s.End <= now || s.Previous == 0 && s.Current == 0 {
		return Slide{End: now + w.Period}
	}
	return s
}

// kept returns how many units of the current window will count as previous: all but its
// debt.
func (w *SlidingWindow) kept(s Slide) int64 {
	if s.Overdrawn {
		return min(s.Current, w.Count)
	}
	return s.Current
}

// normalize returns aged counts of a window that ends no later than the clock allows.
func (w *SlidingWindow) normalize(s Slide, now int64) Slide {
	s.End = min(s.End, now+w.Period)
	return s
}

// overdraws reports whether counts after a charge or refund are overdrawn. A refund
// that reaches the previous window has paid the debt.
func (w *SlidingWindow) overdraws(s Slide, now int64) bool {
	return s.Current > 0 && w.used(s, now) > w.Count
}

func (w *SlidingWindow) used(s Slide, now int64) int64 {
	return s.Current + mulDivUp(s.Previous, s.End-now, w.Period)
}

func (w *SlidingWindow) take(s Slide, now int64, req *Request) Outcome {
	free := w.Count - w.used(s, now)
	if req.Overdraw {
		return req.overdraw(free + w.Overdraft)
	}
	o, missing := req.take(w.Count, free)
	if missing > 0 {
		o.RetryAfter = RoundUp(w.wait(s, s.End-now, free+missing), w.Tick)
	}
	return o
}

// wait returns how long until the cost fits: until the share of the previous
// window has shrunk enough or, if that does not suffice, until the current window
// has become the previous one and its share has shrunk enough.
func (w *SlidingWindow) wait(s Slide, rest, cost int64) int64 {
	if room := w.Count - s.Current - cost; room >= 0 {
		return rest - mulDiv(room, w.Period, s.Previous)
	}
	return rest + w.Period - mulDiv(w.Count-cost, w.Period, w.kept(s))
}

// without removes n units, the newest first.
func (s Slide) without(n int64) Slide {
	current := min(n, s.Current)
	return Slide{Previous: s.Previous - (n - current), Current: s.Current - current, End: s.End}
}

// empty returns when no unit is used any more.
func (w *SlidingWindow) empty(s Slide) int64 {
	if w.kept(s) > 0 {
		return s.End + w.Period
	}
	return s.End
}

// mulDiv returns ⌊a·b/c⌋, which must fit.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high == 0 {
		return int64(low / uint64(c))
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(quotient)
}

// mulDivUp returns ⌈a·b/c⌉, which must fit.
func mulDivUp(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	low, carry := bits.Add64(low, uint64(c)-1, 0)
	high += carry
	if high == 0 {
		return int64(low / uint64(c))
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(quotient)
}

// RefundDue refunds units of a grant that no longer count at due: those of the current
// window, or of the one before.
func (w *SlidingWindow) RefundDue(s Slide, now, units, due int64) (Slide, Outcome) {
	normal := w.normalize(w.age(s, now), now)
	switch due {
	case normal.End + w.Period:
		return w.Decide(s, now, Request{Cost: -min(units, normal.Current)})
	case normal.End:
		units = min(units, normal.Previous)
	default:
		units = 0
	}
	if units == 0 {
		return w.Decide(s, now, Request{})
	}
	normal.Previous -= units
	if normal.Previous == 0 && normal.Current == 0 {
		normal = Slide{}
	}
	return normal, Outcome{Allowed: true, Granted: -units}
}
