// Package histogram reads what a histogram of Prometheus has counted.
package histogram

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Read returns what a histogram, or one of a vector, has counted until now, or nil for what is none.
func Read(of prometheus.Observer) *dto.Histogram {
	metric, ok := of.(prometheus.Metric)
	if !ok {
		return nil
	}
	var m dto.Metric
	_ = metric.Write(&m)
	return m.GetHistogram()
}

// Counts returns the finite bounds of a histogram and how many values each bucket has. There is one count
// more than bounds, that of the values above all of them. A histogram has a bucket without a bound as
// well once an exemplar is in it, so the number of its buckets changes while it is in use.
func Counts(h *dto.Histogram) (bounds []float64, counts []uint64) {
	below := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue
		}
		bounds = append(bounds, b.GetUpperBound())
		counts = append(counts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	return bounds, append(counts, h.GetSampleCount()-below)
}
