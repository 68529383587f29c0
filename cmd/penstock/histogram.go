package main

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"
)

// A histogram counts durations with a relative error of at most a sixteenth. One
// goroutine may add while others read.
type histogram struct {
	counts [64 * bucketsPerDoubling]atomic.Uint64
	sum    atomic.Int64
	max    atomic.Int64
}

// bucketsPerDoubling is the number of buckets between a power of two and the next.
const bucketsPerDoubling = 16

func (h *histogram) add(d time.Duration) {
	h.counts[bucketIndex(d)].Add(1)
	h.sum.Add(int64(d))
	if int64(d) > h.max.Load() {
		h.max.Store(int64(d))
	}
}

func bucketIndex(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < bucketsPerDoubling {
		return int(n)
	}
	shift := bits.Len64(n) - bits.Len64(bucketsPerDoubling)
	return shift*bucketsPerDoubling + int(n>>shift)
}

// bucketEnd returns the first duration that is beyond a bucket.
func bucketEnd(bucket int) time.Duration {
	if bucket < bucketsPerDoubling {
		return time.Duration(bucket + 1)
	}
	shift := bucket/bucketsPerDoubling - 1
	return time.Duration(bucket-shift*bucketsPerDoubling+1) << shift
}

// merged returns the sum of histograms.
func merged(all []*histogram) *histogram {
	h := &histogram{}
	for _, o := range all {
		for i := range o.counts {
			h.counts[i].Add(o.counts[i].Load())
		}
		h.sum.Add(o.sum.Load())
		h.max.Store(max(h.max.Load(), o.max.Load()))
	}
	return h
}

func (h *histogram) total() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

func (h *histogram) mean() time.Duration {
	return time.Duration(h.sum.Load() / max(int64(h.total()), 1))
}

// quantile returns a duration that a fraction q of all durations does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	want, seen := q*float64(h.total()), uint64(0)
	for i := range h.counts {
		seen += h.counts[i].Load()
		if seen > 0 && float64(seen) >= want {
			return min(bucketEnd(i), time.Duration(h.max.Load()))
		}
	}
	return 0
}

// draw writes a bar for each row.
func (h *histogram) draw(w io.Writer) {
	rows := h.rows()
	most := uint64(1)
	for _, r := range rows {
		most = max(most, r.Count)
	}
	for _, r := range rows {
		bar := strings.Repeat("█", int(40*r.Count/most))
		fmt.Fprintf(w, "%8s  %s %d\n", "<"+time.Duration(r.Below).String(), bar, r.Count)
	}
}

// A histogramRow counts the durations from the end of the row before up to Below,
// exclusive.
type histogramRow struct {
	Below int64  `json:"below_ns"`
	Count uint64 `json:"count"`
}

// rows returns the counts in steps of 1, 2, 5, 10 and so on, from the first to the last
// row that is not empty.
func (h *histogram) rows() (rows []histogramRow) {
	r := histogramRow{Below: 1000}
	for i := range h.counts {
		n := h.counts[i].Load()
		for n > 0 && int64(bucketEnd(i)) > r.Below && r.Below < int64(time.Hour) {
			if r.Count > 0 || len(rows) > 0 {
				rows = append(rows, r)
			}
			r = histogramRow{Below: nextRowEnd(r.Below)}
		}
		r.Count += n
	}
	if r.Count > 0 {
		rows = append(rows, r)
	}
	return rows
}

// nextRowEnd returns the number after n in 1, 2, 5, 10, 20, 50 …
func nextRowEnd(n int64) int64 {
	first := n
	for first >= 10 {
		first /= 10
	}
	if first == 2 {
		return n / 2 * 5
	}
	return 2 * n
}

// shortDuration formats a duration with about three digits.
func shortDuration(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return d.String()
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
