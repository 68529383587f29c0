package algorithm

// A Rate is what both buckets count by: how long one unit takes to come back,
// and how many units fit.
//
// Neither bucket counts units. Each keeps one instant, at which everything
// taken so far will have come back; how far that lies ahead of now is the debt.
// A unit costs one Interval of debt, time pays it off at one nanosecond per
// nanosecond, and a bucket is full of debt at Capacity. That is the generic
// cell rate algorithm: nothing has to be refilled, no remainder is lost, and a
// key that is not asked about costs nothing.
//
//	0 ────────── debt ────────── Capacity
//	│    used     │     free        │
type Rate struct {
	Interval int64 // see [Interval]
	Burst    int64 // units that fit at once
	Tick     int64 // of the store's clock
}

// NewRate returns the rate of count units per period, burst at once. It is not
// ok when [Interval] is not, or when a whole burst takes too long to refill.
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

// Capacity is the debt of a bucket with nothing left to take.
func (r *Rate) Capacity() int64 { return r.Burst * r.Interval }

// free returns how many units fit beside a debt, when the debt may grow to most.
func (r *Rate) free(debt, most int64) int64 {
	if debt >= most {
		return 0
	}
	return min(int64(uint64(most-debt)/uint64(r.Interval)), r.Burst)
}

// Standing returns how a bucket with a debt stands.
func (r *Rate) Standing(debt int64) Standing {
	return Standing{Remaining: r.free(debt, r.Capacity()), ResetAfter: RoundUp(debt, r.Tick)}
}

// giveBack pays off debt as if the units had never been taken. Of a unit that
// has partly come back already, only the rest is left to give. A look, which
// gives nothing back, changes nothing.
func (r *Rate) giveBack(debt int64, ask Ask) (int64, Verdict) {
	if debt == 0 || ask.Cost == 0 {
		return debt, Verdict{Allowed: true}
	}
	owed := debt / r.Interval
	if debt%r.Interval > 0 {
		owed++
	}
	v := ask.givesBack(owed)
	if -v.Granted == owed {
		return 0, v
	}
	return debt + v.Granted*r.Interval, v
}
