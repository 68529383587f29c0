package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A row is what became of one fault.
type row struct {
	fault           *fault
	admitted, bound int64
	unknown, calls  int
	downtime        time.Duration
	slowest         time.Duration // of all calls
}

func (r *run) row(length time.Duration) row {
	w := row{fault: &r.fault, unknown: r.history.unknown, calls: r.history.asked, downtime: r.history.downtime(r.counted)}
	w.slowest = r.history.slowest()
	away := r.history.away()
	for key, events := range r.history.byKey(func(*event) bool { return true }) {
		for _, e := range events {
			w.admitted += e.granted()
		}
		w.bound += r.bound(key, length, r.livesOf(events, r.history), int64(len(away[key])))
	}
	return w
}

// numbers returns the row in words.
func (w row) numbers() string {
	return fmt.Sprintf("%d calls, admitted %d, bound %d, unknown outcomes %d, downtime %s, slowest call %s",
		w.calls, w.admitted, w.bound, w.unknown, roundly(w.downtime), roundly(w.slowest))
}

// roundly returns a duration as people say it.
func roundly(d time.Duration) string {
	switch {
	case d == 0:
		return "none"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// table returns the rows as Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| fault | on | with | calls | admitted | bound | unknown | downtime |\n|---|---|---|---:|---:|---:|---:|---:|\n")
	for _, w := range rows {
		fmt.Fprintf(&b, "| %s %s | %s | %s | %d | %d | %d | %d | %s |\n", w.fault.name, w.fault.what, w.fault.on, w.fault.layers,
			w.calls, w.admitted, w.bound, w.unknown, roundly(w.downtime))
	}
	return b.String()
}

const document = "../docs/reliability.md"

// Between these the table stands in the document.
const tableBegins, tableEnds = "<!-- faults: begin -->\n", "<!-- faults: end -->"

// publish prints the table, and writes it into the document if that is wanted.
func publish(t *testing.T, rows []row) {
	t.Helper()
	if t.Failed() {
		return
	}
	fmt.Print(table(rows))
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
		t.Fatalf("%s: want a place for the table, and the rows of all faults", document)
	}
	if err := os.WriteFile(document, []byte(before+tableBegins+table(rows)+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
	knowsEveryFault(t)
}
