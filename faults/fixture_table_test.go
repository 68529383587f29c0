package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A row is the result of one fault.
type row struct {
	fault           *fault
	admitted, bound int64
	unknown, calls  int
	downtime        time.Duration
	slowest         time.Duration // of all calls
}

func (r *run) row(length time.Duration) row {
	w := row{fault: &r.fault, unknown: r.history.unknown, calls: r.history.calls, downtime: r.history.downtime(r.affected)}
	w.slowest = r.history.slowest()
	fallbacks := r.history.fallbackNodes()
	for key, events := range r.history.byKey(func(*event) bool { return true }) {
		for _, e := range events {
			w.admitted += e.granted()
		}
		w.bound += r.bound(key, length, r.burstsOf(events, r.history), int64(len(fallbacks[key])))
	}
	return w
}

// summary returns the row as one line of text.
func (w row) summary() string {
	return fmt.Sprintf("%d calls, admitted %d, bound %d, unknown outcomes %d, downtime %s, slowest call %s",
		w.calls, w.admitted, w.bound, w.unknown, rounded(w.downtime), rounded(w.slowest))
}

// rounded returns a duration in few digits.
func rounded(d time.Duration) string {
	switch {
	case d == 0:
		return "none"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// markdownTable returns the rows as Markdown.
func markdownTable(rows []row) string {
	var b strings.Builder
	b.WriteString("| fault | on | with | calls | admitted | bound | unknown | downtime |\n|---|---|---|---:|---:|---:|---:|---:|\n")
	for _, w := range rows {
		fmt.Fprintf(&b, "| %s %s | %s | %s | %d | %d | %d | %d | %s |\n", w.fault.id, w.fault.name, w.fault.topology, w.fault.layers,
			w.calls, w.admitted, w.bound, w.unknown, rounded(w.downtime))
	}
	return b.String()
}

const document = "../docs/reliability.md"

// tableBegins and tableEnds enclose the table in the document.
const tableBegins, tableEnds = "<!-- faults: begin -->\n", "<!-- faults: end -->"

// publishTable prints the table, and writes it into the document with -faults.update.
func publishTable(t *testing.T, rows []row) {
	t.Helper()
	if t.Failed() {
		return
	}
	fmt.Print(markdownTable(rows))
	if !*update {
		return
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 || len(rows) != len(faults) {
		t.Fatalf("%s: want the markers of the table, and the rows of all faults", document)
	}
	if err := os.WriteFile(document, []byte(before+tableBegins+markdownTable(rows)+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
