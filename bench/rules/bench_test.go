package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestRunPrintsEveryMeasurement(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, row := range []string{"load 100 rules and 1000 values", "match route=/r50 and user=ada", "match plan=paid and tenant=t500", "during reloads"} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("no row %q:\n%s", row, &out)
		}
	}
}

// A machine may stop the process for longer than requests are made.
func TestReloadsAreMeasuredWithOneRequest(t *testing.T) {
	b := newBench(io.Discard, io.Discard)
	b.rules, b.values, b.load = 100, 1000, 0
	b.reloadUnderLoad()
	if len(b.Findings) != 5 || b.Findings[4].Title != "slowest of 1 requests, during reloads" {
		t.Errorf("found %v", b.Findings)
	}
}
