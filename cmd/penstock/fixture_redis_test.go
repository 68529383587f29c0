package main

import (
	"strings"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/rogpeppe/go-internal/testscript"
)

// controlRedis starts the Redis server of a script, or kills, restarts, pauses or resumes
// it.
func controlRedis(ts *testscript.TestScript, _ bool, args []string) {
	d := daemonOf(ts)
	switch verb := strings.Join(args, " "); {
	case verb == "" && d.redis == nil:
		startRedis(ts, d)
	case verb == "kill" && d.redis != nil:
		d.redis.Kill()
	case verb == "restart" && d.redis != nil:
		ts.Check(d.redis.Restart())
	case verb == "pause" && d.redis != nil:
		ts.Check(d.redis.Pause())
	case verb == "resume" && d.redis != nil:
		ts.Check(d.redis.Resume())
	default:
		ts.Fatalf("usage: redis, then redis kill|restart|pause|resume")
	}
}

func startRedis(ts *testscript.TestScript, d *daemon) {
	s, err := redistest.Start(redistest.Options{})
	ts.Check(err)
	ts.Defer(s.Stop)
	ts.Setenv("REDIS", "redis://"+s.Addr)
	d.redis = s
}
