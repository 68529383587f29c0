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

var update = flag.Bool("update", false, "write the memory store's answers into the transcripts")

func openMemory(_ testing.TB, clock *Clock) penstock.Store {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: tick})
}

// The transcripts must be as -update would write them, to the letter.
func TestVectors(t *testing.T) {
	for _, script := range readTranscripts(t) {
		old := slices.Clone(script.lines)
		answerAll(t, script)
		for i, line := range script.lines {
			if line != old[i] && !*update {
				t.Errorf("%s:%d: run with -update, and read what changes\n got %s\nwant %s", script.name, i+1, old[i], line)
			}
		}
		if *update {
			rewrite(t, script)
		}
	}
}

// rewrite writes a transcript back to its file.
func rewrite(t *testing.T, script *transcript) {
	t.Helper()
	name := filepath.Join("..", "internal", "algorithm", "vectors", script.name)
	if err := os.WriteFile(name, []byte(strings.Join(script.lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// answerAll writes the memory store's answers into the transcript's lines.
func answerAll(t *testing.T, script *transcript) {
	t.Helper()
	for _, s := range script.scenes {
		clock := &Clock{}
		store := openMemory(t, clock)
		for i := range s.steps {
			answers, err := perform(store, clock, &s.steps[i])
			if err != nil {
				t.Fatalf("%s:%d: %v", script.name, s.steps[i].calls[0].line+1, err)
			}
			for j, c := range s.steps[i].calls {
				script.answer(c.line, answers[j])
			}
		}
	}
}

// answer writes an answer into a line, and leaves what is before it as it is.
func (script *transcript) answer(line int, a answer) {
	asked, _, answered := strings.Cut(script.lines[line], "=>")
	if !answered {
		asked += "  "
	}
	script.lines[line] = asked + "=> " + a.String()
}
