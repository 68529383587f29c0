package main

import (
	"strings"
	"testing"
)

func TestBenchRuns(t *testing.T) {
	var out strings.Builder
	if err := run(1, &out); err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"memory", "Redis"} {
		if !strings.Contains(out.String(), store) {
			t.Errorf("no row of %s:\n%s", store, out.String())
		}
	}
}
