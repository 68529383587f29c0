package main

import (
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"penstock": main, ratelimitName: main})
}

// scriptDeadline returns when a command that hangs is killed, such as a server that
// should not have started. How long all scripts take together depends on the machine,
// so it is shortly before the test itself times out.
func scriptDeadline(t *testing.T) time.Time {
	deadline, ok := t.Deadline()
	if !ok {
		return time.Time{}
	}
	return deadline.Add(-time.Minute)
}

// setUp prepares a script. The race detector has the options of the test, or else each command
// would sleep for a second at its end.
func setUp(e *testscript.Env) {
	e.Values[daemonKey{}] = &daemon{}
	e.Setenv("GORACE", os.Getenv("GORACE"))
}
