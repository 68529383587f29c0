// Command compare measures two checkouts against each other: it builds the benchmarks of each from
// its own sources, runs them in turns, and prints the best figure of each case on both sides, and
// their ratio. Rows of rivals and floors are the same code on both sides, so their ratios say how much
// the machine disturbed the run.
//
//	go run ./compare -old ../../before                       # everything, about an hour
//	go run ./compare -old ../../before -run memory -turns 10 # one benchmark
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A benchmark is a program, the cases and lengths with which it is run, and the columns of its tables
// that are compared. In those of thousands a second, the highest figure is the best.
type benchmark struct {
	program        string
	flags, columns []string
}

var benchmarks = []benchmark{
	{"memory", []string{"-run", "^(hot|denied|store|many|algorithms)$", "-rounds", "20"}, []string{"ns a call"}},
	{"engine", []string{"-run", "^decide$"}, []string{"ns per decision"}},
	{
		"redis",
		[]string{"-run", "^(clients|split)$", "-rounds", "10"},
		[]string{"thousand calls a second", "client µs a call", "server µs a call", "in all"},
	},
	{"daemon", []string{"-run", "^(rls|resp|http)$", "-pairs", "3", "-turn", "1s"}, []string{"thousand a second", "server µs a call"}},
}

func main() {
	r := harness.New("compare", os.Stdout, os.Stderr)
	old := r.Flags.String("old", "", "the `folder` of the other checkout")
	r.Flags.IntVar(&r.Rounds, "turns", 5, "number of turns of each side")
	var cases []harness.Case
	for _, b := range benchmarks {
		cases = append(cases, harness.Case{Name: b.program, Run: func() { compare(r, b, [2]string{filepath.Join(*old, "bench"), "."}) }})
	}
	os.Exit(r.Main(os.Args[1:], cases))
}

// compare runs a benchmark in two folders, the old one first, and adds rows to the table.
func compare(r *harness.Run, b benchmark, folders [2]string) {
	bin := r.TempDir()
	var rows []*row // in the order in which they were first printed
	for turn := range 2 * r.Rounds {
		side := turn % 2
		program := filepath.Join(bin, fmt.Sprint(b.program, side))
		run(folders[side], "go", "build", "-o", program, "./"+b.program)
		read(b, run(folders[side], program, b.flags...), func(title, column string, value float64) {
			i := slices.IndexFunc(rows, func(r *row) bool { return r.title == title && r.column == column })
			if i < 0 {
				i, rows = len(rows), append(rows, &row{title: title, column: column})
			}
			if best := &rows[i].best[side]; *best == 0 || (value > *best) == rows[i].isRate() {
				*best = value
			}
		})
	}
	t := r.Table(fmt.Sprintf("The best of %d turns", r.Rounds), "benchmark", "case", "figure", "old", "new", "time, new to old")
	for _, row := range rows {
		t.Row(b.program, row.title, row.column, row.best[0], row.best[1], row.ratio())
	}
}

// run runs a command in a folder, and returns what it prints.
func run(folder, program string, args ...string) string {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	return string(harness.Must(cmd.Output()))
}

// A row is the best figures of both sides.
type row struct {
	title, column string
	best          [2]float64 // 0 if a side does not have it
}

func (r *row) isRate() bool { return strings.HasPrefix(r.column, "thousand") }

// ratio returns how many times as long the new side takes.
func (r *row) ratio() string {
	slower, faster := r.best[1], r.best[0]
	if r.isRate() {
		slower, faster = faster, slower
	}
	if slower == 0 || faster == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3f", slower/faster)
}

// separator is between the cells of a Markdown table, or of one with aligned columns.
var separator = regexp.MustCompile(`\s*\|\s*|\s{2,}`)

// read reads the tables that a benchmark has printed. The cells before the first column that is
// compared say which case it is.
func read(b benchmark, out string, found func(title, column string, value float64)) {
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
				found(strings.Join(cells[:first], ", "), head[i], value)
			}
		}
	}
}
