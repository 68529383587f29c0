package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestOutageStaysWithinBound(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-length", "6s"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	if !strings.HasPrefix(out.String(), "seconds,admitted,bound,down\n") || !strings.Contains(out.String(), ",1\n") {
		t.Errorf("no outage in the samples:\n%s", &out)
	}
}

func TestCheckRejectsExcess(t *testing.T) {
	over := []point{{at: time.Second, admitted: 10 * rate, fallback: 1, bound: boundAt(time.Second, 0, false)}}
	if check(over) == nil {
		t.Error("ten bursts in one second pass the check")
	}
}
