package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func TestMain(m *testing.M) {
	harness.RunIfChild(serveHTTP)
	os.Exit(m.Run())
}

// Every case runs, and every library has its row.
func TestCasesRunQuick(t *testing.T) {
	file := filepath.Join(t.TempDir(), "overload.csv")
	var out, errors bytes.Buffer
	if status := command(t, []string{"-quick", "-csv", file}, &out, &errors); status != 0 {
		t.Fatalf("status %d\n%s", status, &errors)
	}
	for _, l := range libraries {
		if !strings.Contains(out.String(), "| "+l.name+" |") {
			t.Errorf("no row of %s", l.name)
		}
	}
	if text, err := os.ReadFile(file); err != nil || strings.Count(string(text), "\n") < 10 {
		t.Errorf("%s, %v, want a line for each library and load", text, err)
	}
}
