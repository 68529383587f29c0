package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestBenchRuns(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, store := range []string{"memory", "Redis"} {
		if !strings.Contains(out.String(), store) {
			t.Errorf("no row of %s:\n%s", store, &out)
		}
	}
}
