package harness

import (
	"cmp"
	"fmt"
)

// Findings are the rows of the table of targets.
type Findings []Finding

// A Finding is one row: a target, which may be empty, and what was measured.
type Finding struct {
	Title, Target, Measured string
	Met                     bool
}

// Find adds a finding; measured and args are formatted as by [fmt.Sprintf].
func (fs *Findings) Find(title, target string, met bool, measured string, args ...any) {
	*fs = append(*fs, Finding{Title: title, Target: target, Met: met, Measured: fmt.Sprintf(measured, args...)})
}

// FindAtLeast adds the finding that a ratio to something is at least so much.
func (fs *Findings) FindAtLeast(title string, ratio Spread, least float64, than string) {
	fs.Find(title, fmt.Sprintf("≥ %s %s", Times(least), than), ratio.Median >= least, "%s", ratio)
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

// table returns the table of targets. Those of a quick run are not checked.
func (fs Findings) table(checked bool) *Table {
	t := &Table{title: "Targets", head: []string{"case", "target", "measured", "result"}}
	for _, f := range fs {
		t.Row(f.Title, cmp.Or(f.Target, "–"), f.Measured, f.result(checked))
	}
	return t
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
