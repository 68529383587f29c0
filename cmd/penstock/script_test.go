package main

import (
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata/script say what the command and the daemon do. Besides
// testscript's own commands they have:
//
//	daemon FLAGS...  starts penstock serve on ports that nobody uses, and waits until
//	                 it is ready; $GRPC, $HTTP, $RESP and $ADMIN are where it listens
//	logged PATTERN   waits until the daemon's log has a line that matches
//	signal NAME      sends the daemon HUP, INT, TERM or KILL
//	ended CODE       waits until the daemon has ended, with that exit code
//	load DOOR...     asks doors without a pause, on connections that are kept
//	unharmed         waits until those who ask have found the doors closed, and
//	                 checks that every question before that got its answer
//	certificate NAME makes NAME.crt and NAME.key, signed by ca.crt; "expired NAME" one
//	                 that is not good any more
//	redis            starts a Redis server; $REDIS is where it is
//	redis VERB       kills, restarts, pauses or resumes that
//	until WHAT...    runs a shell command again and again until it succeeds

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"penstock": main}) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(3 * time.Minute), // for what should have refused to start
		Setup: func(e *testscript.Env) error {
			e.Values[daemonKey{}] = &daemon{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":      startDaemon,
			"logged":      awaitLog,
			"signal":      signalDaemon,
			"ended":       awaitEnd,
			"load":        startLoad,
			"unharmed":    checkLoad,
			"certificate": makeCertificate,
			"redis":       controlRedis,
			"until":       awaitCommand,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}
