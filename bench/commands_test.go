package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/doctest"
)

// The commands in the comments of the benchmarks name programs and flags that exist. The
// test of each benchmark runs it with -quick.
func TestCommentsOfBenchmarksNameExistingFlags(t *testing.T) {
	programs, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	bin, found := t.TempDir(), 0
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, program := range programs {
		source, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		commands, err := doctest.CommentCommands(program, source, "go run")
		if err != nil {
			t.Fatal(err)
		}
		found += len(commands)
		for _, c := range commands {
			checkFlags(t, c, bin)
		}
	}
	if found < 15 {
		t.Errorf("%d commands found: the search is broken", found)
	}
}

// checkFlags asks the program for its help after the flags of the command, so that it
// parses the flags and does nothing else.
func checkFlags(t *testing.T, c doctest.Command, bin string) {
	t.Helper()
	text, _, _ := strings.Cut(c.Text, "#")
	command := strings.TrimSpace(strings.TrimPrefix(text, "go run ./"))
	output, err := exec.CommandContext(t.Context(), "sh", "-c", bin+"/"+command+" -h").CombinedOutput()
	if help := string(output); !strings.HasPrefix(help, "Usage") {
		t.Errorf("%s:%d: %s: got %v\n%s", c.Page, c.Line, c.Text, err, help)
	}
}
