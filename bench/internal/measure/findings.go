package measure

import (
	"fmt"
	"io"
)

// Findings are the rows of the table of targets.
type Findings []Finding

// A Finding is one row: a target, which may be empty, and what was measured.
type Finding struct {
	Title, Target, Measured string
	Met                     bool
}

// Add adds a finding; measured and args are formatted as by [fmt.Sprintf].
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

// Write prints the findings, if there are any. The targets of a quick run are not
// checked.
func (fs Findings) Write(w io.Writer, checked bool) {
	if len(fs) == 0 {
		return
	}
	t := Table{"case", "target", "measured", "result"}
	t.Begin(w, "Targets")
	for _, f := range fs {
		t.Row(w, f.Title, OrDash(f.Target), f.Measured, f.result(checked))
	}
}

func (f Finding) result(checked bool) string {
	switch {
	case f.Target == "":
		return "–"
	case !checked:
		return "not checked"
	case f.Met:
		return "pass"
	}
	return "FAIL"
}
