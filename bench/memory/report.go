package main

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A report is the results of a run, in the order of measurement.
type report struct {
	measure.Findings
	timings []timing
	weights []memoryUse
}

func (r *report) addTimings(ts ...timing) { r.timings = append(r.timings, ts...) }

// findAgainstFloor adds the finding of a case with a target relative to the floor.
func (r *report) findAgainstFloor(title string, t timing, atMost float64) {
	target, met := "", true
	if atMost > 0 {
		target = fmt.Sprintf("≤ %s the floor, 0 allocations", measure.Times(atMost))
		met = t.toFloor.Median <= atMost && t.allocs < noAllocations
	}
	r.Add(title, target, met, "%s the floor, %s allocations", measure.TimesWithSpread(t.toFloor), count(t.allocs))
}

// write prints the report as Markdown.
func (r *report) write(w io.Writer, checked bool) {
	r.Findings.Write(w, checked)
	r.writeTimings(w)
	r.writeWeights(w)
}

func (r *report) writeTimings(w io.Writer) {
	if len(r.timings) == 0 {
		return
	}
	t := measure.Table{"case", "limiter", "ns a call", "to the floor", "to penstock", "allocations", "keys touched", "denied"}
	t.Begin(w, "Speed: medians of the rounds, in brackets the 10th to the 90th percentile")
	for _, m := range r.timings {
		t.Row(w, m.title, m.name, fmt.Sprintf("%.1f", m.nanos.Median),
			measure.TimesWithSpread(m.toFloor), measure.TimesWithSpread(m.toOurs),
			count(m.allocs), measure.Thousands(m.keys), fmt.Sprintf("%.0f %%", 100*m.denied))
	}
}

func (r *report) writeWeights(w io.Writer) {
	if len(r.weights) == 0 {
		return
	}
	t := measure.Table{"limiter", "keys", "heap bytes a key", "heap objects a key", "forced GC, best of five"}
	t.Begin(w, "Memory: each in its own process, every key live")
	for _, m := range r.weights {
		t.Row(w, m.Name, measure.Thousands(m.Keys), fmt.Sprintf("%.1f", m.Bytes),
			fmt.Sprintf("%.2f", m.Objects), millis(m.GC))
	}
}

// count formats allocations per call.
func count(x float64) string {
	if x < noAllocations {
		return "0"
	}
	return fmt.Sprintf("%.2f", x)
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
