package main

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"
)

// A histogram counts durations, each within a sixteenth of what it was. One
// goroutine adds, any may read.
type histogram struct {
	counts [64 * parts]atomic.Uint64
	sum    atomic.Int64
	max    atomic.Int64
}

// parts is how many cells there are between a power of two and the next.
const parts = 16

func (h *histogram) add(d time.Duration) {
	h.counts[cellOf(d)].Add(1)
	h.sum.Add(int64(d))
	if int64(d) > h.max.Load() {
		h.max.Store(int64(d))
	}
}

func cellOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < parts {
		return int(n)
	}
	shift := bits.Len64(n) - bits.Len64(parts)
	return shift*parts + int(n>>shift)
}

// endOf returns the first duration that lies beyond a cell.
func endOf(cell int) time.Duration {
	if cell < parts {
		return time.Duration(cell + 1)
	}
	shift := cell/parts - 1
	return time.Duration(cell-shift*parts+1) << shift
}

// merge adds what others have counted.
func (h *histogram) merge(others []*histogram) {
	for _, o := range others {
		for i := range o.counts {
			h.counts[i].Add(o.counts[i].Load())
		}
		h.sum.Add(o.sum.Load())
		h.max.Store(max(h.max.Load(), o.max.Load()))
	}
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

// quantile returns a duration that so large a part of all does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	want, seen := q*float64(h.total()), uint64(0)
	for i := range h.counts {
		seen += h.counts[i].Load()
		if seen > 0 && float64(seen) >= want {
			return min(endOf(i), time.Duration(h.max.Load()))
		}
	}
	return 0
}

// draw writes a line for each step of 1, 2, 5 that something was counted in.
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

// A row is how many durations were below one, and not below that of the row before.
type row struct {
	Below int64  `json:"below_ns"`
	Count uint64 `json:"count"`
}

// rows returns the durations in steps of 1, 2, 5, 10 and so on, from the first to
// the last that has any.
func (h *histogram) rows() (rows []row) {
	r, last := row{Below: 1000}, 0
	for i := range h.counts {
		for i < len(h.counts)-1 && int64(endOf(i)) > r.Below && r.Below < int64(time.Hour) {
			if r.Count > 0 || len(rows) > 0 {
				rows = append(rows, r)
			}
			r = row{Below: nextStep(r.Below)}
		}
		if n := h.counts[i].Load(); n > 0 {
			r.Count += n
			last = len(rows) + 1
		}
	}
	return append(rows, r)[:last]
}

// nextStep returns what follows in 1, 2, 5, 10, 20, 50 …
func nextStep(n int64) int64 {
	first := n
	for first >= 10 {
		first /= 10
	}
	if first == 2 {
		return n / 2 * 5
	}
	return 2 * n
}

// short returns a duration with three digits or so.
func short(d time.Duration) string {
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
