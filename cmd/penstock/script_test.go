//go:build !race

package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata/script specify the command and the daemon. Besides the
// commands of testscript they have:
//
//	daemon FLAGS...    starts penstock serve on free ports and waits until it is
//	                   ready; $GRPC, $HTTP, $RESP and $ADMIN are its addresses
//	deployment FILE    starts the first container of a Deployment of
//	                   envoyproxy/ratelimit in the same way, and runs its probes
//	logged PATTERN     waits until the daemon's log matches
//	signal NAME        sends the daemon HUP, INT, TERM or KILL
//	exited CODE        waits until the daemon has exited, with that code
//	load API...        sends requests to APIs without a pause, on kept connections
//	checkload          waits until the load has found its listeners closed, and checks
//	                   that no request before that failed
//	certificate NAME   makes NAME.crt and NAME.key, signed by ca.crt; "certificate
//	                   expired NAME" makes an expired one
//	redis              starts a Redis server; $REDIS is its URL
//	redis VERB         kills, restarts, pauses or resumes the Redis server
//	xds FILE...        serves rule files over xDS with mutual TLS, in place of those
//	                   before; $XDS is the address
//	until COMMAND...   repeats a shell command until it succeeds
//
// They start hundreds of processes, each of which takes four times as long with the race
// detector, which sees the daemon's goroutines in the tests of package server, and the
// command's in TestDocumentedCommandsRun.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            scriptDeadline(t),
		Setup: func(e *testscript.Env) error {
			setUp(e)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":      startDaemon,
			"deployment":  startRatelimit,
			"logged":      awaitLog,
			"signal":      signalDaemon,
			"exited":      awaitExit,
			"load":        startLoad,
			"checkload":   checkLoad,
			"certificate": makeCertificate,
			"redis":       controlRedis,
			"xds":         serveXDS,
			"until":       retryCommand,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}
