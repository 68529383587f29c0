package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every example is in the table with the command that starts it, says itself what
// to try, and has a test.
func TestEveryExampleIsListed(t *testing.T) {
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
			t.Errorf("%s does not say how to start it", program)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(program), "main_test.go")); err != nil {
			t.Error(err)
		}
	}
	if listed := strings.Count(string(page), "]("); listed != len(programs) || listed < 11 {
		t.Errorf("README.md lists %d of %d programs", listed, len(programs))
	}
}
