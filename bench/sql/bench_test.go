package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func TestMain(m *testing.M) {
	harness.RunIfChild(work)
	os.Exit(m.Run())
}

// Every case runs, if the databases are installed.
func TestCasesRunQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("needs PostgreSQL and MariaDB")
	}
	var out, progress bytes.Buffer
	if got := command([]string{"-quick"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		"| PostgreSQL, 1 process, 200 keys |", "| PostgreSQL, 1 process, one key, p99 |", "| PostgreSQL, 4 processes, one key |",
		"| SQLite |", "| MariaDB |", "| PostgreSQL, synchronous_commit=off |", "| store | 1 process, 200 keys | 1 process, one key | 4 processes, one key |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-run", "("}, {"-rounds", "0"}, {"-fast"}} {
		var out, stderr bytes.Buffer
		if got := command(args, &out, &stderr); got != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exit status %d and %q, want 2 and a reason", args, got, &stderr)
		}
	}
}
