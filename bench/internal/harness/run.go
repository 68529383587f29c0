// Package harness is what the benchmarks share: a command line, cases and their errors, contenders
// that take turns, targets, and tables in Markdown.
package harness

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

// A Run is one run of a benchmark: its settings, and what it found. For functions that set up
// servers for tests it is the test that they are called by; where a test would fail, the case ends.
type Run struct {
	testing.TB
	Flags *flag.FlagSet
	Quick bool
	Turns
	Prepare  func()        // is called after the flags were read, before the cases; nil for nothing
	Done     bool          // set by Prepare if no cases are to be run
	Settings func() string // are printed beside the machine
	Rivals   []string      // modules whose versions are printed
	Findings

	stdout, stderr io.Writer
	quickTurns     Turns
	tables         []*Table
	cleanups       []func()
}

// A Case is a part of a benchmark that can be run by itself. It ends early, by Check, Must or Fatal,
// if its workload was wrong; a missed target is a finding.
type Case struct {
	Name string
	Run  func()
	Only *bool // it runs only if this flag is set; nil for always
}

// New returns the run of a benchmark.
func New(name string, stdout, stderr io.Writer) *Run {
	r := &Run{Flags: flag.NewFlagSet(name, flag.ContinueOnError), stdout: stdout, stderr: stderr, Turns: Turns{1, 1}}
	r.Flags.SetOutput(stderr)
	return r
}

// Turns are how many turns each contender of a case takes, and about how long one is.
type Turns struct {
	Rounds int
	Turn   time.Duration
}

// TurnFlags defines the flags of turns, and those of a quick run.
func (r *Run) TurnFlags(roundsFlag, turnFlag string, full, quick Turns) {
	r.quickTurns = quick
	r.Flags.IntVar(&r.Rounds, roundsFlag, full.Rounds, "number of turns of each contender in a case")
	r.Flags.DurationVar(&r.Turn, turnFlag, full.Turn, "length of a turn")
}

// Main reads the command line, runs the cases that it names, prints the report and returns the exit
// status.
func (r *Run) Main(args []string, cases []Case) int {
	var names []string
	for _, c := range cases {
		names = append(names, c.Name)
	}
	r.Flags.BoolVar(&r.Quick, "quick", false, "small and short, to see that everything runs; targets are not checked")
	pattern := r.Flags.String("run", "", "run only the cases that match this regular expression: "+strings.Join(names, ", "))
	if err := r.Flags.Parse(args); err != nil {
		return 2
	}
	only, err := regexp.Compile(*pattern)
	if err == nil && (r.Rounds < 1 || r.Turn <= 0) {
		err = fmt.Errorf("%d turns of %s: both must be more than zero", r.Rounds, r.Turn)
	}
	if err != nil {
		r.Logf("%v", err)
		return 2
	}
	if r.Quick && r.quickTurns.Rounds > 0 {
		r.Turns = Turns{min(r.Rounds, r.quickTurns.Rounds), r.quickTurns.Turn}
	}
	defer r.Close()
	if r.Prepare != nil {
		if err := Try(r.Prepare); err != nil {
			r.Logf("%v", err)
			return 1
		}
	}
	if r.Done {
		return 0
	}
	wrong := 0
	for _, c := range cases {
		if !only.MatchString(c.Name) || c.Only != nil && !*c.Only {
			continue
		}
		begin := time.Now()
		if err := r.attempt(c.Run); err != nil {
			wrong++
			r.Logf("wrong workload: %s: %v", c.Name, err)
		}
		r.Logf("%s took %s", c.Name, time.Since(begin).Round(time.Second))
		runtime.GC()
	}
	r.report()
	return min(wrong, 1)
}

// report prints what was found.
func (r *Run) report() {
	fmt.Fprintf(r.stdout, "%s, %d logical cores, %s %s/%s", processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if r.Settings != nil {
		fmt.Fprint(r.stdout, "; ", r.Settings())
	}
	fmt.Fprintln(r.stdout, ".")
	if r.Quick {
		fmt.Fprintln(r.stdout, "\nA quick run: few keys, few rounds, no meaningful figures.")
	}
	if list := Versions(r.Rivals); list != "" {
		fmt.Fprintf(r.stdout, "\nRivals: %s.\n", list)
	}
	if targets := r.Findings.table(!r.Quick); len(targets.rows) > 0 {
		targets.write(r.stdout)
	}
	for _, t := range r.tables {
		t.write(r.stdout)
	}
}

// A failure is why a case ended early.
type failure struct{ error }

// Check ends the case if there is an error. It must be called by the goroutine of the case.
func Check(err error) {
	if err != nil {
		panic(failure{err}) //nolint:forbidigo // it is recovered by Try, as in a test
	}
}

// Failf ends the case.
func Failf(format string, args ...any) { Check(fmt.Errorf(format, args...)) }

// Must returns a value, or ends the case if there is an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Try returns the failure of a function, if Check, Must or Fatal has ended it.
func Try(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			fail, ok := p.(failure)
			if !ok {
				panic(p) //nolint:forbidigo // a bug
			}
			err = fail.error
		}
	}()
	f()
	return nil
}

// attempt returns the failure of a case, after its cleanups.
func (r *Run) attempt(run func()) error {
	defer r.cleanUp(len(r.cleanups))
	return Try(run)
}

// cleanUp runs the cleanups above the first n.
func (r *Run) cleanUp(n int) {
	for len(r.cleanups) > n {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
}

// Close runs all cleanups.
func (r *Run) Close() { r.cleanUp(0) }

// Cleanup calls a function at the end of the case.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// TempDir returns a directory that is removed at the end of the case.
func (r *Run) TempDir() string {
	dir := Must(os.MkdirTemp("", r.Flags.Name()))
	r.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Helper does nothing.
func (r *Run) Helper() {}

// Fatal ends the case.
func (r *Run) Fatal(args ...any) { Check(errors.New(fmt.Sprint(args...))) }

// Fatalf ends the case.
func (r *Run) Fatalf(format string, args ...any) { Failf(format, args...) }

// Scale returns one of two values: that of a full run, or of a quick one.
func Scale[T any](r *Run, full, quick T) T {
	if r.Quick {
		return quick
	}
	return full
}

// Size scales a number.
func (r *Run) Size(full, quick int) int { return Scale(r, full, quick) }

// Logf prints a line of progress, or an error.
func (r *Run) Logf(format string, args ...any) {
	fmt.Fprintf(r.stderr, "%s: %s\n", r.Flags.Name(), fmt.Sprintf(format, args...))
}

// childVariable is the environment variable that gives a child process its task.
const childVariable = "PENSTOCK_BENCH_CHILD"

// Child returns a command that runs this program again, for a task: as a server, or to measure
// something in a process of its own.
func Child(task string) *exec.Cmd {
	cmd := exec.Command(Must(os.Executable()))
	cmd.Env = append(os.Environ(), childVariable+"="+task)
	cmd.Stderr = os.Stderr
	return cmd
}

// Output runs a command and returns what it prints, or ends the case.
func Output(cmd *exec.Cmd) string {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		Failf("%s: %w: %s", cmd, err, &stderr)
	}
	return string(out)
}

// RunIfChild does the task of a child process and ends it, if this process is one.
func RunIfChild(do func(task string)) {
	task, isChild := os.LookupEnv(childVariable)
	if !isChild {
		return
	}
	if err := Try(func() { do(task) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

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
