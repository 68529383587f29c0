package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunPrintsEveryReplay(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, row := range []string{"one rule", "with suggestions", "beside other rules"} {
		if !strings.Contains(out.String(), "| "+row+" |") {
			t.Errorf("no row %q:\n%s", row, &out)
		}
	}
}
