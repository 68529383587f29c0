package algorithm

// The leaky bucket, as a queue.
//
// Idea: requests pour into a funnel that holds Burst units and lets one through
// per Interval. A request is admitted with the delay after which the units
// before it have run out, so that admitted requests act evenly spaced, however
// they arrive. When the funnel would overflow, the request is refused.
//
// State: the instant at which the funnel will have run empty.
//
// Bound: units act at least one Interval apart, and none waits longer than
// (Burst-1) Intervals. A Burst of 1 is strict spacing without a queue.
//
// The arithmetic is the token bucket's; what differs is that the debt is served
// as a delay instead of being lent.

// A LeakyBucket decides by the instant at which the queue has drained.
type LeakyBucket struct{ Rate }

// Decide returns the instant at which the queue will have drained, and the
// verdict. A look tells the delay that one unit would get.
func (b *LeakyBucket) Decide(drained, now int64, ask Ask) (int64, Verdict) {
	debt := b.Debt(drained, now)
	v := Verdict{Allowed: true, Delay: RoundUp(debt, b.Tick)}
	switch {
	case ask.Cost > 0:
		debt, v = b.take(debt, ask)
	case ask.Cost < 0:
		debt, v = b.giveBack(debt, ask)
	}
	if debt == 0 {
		return 0, v
	}
	return now + debt, v
}

// Debt returns how long the queue takes to drain.
func (b *LeakyBucket) Debt(drained, now int64) int64 {
	return min(max(drained-now, 0), b.Capacity())
}

func (b *LeakyBucket) take(debt int64, ask Ask) (int64, Verdict) {
	cost, capacity := ask.Cost, b.Capacity()
	if ask.AtMost {
		cost = ask.fit(b.free(debt, capacity))
	}
	if cost > b.Burst {
		return debt, Verdict{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	wait := after - capacity
	if ask.MaxDelay > 0 {
		wait = max(wait, debt-RoundDown(ask.MaxDelay, b.Tick))
	}
	if wait > 0 {
		return debt, Verdict{RetryAfter: RoundUp(wait, b.Tick)}
	}
	return after, Verdict{Allowed: true, Granted: cost, Delay: RoundUp(debt, b.Tick)}
}
