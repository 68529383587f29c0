package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCasesRunQuick(t *testing.T) {
	var out, stderr bytes.Buffer
	file := filepath.Join(t.TempDir(), "outage.csv")
	if status := command([]string{"-quick", "-csv", file}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, want := range []string{
		"| hot key with a lease, 64 callers, B = 15,000, load below its rate | ≥ 20×",
		"| hot key with a lease, eight nodes,", "| deny cache, 90 % spent keys, 64 callers | ≥ 5×",
		"| deny cache, 1 saturated keys,", "| deny cache, 100 saturated keys,", "| fallback on a healthy path,",
		"| deny cache on a healthy path,", "| Redis hung (SIGSTOP),", "| failover, Sentinel |", "| failover, Cluster |", "| Redis is killed and comes back empty, two processes |", "not checked",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	text, err := os.ReadFile(file)
	if samples := string(text); err != nil || !strings.HasPrefix(samples, "seconds,admitted,bound,down\n") || !strings.Contains(samples, ",1\n") {
		t.Errorf("%v: no outage in the samples:\n%s", err, samples)
	}
}

func TestCheckOutageRejectsExcess(t *testing.T) {
	over := []point{{at: time.Second, admitted: 10 * outageRate, fallback: 1, bound: outageBound(time.Second, 0, false)}}
	if checkOutage(over) == nil {
		t.Error("ten bursts in one second pass the check")
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	var out, stderr bytes.Buffer
	for _, args := range [][]string{{"-rounds", "0"}, {"-run", "("}, {"-nonsense"}} {
		if status := command(args, &out, &stderr); status != 2 {
			t.Errorf("%q: status %d, want 2", args, status)
		}
	}
}
