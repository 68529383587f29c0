package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// A report is everything that a run has found, in the order of finding.
type report struct {
	findings []finding
	timings  []timing
	weights  []weight
}

// A finding is a line of the table that matters: what was to be reached and
// what was. Without a target it is there to be known.
type finding struct {
	title, target, measured string
	met                     bool
}

func (f finding) verdict(judged bool) string {
	switch {
	case f.target == "":
		return "–"
	case !judged:
		return "not judged"
	case f.met:
		return "pass"
	}
	return "FAIL"
}

// missed counts the findings that did not reach their target.
func (r *report) missed() int {
	n := 0
	for _, f := range r.findings {
		if f.target != "" && !f.met {
			n++
		}
	}
	return n
}

func (r *report) add(ts ...timing) { r.timings = append(r.timings, ts...) }

func (r *report) find(title, target string, met bool, measured string, args ...any) {
	r.findings = append(r.findings, finding{
		title: title, target: target, met: met, measured: fmt.Sprintf(measured, args...),
	})
}

// findAgainstFloor is the finding of a case that is measured by the floor.
func (r *report) findAgainstFloor(title string, t timing, atMost float64) {
	target, met := "", true
	if atMost > 0 {
		target = fmt.Sprintf("≤ %s the floor, 0 allocations", times(atMost))
		met = t.toFloor.median <= atMost && t.allocs < noAllocations
	}
	r.find(title, target, met, "%s the floor, %s allocations", timesWithSpread(t.toFloor), count(t.allocs))
}

// write prints the report as Markdown.
func (r *report) write(w io.Writer, judged bool) {
	r.writeFindings(w, judged)
	r.writeTimings(w)
	r.writeWeights(w)
}

func (r *report) writeFindings(w io.Writer, judged bool) {
	if len(r.findings) == 0 {
		return
	}
	t := table{"case", "to reach", "measured", "verdict"}
	t.begin(w, "Targets")
	for _, f := range r.findings {
		t.row(w, f.title, orDash(f.target), f.measured, f.verdict(judged))
	}
}

func (r *report) writeTimings(w io.Writer) {
	if len(r.timings) == 0 {
		return
	}
	t := table{"case", "limiter", "ns a call", "to the floor", "to penstock", "allocations", "keys touched", "denied"}
	t.begin(w, "Speed: medians of the rounds, in brackets the 10th to the 90th percentile")
	for _, m := range r.timings {
		t.row(w, m.title, m.who, fmt.Sprintf("%.1f", m.nanos.median),
			timesWithSpread(m.toFloor), timesWithSpread(m.toOurs),
			count(m.allocs), thousands(m.keys), fmt.Sprintf("%.0f %%", 100*m.denied))
	}
}

func (r *report) writeWeights(w io.Writer) {
	if len(r.weights) == 0 {
		return
	}
	t := table{"limiter", "keys", "heap bytes a key", "heap objects a key", "forced GC, best of five"}
	t.begin(w, "Memory: each in a process of its own, every key live")
	for _, m := range r.weights {
		t.row(w, m.Name, thousands(m.Keys), fmt.Sprintf("%.1f", m.Bytes),
			fmt.Sprintf("%.2f", m.Objects), millis(m.GC))
	}
}

// A table is a Markdown table with these columns.
type table []string

func (t table) begin(w io.Writer, title string) {
	fmt.Fprintf(w, "\n### %s\n\n", title)
	t.row(w, t...)
	t.row(w, strings.Split(strings.Repeat("---,", len(t)-1)+"---", ",")...)
}

func (t table) row(w io.Writer, cells ...string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

func timesWithSpread(s spread) string {
	if s.median == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%.2f–%.2f)", times(s.median), s.p10, s.p90)
}

func times(x float64) string { return strconv.FormatFloat(math.Round(100*x)/100, 'f', -1, 64) + "×" }

// count prints allocations per call, 0 where there are none to speak of.
func count(x float64) string {
	if x < noAllocations {
		return "0"
	}
	return fmt.Sprintf("%.2f", x)
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// thousands prints 1234567 as 1,234,567.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
