package storetest

import (
	"flag"
	"os"
	"path/filepath"
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
		old := strings.Join(script.lines, "\n")
		answerAll(t, script)
		text := strings.Join(script.lines, "\n")
		switch {
		case text == old:
		case *update:
			name := filepath.Join("..", "internal", "algorithm", "vectors", script.name)
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: rewritten", name)
		default:
			t.Errorf("%s is not as the memory store answers; run with -update and read what changes", script.name)
		}
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
