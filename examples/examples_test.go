package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every example is in the table of README.md, has the command that starts it in its
// comment, and has a test.
func TestExamplesAreListed(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var programs []string
	for _, pattern := range []string{"*/main.go", "*/*/main.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, found...)
	}
	for _, program := range programs {
		if !strings.Contains(string(page), "]("+filepath.ToSlash(program)+")") {
			t.Errorf("README.md does not list %s", program)
		}
		source, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if head, _, _ := strings.Cut(string(source), "\npackage "); !strings.Contains(head, "go run ./") {
			t.Errorf("%s: the comment has no command that starts it", program)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(program), "main_test.go")); err != nil {
			t.Error(err)
		}
	}
	if listed := strings.Count(string(page), "/main.go)"); listed != len(programs) || listed < 8 {
		t.Errorf("README.md lists %d of %d programs", listed, len(programs))
	}
}
