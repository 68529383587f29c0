package algorithm

// The token bucket.
//
// Idea: a bucket holds Burst tokens and gains one per Interval. A request of
// cost n takes n tokens, or is denied when they are not there.
//
// State: the instant at which the bucket will be full again, and nothing else;
// see [Rate] for why that is enough. A bucket that is full has no state at all.
//
// Bound: any interval of length T admits at most Burst + T/Interval units.
//
// Reservations: with a MaxDelay, a request that does not fit yet may be granted
// for the moment when it will. It is charged now, so the debt goes beyond the
// capacity, and whoever comes later stands in line behind it: first come, first
// served. A reservation reaches at most one minute ahead, or one whole refill
// where that is longer. The state remembers that there is one, because a debt
// above the capacity without one means something else: that the clock stepped
// back, or that the limit was lowered, and then only the capacity is owed.

// minute is the least that a reservation may reach ahead.
const minute = 60_000_000_000

// A Bucket is the state of a token bucket. The zero Bucket is full.
type Bucket struct {
	Full     int64 // when it will be full again
	Reserved bool  // whether units are granted for later
}

// A TokenBucket decides by a [Bucket].
type TokenBucket struct{ Rate }

// Reach is how far ahead units may be reserved.
func (b *TokenBucket) Reach() int64 { return max(b.Capacity(), minute) }

// Decide returns what becomes of the bucket, and the verdict.
func (b *TokenBucket) Decide(s Bucket, now int64, ask Ask) (Bucket, Verdict) {
	debt, v := b.Debt(s, now), Verdict{Allowed: true}
	switch {
	case ask.Cost > 0:
		debt, v = b.take(debt, ask)
	case ask.Cost < 0:
		debt, v = b.giveBack(debt, ask)
	}
	if debt == 0 {
		return Bucket{}, v
	}
	return Bucket{Full: now + debt, Reserved: debt > b.Capacity()}, v
}

// Debt returns how far the bucket is from full, at most what it may owe.
func (b *TokenBucket) Debt(s Bucket, now int64) int64 {
	most := b.Capacity()
	if s.Reserved {
		most += b.Reach()
	}
	return min(max(s.Full-now, 0), most)
}

func (b *TokenBucket) take(debt int64, ask Ask) (int64, Verdict) {
	cost, most := ask.Cost, b.Capacity()
	if ask.MaxDelay > 0 {
		most += min(RoundDown(ask.MaxDelay, b.Tick), b.Reach())
	}
	if ask.AtMost {
		cost = ask.fit(b.free(debt, most))
	}
	if cost > b.Burst {
		return debt, Verdict{RetryAfter: Never}
	}
	after := debt + cost*b.Interval
	if after > most {
		return debt, Verdict{RetryAfter: RoundUp(after-most, b.Tick)}
	}
	delay := max(after-b.Capacity(), 0)
	return after, Verdict{Allowed: true, Granted: cost, Delay: RoundUp(delay, b.Tick)}
}
