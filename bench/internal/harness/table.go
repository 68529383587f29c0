package harness

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
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
