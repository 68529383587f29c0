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
	for _, row := range []string{"load 100 rules and 1000 values", "match route=/r50 and user=ada", "match plan=paid and tenant=t500", "during reloads"} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("no row %q:\n%s", row, &out)
		}
	}
}
