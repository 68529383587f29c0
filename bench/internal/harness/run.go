// Package harness is what the benchmarks share: a command line, cases and their errors, contenders
// that take turns, targets, and tables in Markdown.
package harness

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
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
