package algorithm

// The leaky bucket, as a queue.
//
// Idea: a queue holds Burst units and lets one through per Interval. A request is
// admitted with a delay, until the units before it have drained, so admitted requests
// act evenly spaced however they arrive. A request that would overflow the queue is
// denied.
//
// State: the instant at which the queue will have drained; see [Rate].
//
// Bound: a request of cost n acts n Intervals before the next one, so single units
// act at least one Interval apart. None waits longer than Burst − 1 Intervals. A
// Burst of 1 is strict spacing without a queue. A refund frees the end of the queue,
// so the next request may act at the same time as the last.
//
// The arithmetic is that of the token bucket, except that a debt delays requests
// instead of letting them pass at once. A request with Overdraw lengthens the queue
// by up to Overdraft units more than it holds, and is not delayed itself: it is
// charged for what has happened already.

// A LeakyBucket decides on a [Bucket], which is full when the queue has drained.
type LeakyBucket struct{ Rate }

// Decide returns the new state and the outcome. A peek has the delay that one unit
// would get.
func (b *LeakyBucket) Decide(s Bucket, now int64, req Request) (Bucket, Outcome) {
	debt := b.Debt(s, now)
	switch {
	case req.Cost < 0:
		debt, out := b.refund(debt, &req)
		return withDebt(debt, now), out
	case req.Cost == 0:
		return withDebt(debt, now), Outcome{Allowed: true, Delay: RoundUp(debt, b.Tick)}
	case req.Overdraw:
		return b.overdraw(debt, now, &req)
	}
	cost, maxDebt := req.Cost, b.Capacity()
	if req.AtMost || req.KeepFree > 0 {
		cost, maxDebt = b.costNow(debt, &req)
	}
	if cost > b.Burst || b.late(0, &req) > 0 {
		return withDebt(debt, now), Outcome{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	if early := max(after-maxDebt, b.late(debt, &req)); early > 0 {
		return withDebt(debt, now), Outcome{RetryAfter: RoundUp(early, b.Tick)}
	}
	return withDebt(after, now), Outcome{Allowed: true, Granted: cost, Delay: RoundUp(debt, b.Tick)}
}

// late returns by how much the delay exceeds the request's MaxDelay.
func (b *LeakyBucket) late(debt int64, req *Request) int64 {
	if req.MaxDelay == 0 {
		return 0
	}
	return debt + min(req.Prior, b.Burst)*b.Interval - RoundDown(req.MaxDelay, b.Tick)
}
