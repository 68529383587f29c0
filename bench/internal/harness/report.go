package harness

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// A Table is a Markdown table.
type Table struct {
	title string
	head  []string
	rows  [][]any
}

// Table returns the table with a title, which is printed if it has rows. It is a new one if there is
// none.
func (r *Run) Table(title string, head ...string) *Table {
	for _, t := range r.tables {
		if t.title == title {
			return t
		}
	}
	t := &Table{title: title, head: head}
	r.tables = append(r.tables, t)
	return t
}

// Row adds a row. Cells are printed as by [fmt.Sprint].
func (t *Table) Row(cells ...any) { t.rows = append(t.rows, cells) }

func (t *Table) write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### %s\n\n", t.title)
	writeRow(w, t.head)
	writeRow(w, strings.Split(strings.Repeat("---,", len(t.head)-1)+"---", ","))
	for _, row := range t.rows {
		writeRow(w, row)
	}
}

func writeRow[Cell any](w io.Writer, cells []Cell) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	fmt.Fprintf(w, "| %s |\n", strings.Join(texts, " | "))
}

// Times prints a ratio, such as 2.1×.
func Times(x float64) string {
	return strconv.FormatFloat(math.Round(100*x)/100, 'f', -1, 64) + "×"
}

// Decimals returns a function that prints a number with so many digits after the point, and a dash if
// it is none.
func Decimals(digits int) func(x float64) string {
	return func(x float64) string {
		if math.IsNaN(x) {
			return "–"
		}
		return strconv.FormatFloat(x, 'f', digits, 64)
	}
}

// Thousands prints 1234567 as 1,234,567.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

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

// FindAtMost adds the finding that a ratio to something is at most so much.
func (fs *Findings) FindAtMost(title string, ratio Spread, most float64, than string) {
	fs.Find(title, fmt.Sprintf("≤ %s %s", Times(most), than), ratio.Median <= most, "%s", ratio)
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

// A Spread is the median and the 10th and 90th percentile of measurements.
type Spread struct {
	P10, Median, P90 float64
}

// String prints a ratio, such as 2.1× (1.95–2.3), and a dash if there was nothing to compare with.
func (s Spread) String() string {
	if !(s.Median > 0) { // NaN, too
		return "–"
	}
	return fmt.Sprintf("%s (%.2f–%.2f)", Times(s.Median), s.P10, s.P90)
}

// SpreadOf returns the spread of measurements.
func SpreadOf(xs []float64) Spread {
	sorted := slices.Sorted(slices.Values(xs))
	return Spread{
		P10:    quantile(sorted, 0.10),
		Median: quantile(sorted, 0.50),
		P90:    quantile(sorted, 0.90),
	}
}

// quantile interpolates between the two nearest values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Quantile sorts times, and returns the one below which that share of them is; 0 if there is none.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

// Millis is a time in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// WriteCSV writes a file that bench/plots draws, if it has a name, or ends the case.
func WriteCSV(file string, lines [][]string) {
	if file == "" {
		return
	}
	f := Must(os.Create(file))
	Check(csv.NewWriter(f).WriteAll(lines))
	Check(f.Close())
}

// Ratios divides measurements of the same round, so that other load on the machine
// affects both sides.
func Ratios(over, under []float64) []float64 {
	rs := make([]float64, min(len(over), len(under)))
	for i := range rs {
		rs[i] = over[i] / under[i]
	}
	return rs
}

// processor returns the model of this machine's processor.
func processor() string {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if all, err := fs.CPUInfo(); err == nil && len(all) > 0 {
			return all[0].ModelName
		}
	}
	return "unknown processor"
}

// Versions lists modules with the versions that this program was built with.
func Versions(modules []string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var vs []string
	for _, m := range info.Deps {
		if slices.Contains(modules, m.Path) {
			vs = append(vs, m.Path+" "+m.Version)
		}
	}
	return strings.Join(vs, ", ")
}
