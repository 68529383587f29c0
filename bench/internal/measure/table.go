package measure

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// A Table is a Markdown table with these columns.
type Table []string

// Begin prints the title and the head.
func (t Table) Begin(w io.Writer, title string) {
	fmt.Fprintf(w, "\n### %s\n\n", title)
	t.Row(w, t...)
	t.Row(w, strings.Split(strings.Repeat("---,", len(t)-1)+"---", ",")...)
}

// Row prints a row.
func (t Table) Row(w io.Writer, cells ...string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

// TimesWithSpread prints a ratio, such as 2.1× (1.95–2.3).
func TimesWithSpread(s Spread) string {
	if s.Median == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%.2f–%.2f)", Times(s.Median), s.P10, s.P90)
}

// Times prints a ratio, such as 2.1×.
func Times(x float64) string {
	return strconv.FormatFloat(math.Round(100*x)/100, 'f', -1, 64) + "×"
}

// OrDash prints a dash for nothing.
func OrDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// Thousands prints 1234567 as 1,234,567.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
