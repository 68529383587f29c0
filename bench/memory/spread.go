package main

import (
	"math"
	"slices"
)

// A spread is the middle of many measurements and how far they scatter.
type spread struct {
	p10, median, p90 float64
}

func spreadOf(xs []float64) spread {
	sorted := slices.Sorted(slices.Values(xs))
	return spread{
		p10:    quantile(sorted, 0.10),
		median: quantile(sorted, 0.50),
		p90:    quantile(sorted, 0.90),
	}
}

// quantile reads between the two nearest values where q falls between them.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// ratios divides what was measured in the same round, which is what makes a
// noisy machine bearable: both sides of a division had the same neighbours.
func ratios(over, under []float64) []float64 {
	rs := make([]float64, min(len(over), len(under)))
	for i := range rs {
		rs[i] = over[i] / under[i]
	}
	return rs
}
