package main

import (
	"strings"
	"testing"
	"time"
)

func TestOutageStaysWithinBound(t *testing.T) {
	samples, err := measure(6 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(samples); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	write(&out, samples)
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
