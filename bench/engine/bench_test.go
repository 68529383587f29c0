package main

import (
	"strings"
	"testing"
)

func TestRunPrintsEveryWorkload(t *testing.T) {
	var out strings.Builder
	if err := run(quickPlan(), &out); err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		if !strings.Contains(out.String(), w.name) {
			t.Errorf("no row for %s:\n%s", w.name, out.String())
		}
	}
}
