package penstock

import (
	"math"
	"strconv"
	"time"
)

// scaled returns a fraction of a valid limit: at least one unit, unless the limit
// has none.
func (l Limit) scaled(share float64) Limit {
	n := l.Normal()
	if n.Name == "" { // fractions of different limits may be equal, but must not share state
		n.Name = "part of " + strconv.FormatInt(n.Count, 36) + " " + strconv.FormatInt(n.Burst, 36) + " " + strconv.FormatInt(int64(n.Period), 36)
	}
	if n.isBucket() && n.Count > 0 {
		n.Period = scaledPeriod(n.Period, float64(n.Count)*share)
	}
	n.Count, n.Burst = scaledUnits(n.Count, share), scaledUnits(n.Burst, share)
	if n.Debt > 0 {
		n.Debt = scaledUnits(n.Debt, share)
	}
	if n.Validate() != nil { // the rate is too high to be divided evenly
		n.Count, n.Burst, n.Debt = min(n.Count, 1), min(n.Burst, 1), min(n.Debt, 1)
	}
	return n
}

// scaledPeriod returns the time in which a bucket earns one unit, if that is
// longer than the period. Otherwise N processes would each earn one unit per
// period.
func scaledPeriod(period time.Duration, units float64) time.Duration {
	if units >= 1 {
		return period
	}
	return time.Duration(min(math.Round(float64(period)/units), float64(maxPeriod)))
}

// scaledUnits multiplies and rounds down, tolerating floating-point error: a
// third of three is one.
func scaledUnits(units int64, share float64) int64 {
	scaled := int64(math.Floor(float64(units)*share + 1e-9))
	return min(max(scaled, 1), units)
}
