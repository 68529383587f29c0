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
	deadline := time.Now().Add(patience)
	for {
		sh := exec.Command("sh", "-c", strings.Join(args, " "))
		sh.Dir = ts.MkAbs(".")
		for _, name := range []string{"PATH", "HTTP", "ADMIN", "REDIS"} {
			sh.Env = append(sh.Env, name+"="+ts.Getenv(name))
		}
		said, err := sh.CombinedOutput()
		switch {
		case err == nil:
			return
		case time.Now().After(deadline):
			ts.Fatalf("after %v: %v:\n%s\n%s", patience, err, said, daemonOf(ts).text(ts))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
