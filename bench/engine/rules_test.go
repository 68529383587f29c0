package main

import (
	"io"
	"testing"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A machine may stop the process for longer than requests are made.
func TestReloadsAreMeasuredWithOneRequest(t *testing.T) {
	b := &ruleBench{Run: harness.New("engine", io.Discard, io.Discard), rules: 100, values: 1000}
	b.reloadUnderLoad()
	if len(b.Findings) != 5 || b.Findings[4].Title != "slowest of 1 requests, during reloads" {
		t.Errorf("found %v", b.Findings)
	}
}
