package algorithm

// The leaky bucket, as a queue.
//
// Idea: a queue holds Burst units and lets one through per Interval. A request is
// admitted with a delay, until the units before it have drained, so admitted requests
// act evenly spaced however they arrive. A request that would overflow the queue is
// denied.
//
// State: the instant at which the queue will have drained.
//
// Bound: a request of cost n acts n Intervals before the next one, so single units
// act at least one Interval apart. None waits longer than Burst − 1 Intervals. A
// Burst of 1 is strict spacing without a queue. A refund frees the end of the queue,
// so the next request may act at the same time as the last.
//
// The arithmetic is that of the token bucket, except that a debt delays requests
// instead of letting them pass at once.

// A LeakyBucket decides on the instant at which the queue will have drained.
type LeakyBucket struct{ Rate }

// Decide returns the new instant at which the queue will have drained, and the
// outcome. A peek has the delay that one unit would get.
func (b *LeakyBucket) Decide(drained, now int64, req Request) (int64, Outcome) {
	debt := b.Debt(drained, now)
	if req.Cost <= 0 {
		after, out := b.refund(debt, req)
		if req.Cost == 0 {
			out.Delay = RoundUp(debt, b.Tick)
		}
		return drainedAfter(after, now), out
	}
	cost, capacity := req.Cost, b.Capacity()
	if req.AtMost {
		cost = req.fit(b.free(debt, capacity))
	}
	if cost > b.Burst {
		return drainedAfter(debt, now), Outcome{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	if early := max(after-capacity, b.late(debt, req)); early > 0 {
		return drainedAfter(debt, now), Outcome{RetryAfter: RoundUp(early, b.Tick)}
	}
	return drainedAfter(after, now), Outcome{Allowed: true, Granted: cost, Delay: RoundUp(debt, b.Tick)}
}

// Debt returns how long the queue takes to drain.
func (b *LeakyBucket) Debt(drained, now int64) int64 {
	return min(max(drained-now, 0), b.Capacity())
}

// late returns by how much the delay exceeds the request's MaxDelay.
func (b *LeakyBucket) late(debt int64, req Request) int64 {
	if req.MaxDelay == 0 {
		return 0
	}
	return debt - RoundDown(req.MaxDelay, b.Tick)
}

// drainedAfter returns when a queue with that debt will have drained.
func drainedAfter(debt, now int64) int64 {
	if debt == 0 {
		return 0
	}
	return now + debt
}
