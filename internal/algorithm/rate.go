package algorithm

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
type Rate struct {
	Interval int64 // see [Interval]
	Burst    int64 // units that fit at once
	Tick     int64 // of the store's clock
}

// NewRate returns the rate of count units per period with a burst. It is not ok
// if [Interval] is not, or if a whole burst takes longer than [MaxRefill].
func NewRate(count, period, burst, tick int64) (r Rate, ok bool) {
	if count == 0 {
		return Rate{Interval: 1, Tick: tick}, true
	}
	interval, ok := Interval(count, period, burst)
	if !ok || burst > MaxRefill/interval {
		return Rate{}, false
	}
	return Rate{Interval: interval, Burst: burst, Tick: tick}, true
}

// Capacity returns the debt of an empty bucket.
func (r *Rate) Capacity() int64 { return r.Burst * r.Interval }

// free returns how many units fit if the debt may grow to maxDebt.
func (r *Rate) free(debt, maxDebt int64) int64 {
	if debt >= maxDebt {
		return 0
	}
	return min(int64(uint64(maxDebt-debt)/uint64(r.Interval)), r.Burst)
}

// Balance returns the state of a bucket with that debt.
func (r *Rate) Balance(debt int64) Balance {
	return Balance{Remaining: r.free(debt, r.Capacity()), ResetAfter: RoundUp(debt, r.Tick)}
}

// refund reduces the debt by whole units. If the last unit is partly refilled,
// only its remaining part is refunded. A peek changes nothing.
func (r *Rate) refund(debt int64, req Request) (int64, Outcome) {
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
