package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHistogramBucketBounds(t *testing.T) {
	for range 100_000 {
		d := time.Duration(rand.Uint64() >> (2 + rand.IntN(62)))
		bucket := bucketIndex(d)
		if end := bucketEnd(bucket); end <= d || bucket > 0 && bucketEnd(bucket-1) > d || float64(end) > 1.07*float64(d)+1 {
			t.Fatalf("%v is in bucket %d, which ends at %v, after one that ends at %v", d, bucket, end, bucketEnd(bucket-1))
		}
	}
}

func TestHistogramQuantileError(t *testing.T) {
	h, all := &histogram{}, make([]time.Duration, 10_000)
	for i := range all {
		all[i] = time.Duration(rand.ExpFloat64() * float64(time.Millisecond))
		h.add(all[i])
	}
	slices.Sort(all)
	for _, q := range []float64{.01, .5, .9, .99, .999, 1} {
		want := all[max(int(q*float64(len(all)))-1, 0)]
		if got := h.quantile(q); got < want || float64(got) > 1.07*float64(want) {
			t.Errorf("quantile %v: got %v, want %v or a little more", q, got, want)
		}
	}
	if h.max.Load() != int64(all[len(all)-1]) || h.total() != uint64(len(all)) {
		t.Errorf("max %v of %d, want %v of %d", h.max.Load(), h.total(), all[len(all)-1], len(all))
	}
}

func TestHistogramRowsStepBy125(t *testing.T) {
	h := &histogram{}
	for _, d := range []time.Duration{3 * time.Microsecond, 40 * time.Microsecond, 41 * time.Microsecond, 400 * time.Microsecond, 3 * time.Hour} {
		h.add(d)
	}
	sum := uint64(0)
	rows := h.rows()
	for _, r := range rows {
		sum += r.Count
	}
	if sum != 5 {
		t.Errorf("rows count %d of 5: %v", sum, rows)
	}
	want := []histogramRow{{5000, 1}, {10_000, 0}, {20_000, 0}, {50_000, 2}, {100_000, 0}, {200_000, 0}, {500_000, 1}}
	if !slices.Equal(rows[:7], want) {
		t.Errorf("got %v, want %v first", rows[:7], want)
	}
	var b strings.Builder
	h.draw(&b)
	if !strings.HasPrefix(b.String(), "    <5µs  ████████████████████ 1\n") {
		t.Errorf("output:\n%s", b.String())
	}
	if rows := (&histogram{}).rows(); len(rows) != 0 {
		t.Errorf("rows of an empty histogram: %v", rows)
	}
}
