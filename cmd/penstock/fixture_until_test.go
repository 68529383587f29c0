package main

import (
	"os/exec"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// retryCommand repeats a shell command until it succeeds.
func retryCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until COMMAND...")
	}
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		output, err := runShell(ts, strings.Join(args, " "))
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("after %v: %v:\n%s\n%s", waitTimeout, err, output, daemonOf(ts).logText(ts))
		}
	}
}

// runShell runs a command in the script's directory, with the addresses of the servers.
func runShell(ts *testscript.TestScript, command string) (output []byte, err error) {
	sh := exec.Command("sh", "-c", command)
	sh.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HTTP", "ADMIN", "REDIS"} {
		sh.Env = append(sh.Env, name+"="+ts.Getenv(name))
	}
	return sh.CombinedOutput()
}
