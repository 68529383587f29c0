package algorithm

import (
	"math"
	"math/bits"
)

// A Rate is the arithmetic of both buckets: how long one unit takes to refill,
// and how many units fit.
//
// Neither bucket counts units. Each stores one instant: when everything taken so
// far will have refilled. The time from now until then is the debt. A unit costs
// one Interval of debt, time pays it off, and the bucket is empty at a debt of
// Capacity. This is the generic cell rate algorithm (GCRA): it computes no
// refills, loses no remainders, and stores nothing for an idle key.
//
//	0 ────────── debt ────────── Capacity
//	│    used     │     free        │
//
// The debt exceeds Capacity if units are reserved (see [TokenBucket]), if a request
// overdrew the bucket, or if it was charged under a larger burst. A debt beyond what
// reservations and overdrafts can reach is clamped to that, because the clock stepped
// back. It may also be that of a burst which takes more than twice as long to refill:
// the state does not tell them apart.
type Rate struct {
	Interval  int64 // see [Interval]
	Burst     int64 // units that fit at once
	Overdraft int64 // units beyond the burst that a request may overdraw
	Tick      int64 // of the store's clock

	reciprocal uint64 // of the interval, times 2^64; 0 if it is not known
}

// minute is the least reach of reservations.
const minute = 60_000_000_000

// A Bucket is the state of a token or leaky bucket. The zero Bucket is full.
type Bucket struct {
	Full int64 // when it will be full again
}

// NewRate returns the rate of count units per period with a burst and an overdraft.
// It is not ok if [Interval] is not, or if a whole burst or overdraft takes longer
// than [MaxRefill].
func NewRate(count, period, burst, overdraft, tick int64) (r Rate, ok bool) {
	if count == 0 {
		return Rate{Interval: 1, Tick: tick}, true
	}
	larger := max(burst, overdraft)
	interval, ok := Interval(count, period, larger)
	if !ok || larger > MaxRefill/interval {
		return Rate{}, false
	}
	return Rate{Interval: interval, Burst: burst, Overdraft: overdraft, Tick: tick, reciprocal: math.MaxUint64 / uint64(interval)}, true
}

// Capacity returns the debt of an empty bucket.
func (r *Rate) Capacity() int64 { return r.Burst * r.Interval }

// Reach returns how far ahead units may be reserved.
func (r *Rate) Reach() int64 { return max(r.Capacity(), minute) }

// MaxDebt returns the largest debt that a bucket can have. A rate that admits nothing
// keeps any debt: no caller waits for it, and a later rate may continue with it.
func (r *Rate) MaxDebt() int64 {
	if r.Burst == 0 {
		return exactInteger / 2
	}
	return r.Capacity() + max(r.Reach(), r.Overdraft*r.Interval)
}

// Debt returns how far the bucket is from full, clamped to the largest possible
// debt.
func (r *Rate) Debt(s Bucket, now int64) int64 {
	return min(max(s.Full-now, 0), r.MaxDebt())
}

// overdraw returns the state after a request that is charged even if it does not
// fit, and the outcome.
func (r *Rate) overdraw(debt, now int64, req *Request) (Bucket, Outcome) {
	room := max((r.Burst+r.Overdraft)*r.Interval-debt, 0)
	out := req.overdraw(minDown(req.Cost, room, r.Interval))
	return withDebt(debt+out.Granted*r.Interval, now), out
}

// withDebt returns the state of a bucket with that debt.
func withDebt(debt, now int64) Bucket {
	if debt == 0 {
		return Bucket{}
	}
	return Bucket{Full: now + debt}
}

// costNow returns the cost to charge and the largest debt allowed, for a request with
// AtMost or KeepFree that is not granted ahead. A cost above the burst is never granted.
func (r *Rate) costNow(debt int64, req *Request) (cost, maxDebt int64) {
	if req.NeverFits(r.Burst) {
		return r.Burst + 1, r.Capacity()
	}
	maxDebt = r.Capacity() - req.KeepFree*r.Interval
	return req.fit(r.free(debt, maxDebt)), maxDebt
}

// free returns how many units fit if the debt may grow to maxDebt.
func (r *Rate) free(debt, maxDebt int64) int64 {
	if debt >= maxDebt {
		return 0
	}
	return min(int64(r.intervals(uint64(maxDebt-debt))), r.Burst)
}

// intervals returns how many whole intervals a time has. It is called for every decision, and
// a multiplication takes a fraction of the time of a division. The reciprocal is rounded down,
// by less than 1, and so the product by less than 2: it may be one too small.
func (r *Rate) intervals(time uint64) uint64 {
	interval := uint64(r.Interval)
	if r.reciprocal == 0 {
		return time / interval
	}
	n, _ := bits.Mul64(time, r.reciprocal)
	if time-n*interval >= interval {
		n++
	}
	return n
}

// Balance returns the state of a bucket with that debt.
func (r *Rate) Balance(debt int64) Balance {
	return Balance{Remaining: r.free(debt, r.Capacity()), ResetAfter: RoundUp(debt, r.Tick)}
}

// refund reduces the debt by whole units. If the last unit is partly refilled,
// only its remaining part is refunded. A peek changes nothing.
func (r *Rate) refund(debt int64, req *Request) (int64, Outcome) {
	if debt == 0 || req.Cost == 0 {
		return debt, Outcome{Allowed: true}
	}
	owed := debt / r.Interval
	if debt%r.Interval > 0 {
		owed++
	}
	out := req.refund(owed)
	if -out.Granted == owed {
		return 0, out
	}
	return debt + out.Granted*r.Interval, out
}

// RefundDue refunds units of a grant, as far as time will pay them until due.
func (r *Rate) RefundDue(s Bucket, now, units, due int64) (Bucket, Outcome) {
	debt := r.Debt(s, now)
	unpaid := min(debt, due-now)
	if unpaid <= 0 || units == 0 {
		return withDebt(debt, now), Outcome{Allowed: true}
	}
	units = minUp(units, unpaid, r.Interval)
	return withDebt(debt-min(units*r.Interval, unpaid), now), Outcome{Allowed: true, Granted: -units}
}
