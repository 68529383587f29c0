// Package measure is shared by the benchmarks: medians, ratios of measurements of the
// same round, and findings in a Markdown table.
package measure

import (
	"math"
	"slices"
)

// A Spread is the median and the 10th and 90th percentile of measurements.
type Spread struct {
	P10, Median, P90 float64
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
