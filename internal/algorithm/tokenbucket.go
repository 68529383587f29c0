package algorithm

// The token bucket.
//
// Idea: a bucket holds Burst tokens and gains one per Interval. A request of cost n
// takes n tokens, or is denied if there are fewer.
//
// State: the instant at which the bucket will be full again; see [Rate]. A full
// bucket has no state.
//
// Bound: any interval of length T admits at most Burst + T/Interval units.
//
// Reservations: with a MaxDelay, a request that does not fit yet may be granted for
// the moment at which it will. It is charged now, so the debt exceeds the capacity,
// and later requests queue behind it: first come, first served. Refunding a
// reservation frees the end of the queue, so the next request may act at the same
// time as the last. A reservation reaches at most one minute ahead, or one whole
// refill if that is longer. One bit of the state marks a bucket with reservations.
// Without it, a debt above the capacity means that the clock stepped back or the
// limit was lowered, and the debt is clamped to the capacity. With it, the debt is
// clamped to the capacity and the reach. The mark stays until the next charge or
// refund, also when time has paid for the reserved units: a peek or a denial that
// removed it would change what a later call is told.

// minute is the least reach of reservations.
const minute = 60_000_000_000

// A Bucket is the state of a token bucket. The zero Bucket is full.
type Bucket struct {
	Full     int64 // when it will be full again
	Reserved bool  // whether units are granted for later
}

// A TokenBucket decides on a [Bucket].
type TokenBucket struct{ Rate }

// Reach returns how far ahead units may be reserved.
func (b *TokenBucket) Reach() int64 { return max(b.Capacity(), minute) }

// Decide returns the new state and the outcome.
func (b *TokenBucket) Decide(s Bucket, now int64, req Request) (Bucket, Outcome) {
	debt := b.Debt(s, now)
	if req.Cost < 0 {
		debt, out := b.refund(debt, req)
		return b.withDebt(debt, now), out
	}
	if req.Cost == 0 {
		return s.unchanged(debt, now), Outcome{Allowed: true}
	}
	cost, maxDebt := req.Cost, b.Capacity()
	if req.AtMost || req.MaxDelay > 0 {
		cost, maxDebt = b.costAndMaxDebt(debt, req)
	}
	if cost > b.Burst {
		return s.unchanged(debt, now), Outcome{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	if after > maxDebt {
		return s.unchanged(debt, now), Outcome{RetryAfter: RoundUp(after-maxDebt, b.Tick)}
	}
	delay := RoundUp(max(after-b.Capacity(), 0), b.Tick)
	return b.withDebt(after, now), Outcome{Allowed: true, Granted: cost, Delay: delay}
}

// SpendOne is Decide for the most common case: one unit, available in a bucket
// without reservations. If it returns false, call Decide.
func (b *TokenBucket) SpendOne(full, now int64) (after int64, ok bool) {
	after = max(full, now) + b.Interval
	return after, after-now <= b.Capacity()
}

// Debt returns how far the bucket is from full, clamped to the largest possible
// debt.
func (b *TokenBucket) Debt(s Bucket, now int64) int64 {
	maxDebt := b.Capacity()
	if s.Reserved {
		maxDebt += b.Reach()
	}
	return min(max(s.Full-now, 0), maxDebt)
}

// unchanged returns the state after a call that charges nothing: the same, apart from a
// debt that was clamped or paid.
func (s Bucket) unchanged(debt, now int64) Bucket {
	if debt == 0 {
		return Bucket{}
	}
	return Bucket{Full: now + debt, Reserved: s.Reserved}
}

// withDebt returns the state of a bucket after a charge or refund.
func (b *TokenBucket) withDebt(debt, now int64) Bucket {
	if debt == 0 {
		return Bucket{}
	}
	return Bucket{Full: now + debt, Reserved: debt > b.Capacity()}
}

// costAndMaxDebt returns the cost to charge and the largest debt allowed, for a
// request with AtMost or MaxDelay.
func (b *TokenBucket) costAndMaxDebt(debt int64, req Request) (cost, maxDebt int64) {
	maxDebt = b.Capacity() + min(RoundDown(req.MaxDelay, b.Tick), b.Reach())
	return req.fit(b.free(debt, maxDebt)), maxDebt
}
