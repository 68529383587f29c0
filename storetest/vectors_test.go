package storetest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

var update = flag.Bool("update", false, "write the memory store's results into the transcripts")

func openMemory(_ testing.TB, clock *Clock) penstock.Store {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: tick})
}

// The transcripts must be exactly as -update writes them.
func TestVectorsMatchMemoryStore(t *testing.T) {
	for _, script := range readTranscripts(t) {
		old := slices.Clone(script.lines)
		updateResults(t, script)
		for i, line := range script.lines {
			if line != old[i] && !*update {
				t.Errorf("%s:%d: run with -update, and review the change\n got %s\nwant %s", script.name, i+1, old[i], line)
			}
		}
		if *update {
			writeTranscript(t, script)
		}
	}
}

// Every algorithm has a transcript, which says what it decides.
func TestVectorsOfEveryAlgorithm(t *testing.T) {
	scripts := readTranscripts(t)
	for _, a := range penstock.Algorithms() {
		name := a.String() + ".txt"
		if !slices.ContainsFunc(scripts, func(s *transcript) bool { return s.name == name }) {
			t.Errorf("internal/algorithm/vectors/%s: no such file, want a transcript of what a %v decides", name, a)
		}
	}
}

// writeTranscript writes a transcript back to its file.
func writeTranscript(t *testing.T, script *transcript) {
	t.Helper()
	name := filepath.Join("..", "internal", "algorithm", "vectors", script.name)
	if err := os.WriteFile(name, []byte(strings.Join(script.lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// updateResults writes the memory store's results into the transcript's lines.
func updateResults(t *testing.T, script *transcript) {
	t.Helper()
	for _, s := range script.scenarios {
		clock := &Clock{}
		store := openMemory(t, clock)
		for i := range s.steps {
			results, err := runStep(store, clock, &s.steps[i])
			if err != nil {
				t.Fatalf("%s:%d: %v", script.name, s.steps[i].calls[0].line+1, err)
			}
			for j, c := range s.steps[i].calls {
				script.setResult(c.line, results[j])
			}
		}
	}
}

// setResult replaces the result in a line.
func (script *transcript) setResult(line int, a result) {
	requestText, _, hasResult := strings.Cut(script.lines[line], "=>")
	if !hasResult {
		requestText += "  "
	}
	script.lines[line] = requestText + "=> " + a.String()
}
