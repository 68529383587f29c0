package main

import (
	"os/exec"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// awaitCommand runs a shell command until it succeeds.
func awaitCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until COMMAND...")
	}
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		said, err := runShell(ts, strings.Join(args, " "))
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("after %v: %v:\n%s\n%s", patience, err, said, daemonOf(ts).text(ts))
		}
	}
}

// runShell runs a command where the script is, with what it knows of the servers.
func runShell(ts *testscript.TestScript, command string) (said []byte, err error) {
	sh := exec.Command("sh", "-c", command)
	sh.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HTTP", "ADMIN", "REDIS"} {
		sh.Env = append(sh.Env, name+"="+ts.Getenv(name))
	}
	return sh.CombinedOutput()
}
