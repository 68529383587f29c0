package main

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
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

// A machine may stop the process for longer than requests are made.
func TestReloadsAreMeasuredWithOneRequest(t *testing.T) {
	s := quick
	s.load = 0
	set, err := s.parse()
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(set)
	var out strings.Builder
	if err := s.measureReloads(e, &out); err != nil || !strings.Contains(out.String(), "slowest of 1 requests, during reloads") {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
