package histogram_test

import (
	"math"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/server/internal/histogram"
)

// Whatever is observed, with an exemplar or without, the counts have one more than the bounds, each value
// is in one of them, and no bound is infinite: readers keep arrays of that width.
func TestCountsHaveTheWidthOfTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := []float64{0.001, 0.25, 4}
		if rapid.Bool().Draw(t, "with an infinite bound") {
			bounds = append(bounds, math.Inf(1))
		}
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: bounds})
		want := make([]uint64, 4)
		for _, v := range rapid.SliceOf(rapid.SampledFrom([]float64{-1, 0, 0.001, 0.01, 4, 5, math.Inf(1), math.Inf(-1), math.MaxFloat64})).Draw(t, "values") {
			bucket, _ := slices.BinarySearch([]float64{0.001, 0.25, 4}, v)
			want[bucket]++
			if rapid.Bool().Draw(t, "exemplar") {
				h.(prometheus.ExemplarObserver).ObserveWithExemplar(v, prometheus.Labels{"trace_id": "a"})
			} else {
				h.Observe(v)
			}
			finite, got := histogram.Counts(histogram.Read(h))
			if !slices.Equal(got, want) || !slices.Equal(finite, []float64{0.001, 0.25, 4}) {
				t.Fatalf("after %v: bounds %v, counts %v, want %v", v, finite, got, want)
			}
		}
	})
}

func TestCountsOfWhatIsNoHistogram(t *testing.T) {
	for _, of := range []prometheus.Observer{nil, prometheus.ObserverFunc(func(float64) {}), prometheus.NewSummary(prometheus.SummaryOpts{Name: "s"})} {
		if bounds, counts := histogram.Counts(histogram.Read(of)); len(bounds) != 0 || !slices.Equal(counts, []uint64{0}) {
			t.Errorf("%T: bounds %v, counts %v", of, bounds, counts)
		}
	}
}
