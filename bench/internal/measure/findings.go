package measure

import (
	"fmt"
	"io"
)

// Findings are the table that matters, in the order of finding.
type Findings []Finding

// A Finding is one line of it: what was to be reached and what was. Without a
// target it is there to be known.
type Finding struct {
	Title, Target, Measured string
	Met                     bool
}

// Add adds a finding; what was measured is put together as by [fmt.Sprintf].
func (fs *Findings) Add(title, target string, met bool, measured string, args ...any) {
	*fs = append(*fs, Finding{Title: title, Target: target, Met: met, Measured: fmt.Sprintf(measured, args...)})
}

// Missed counts the findings that did not reach their target.
func (fs Findings) Missed() int {
	n := 0
	for _, f := range fs {
		if f.Target != "" && !f.Met {
			n++
		}
	}
	return n
}

// Write prints the findings, if there are any. A run that is not judged was too
// short for a verdict.
func (fs Findings) Write(w io.Writer, judged bool) {
	if len(fs) == 0 {
		return
	}
	t := Table{"case", "to reach", "measured", "verdict"}
	t.Begin(w, "Targets")
	for _, f := range fs {
		t.Row(w, f.Title, OrDash(f.Target), f.Measured, f.verdict(judged))
	}
}

func (f Finding) verdict(judged bool) string {
	switch {
	case f.Target == "":
		return "–"
	case !judged:
		return "not judged"
	case f.Met:
		return "pass"
	}
	return "FAIL"
}
