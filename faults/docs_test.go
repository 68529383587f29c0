package faults

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The document has a sentence about each fault, and the row of a run. Nor does it
// promise what nobody has tried.
func TestDocumentKnowsEveryFault(t *testing.T) {
	if *update {
		t.Skip("the table is about to be written, and looked at then")
	}
	knowsEveryFault(t)
}

func knowsEveryFault(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	promises, rest, ok := strings.Cut(string(text), tableBegins)
	measured, _, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", document)
	}
	made := map[string]bool{}
	for _, f := range faults {
		made[f.name] = true
		if row := "| " + f.name + " " + f.what + " | " + f.on + " | " + string(f.layers) + " |"; !strings.Contains(measured, row) {
			t.Errorf("%s: the table has no row %q: make faults UPDATE=1", document, row)
		}
		if !strings.Contains(promises, "\n| "+f.name+" ") {
			t.Errorf("%s says nothing about %s", document, f.name)
		}
	}
	for _, row := range regexp.MustCompile(`\n\| (F\d+) `).FindAllStringSubmatch(promises, -1) {
		if !made[row[1]] {
			t.Errorf("%s promises something about %s, which is never made", document, row[1])
		}
	}
	if got, want := strings.Count(measured, "\n"), len(faults)+2; got != want {
		t.Errorf("%s: the table has %d lines, want %d: make faults UPDATE=1", document, got, want)
	}
}

// The matrix that this suite is built after.
func TestEveryFaultOfTheMatrixIsMade(t *testing.T) {
	made := map[string]bool{}
	for _, f := range faults {
		made[f.name] = true
	}
	for _, name := range strings.Fields("F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 F13 F14 F15 F16 F17 F18 F20 F29 F30 F31") {
		if !made[name] {
			t.Errorf("%s is never made", name)
		}
	}
}
