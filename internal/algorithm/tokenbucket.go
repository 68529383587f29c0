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
// refill if that is longer. A request with KeepFree reserves nothing, because nothing
// remains of a bucket from which units are reserved.
//
// Overdrafts: a request with Overdraw is charged even if it does not fit. The debt
// exceeds the capacity by up to Overdraft units, and later requests are denied until
// time has paid it. What is reserved already counts towards the Overdraft.

// A TokenBucket decides on a [Bucket].
type TokenBucket struct{ Rate }

// Decide returns the new state and the outcome.
func (b *TokenBucket) Decide(s Bucket, now int64, req Request) (Bucket, Outcome) {
	debt := b.Debt(s, now)
	if req.Cost < 0 {
		debt, out := b.refund(debt, &req)
		return withDebt(debt, now), out
	}
	if req.Cost == 0 {
		return withDebt(debt, now), Outcome{Allowed: true}
	}
	if req.Overdraw {
		return b.overdraw(debt, now, &req)
	}
	cost, maxDebt := req.Cost, b.Capacity()
	if req.AtMost || req.MaxDelay > 0 || req.KeepFree > 0 {
		cost, maxDebt = b.costAndMaxDebt(debt, &req)
	}
	if cost > b.Burst {
		return withDebt(debt, now), Outcome{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	if after > maxDebt {
		return withDebt(debt, now), Outcome{RetryAfter: RoundUp(after-maxDebt, b.Tick)}
	}
	delay := RoundUp(max(after-b.Capacity(), 0), b.Tick)
	return withDebt(after, now), Outcome{Allowed: true, Granted: cost, Delay: delay}
}

// SpendOne is Decide for the most common case: one available unit. If it
// returns false, call Decide.
func (b *TokenBucket) SpendOne(full, now int64) (after int64, ok bool) {
	after = max(full, now) + b.Interval
	return after, after-now <= b.Capacity()
}

// costAndMaxDebt returns the cost to charge and the largest debt allowed, for a
// request with AtMost, MaxDelay or KeepFree. A cost above the burst is never granted.
func (b *TokenBucket) costAndMaxDebt(debt int64, req *Request) (cost, maxDebt int64) {
	if req.KeepFree > 0 {
		return b.costNow(debt, req)
	}
	maxDebt = b.Capacity() + min(RoundDown(req.MaxDelay, b.Tick), b.Reach())
	return req.fit(b.free(debt, maxDebt)), maxDebt
}
