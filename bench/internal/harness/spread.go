package harness

import (
	"fmt"
	"math"
	"slices"
)

// A Spread is the median and the 10th and 90th percentile of measurements.
type Spread struct {
	P10, Median, P90 float64
}

// String prints a ratio, such as 2.1× (1.95–2.3), and a dash if there was nothing to compare with.
func (s Spread) String() string {
	if !(s.Median > 0) { // NaN, too
		return "–"
	}
	return fmt.Sprintf("%s (%.2f–%.2f)", Times(s.Median), s.P10, s.P90)
}

// SpreadOf returns the spread of measurements.
func SpreadOf(xs []float64) Spread {
	sorted := slices.Sorted(slices.Values(xs))
	return Spread{
		P10:    quantile(sorted, 0.10),
		Median: quantile(sorted, 0.50),
		P90:    quantile(sorted, 0.90),
	}
}

// quantile interpolates between the two nearest values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Ratios divides measurements of the same round, so that other load on the machine
// affects both sides.
func Ratios(over, under []float64) []float64 {
	rs := make([]float64, min(len(over), len(under)))
	for i := range rs {
		rs[i] = over[i] / under[i]
	}
	return rs
}
