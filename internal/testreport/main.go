// Command testreport reads the output of go test -json and prints one line for
// each package as it ends, everything that failed tests printed, and at the end
// what ran and how long it took. It exits with 1 unless every test passed and at
// least one ran.
//
//	go test -json ./... | go run ./internal/testreport -title unit
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	title := flag.String("title", "tests", "`name` of the run in the summary")
	summary := flag.String("summary", "", "also append the summary to this `file`")
	flag.Parse()
	r := newReport(os.Stdout)
	begin := time.Now()
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	text := r.summary(*title, time.Since(begin))
	fmt.Fprint(os.Stdout, text)
	if err := appendTo(*summary, text); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.ok() {
		os.Exit(1)
	}
}

func appendTo(file, text string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// An event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type packageTime struct {
	name    string
	seconds float64
}

// A report counts tests, subtests included, and keeps the output of each until
// it is known whether it passed.
type report struct {
	out                     io.Writer
	passed, failed, skipped int
	tests                   map[string]int    // that passed, by package
	output                  map[string]string // by package and test
	build                   map[string]string // by import path
	failures                []string
	times                   []packageTime
}

func newReport(out io.Writer) *report {
	return &report{out: out, tests: map[string]int{}, output: map[string]string{}, build: map[string]string{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// line handles one event. What is no JSON is printed as it is: the go command
// writes some errors without regard to -json.
func (r *report) line(text []byte) {
	var e event
	if json.Unmarshal(text, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.out, "%s", text)
		return
	}
	id := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.output[id] += e.Output
	case "build-output":
		r.build[e.ImportPath] += e.Output
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(&e)
		} else {
			r.endTest(&e)
		}
		delete(r.output, id)
	}
}

func (r *report) endTest(e *event) {
	switch e.Action {
	case "pass":
		r.passed++
		r.tests[e.Package]++
	case "skip":
		r.skipped++
		fmt.Fprintf(r.out, "skip %s %s\n%s", e.Package, e.Test, r.output[e.Package+" "+e.Test])
	case "fail":
		r.fail(e.Package+" "+e.Test, r.output[e.Package+" "+e.Test])
	}
}

func (r *report) endPackage(e *event) {
	if e.Action == "fail" {
		// A test that never ended, as after a panic or a timeout, has no
		// event of its own.
		text := r.build[e.FailedBuild] + r.output[e.Package+" "]
		for _, id := range r.unfinished(e.Package) {
			text += r.output[id]
			delete(r.output, id)
		}
		r.fail(e.Package, text)
	}
	r.times = append(r.times, packageTime{e.Package, e.Elapsed})
	if e.Action == "pass" {
		fmt.Fprintf(r.out, "ok   %-60s %5d tests %7.1fs\n", e.Package, r.tests[e.Package], e.Elapsed)
	}
}

func (r *report) unfinished(pkg string) (ids []string) {
	for id := range r.output {
		if name, test, _ := strings.Cut(id, " "); name == pkg && test != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (r *report) fail(what, output string) {
	r.failed++
	r.failures = append(r.failures, what)
	fmt.Fprintf(r.out, "FAIL %s\n%s", what, output)
}

func (r *report) ok() bool { return r.failed == 0 && r.passed > 0 }

const slowest = 5

func (r *report) summary(title string, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s: %d packages in %s; slowest:", title, len(r.times), took.Round(time.Second))
	slices.SortFunc(r.times, func(a, b packageTime) int { return int(1000 * (b.seconds - a.seconds)) })
	for _, t := range r.times[:min(slowest, len(r.times))] {
		fmt.Fprintf(&b, " %s %.0fs", shortName(t.name), t.seconds)
	}
	b.WriteString("\n")
	for _, name := range r.failures {
		fmt.Fprintf(&b, "FAIL %s\n", name)
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return b.String()
}

// shortName drops the host and the owner from an import path.
func shortName(pkg string) string {
	parts := strings.Split(pkg, "/")
	return strings.Join(parts[min(2, len(parts)-1):], "/")
}
