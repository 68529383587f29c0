// Command compare measures two checkouts against each other: it builds the benchmarks of each from
// its own sources, runs them in turns, and prints the best figure of each case on both sides, and
// their ratio. Rows of rivals and floors are the same code on both sides, so their ratios say how much
// the machine disturbed the run.
//
//	go run ./compare -old ../../before                       # everything, about an hour
//	go run ./compare -old ../../before -run memory -turns 10 # one benchmark
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A benchmark is a program, the cases and lengths with which it is run, and the columns of its tables
// that are compared. In those of thousands a second, the highest figure is the best.
type benchmark struct {
	program        string
	flags, columns []string
}

var benchmarks = []benchmark{
	{"memory", []string{"-run", "^(hot|denied|store|many|algorithms)$", "-rounds", "20"}, []string{"ns a call"}},
	{"engine", nil, []string{"ns per decision"}},
	{
		"redis", []string{"-run", "^(clients|split)$", "-rounds", "10"},
		[]string{"thousand calls a second", "client µs a call", "server µs a call", "in all"},
	},
	{"daemon", []string{"-run", "^(rls|resp|http)$", "-pairs", "3", "-turn", "1s"}, []string{"thousand a second", "server µs a call"}},
}

func main() {
	old := flag.String("old", "", "the `folder` of the other checkout")
	only := flag.String("run", "", "run only the benchmarks that match this regular expression")
	turns := flag.Int("turns", 5, "number of turns of each side")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err == nil {
		err = compare([2]string{filepath.Join(*old, "bench"), "."}, pattern, *turns)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// compare runs the benchmarks in two folders, the old one first.
func compare(folders [2]string, only *regexp.Regexp, turns int) error {
	bin, err := os.MkdirTemp("", "penstock-compare")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(bin) }()
	table := measure.Table{"benchmark", "case", "figure", "old", "new", "time, new to old"}
	table.Begin(os.Stdout, fmt.Sprintf("The best of %d turns", turns))
	for _, b := range benchmarks {
		if !only.MatchString(b.program) {
			continue
		}
		best := &results{}
		for turn := range 2 * turns {
			side := turn % 2
			program := filepath.Join(bin, fmt.Sprint(b.program, side))
			if _, err := run(folders[side], "go", "build", "-o", program, "./"+b.program); err != nil {
				return err
			}
			out, err := run(folders[side], program, b.flags...)
			if err != nil {
				return err
			}
			best.read(b, side, out)
		}
		best.print(table, b.program)
	}
	return nil
}

// run runs a command in a folder, and returns what it prints.
func run(folder, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s in %s: %w", program, folder, err)
	}
	return string(out), err
}

// results are the best figures of both sides, in the order in which they were first printed.
type results struct{ rows []*row }

type row struct {
	title, column string
	best          [2]float64 // 0 if a side does not have it
}

func (r *row) isRate() bool { return strings.HasPrefix(r.column, "thousand") }

// separator is between the cells of a Markdown table, or of one with aligned columns.
var separator = regexp.MustCompile(`\s*\|\s*|\s{2,}`)

// read reads the tables that a benchmark has printed. The cells before the first column that is
// compared say which case it is.
func (r *results) read(b benchmark, side int, out string) {
	isCompared := func(column string) bool { return slices.Contains(b.columns, column) }
	var head []string
	first := -1
	for line := range strings.Lines(out) {
		cells := separator.Split(strings.Trim(line, "| \n"), -1)
		if at := slices.IndexFunc(cells, isCompared); at >= 0 || len(cells) == 1 {
			head, first = cells, at
			continue
		}
		for i := max(first, 0); first >= 0 && i < min(len(head), len(cells)); i++ {
			if value, err := strconv.ParseFloat(cells[i], 64); err == nil && isCompared(head[i]) {
				r.add(row{title: strings.Join(cells[:first], ", "), column: head[i]}, side, value)
			}
		}
	}
}

// add records a figure of a side, if it is better than those before.
func (r *results) add(figure row, side int, value float64) {
	i := slices.IndexFunc(r.rows, func(o *row) bool { return o.title == figure.title && o.column == figure.column })
	if i < 0 {
		i = len(r.rows)
		r.rows = append(r.rows, &figure)
	}
	if best := &r.rows[i].best[side]; *best == 0 || (value > *best) == figure.isRate() {
		*best = value
	}
}

func (r *results) print(t measure.Table, program string) {
	for _, row := range r.rows {
		slower, faster := row.best[1], row.best[0]
		if row.isRate() {
			slower, faster = faster, slower
		}
		ratio := "–" // of a row that one side does not have
		if slower > 0 && faster > 0 {
			ratio = fmt.Sprintf("%.3f", slower/faster)
		}
		t.Row(os.Stdout, program, row.title, row.column, fmt.Sprint(row.best[0]), fmt.Sprint(row.best[1]), ratio)
	}
}
