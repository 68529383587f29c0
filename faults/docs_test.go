package faults

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// checkDocument fails unless the document describes each fault, has its row in the
// table, and makes no promise about a fault that does not exist.
func checkDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	promises, rest, ok := strings.Cut(string(text), tableBegins)
	measured, _, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s has no markers of the table", document)
	}
	known := map[string]bool{}
	for _, f := range faults {
		known[f.id] = true
		if row := "| " + f.id + " " + f.name + " | " + f.topology + " | " + string(f.layers) + " |"; !strings.Contains(measured, row) {
			t.Errorf("%s: the table has no row %q: make faults UPDATE=1", document, row)
		}
		if !strings.Contains(promises, "\n| "+f.id+" ") {
			t.Errorf("%s does not describe %s", document, f.id)
		}
	}
	for _, row := range regexp.MustCompile(`\n\| (F\d+) `).FindAllStringSubmatch(promises, -1) {
		if !known[row[1]] {
			t.Errorf("%s describes %s, which does not exist", document, row[1])
		}
	}
	if got, want := strings.Count(measured, "\n"), len(faults)+2; got != want {
		t.Errorf("%s: the table has %d lines, want %d: make faults UPDATE=1", document, got, want)
	}
}

// The numbers are those of the failure matrix in docs/reliability.md.
func TestFaultsCoverMatrix(t *testing.T) {
	known := map[string]bool{}
	for _, f := range faults {
		known[f.id] = true
	}
	for _, name := range strings.Fields("F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 F13 F14 F15 F16 F17 F18 F20 F29 F30 F31 F32 F33 F34 F35 F36 F37 F38") {
		if !known[name] {
			t.Errorf("there is no fault %s", name)
		}
	}
}
