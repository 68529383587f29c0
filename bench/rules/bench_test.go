package main

import (
	"strings"
	"testing"
)

func TestRunPrintsEveryMeasurement(t *testing.T) {
	var out strings.Builder
	if err := run(quick, &out); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"load 100 rules and 1000 values", `match route=/r50|user=ada`, "match plan=paid|tenant=t500", "during reloads"} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("no row %q:\n%s", row, out.String())
		}
	}
}
