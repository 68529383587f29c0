package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunPrintsEveryWorkload(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, w := range workloads {
		if strings.Count(out.String(), "| "+w.name+" |") != 2 {
			t.Errorf("no target and row for %s:\n%s", w.name, &out)
		}
	}
}
