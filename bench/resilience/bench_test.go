package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCasesRunQuick(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, want := range []string{
		"| hot key with a lease, 64 callers, B = 15,000, load below its rate | ≥ 20×",
		"| hot key with a lease, eight nodes,", "| deny cache, 90 % spent keys, 64 callers | ≥ 5×",
		"| deny cache, 1 saturated keys,", "| deny cache, 100 saturated keys,", "| fallback on a healthy path,",
		"| deny cache on a healthy path,", "| Redis hung (SIGSTOP),", "| failover, Sentinel |", "| failover, Cluster |", "not checked",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
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
