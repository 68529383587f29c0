// Command daemon measures the daemon through each of its APIs, beside a floor: a bare
// gRPC server with a constant response, redis-server's own INCR, a bare net/http server.
// Servers run in their own processes, on one processor, and the load on the others. Floor and
// daemon take turns, and the result is the ratio within a pair of turns.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() {
	harness.RunIfChild(serveFloor)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A bench is one run.
type bench struct {
	*harness.Run
	daemon string // the path of the program
	shared bool   // whether servers share all processors with their Redis and the load

	onServerProcessor []string // the command by which a server that is measured gets its processor; nil for none
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("daemon", stdout, stderr)}
	b.TurnFlags("pairs", "turn", harness.Turns{Rounds: 10, Turn: 2 * time.Second}, harness.Turns{Rounds: 1, Turn: 50 * time.Millisecond})
	b.Flags.BoolVar(&b.shared, "shared", false, "let servers share all processors with their Redis and the load, instead of having one of their own")
	b.Settings = func() string { return fmt.Sprintf("%d pairs of turns of %s", b.Rounds, b.Turn) }
	b.Prepare = b.build
	return b.Main(args, []harness.Case{
		{Name: "rls", Run: b.separated(b.rlsOnMemory)},
		{Name: "rlsredis", Run: b.separated(b.rlsOnRedis)},
		{Name: "rlscluster", Run: b.separated(b.rlsOnCluster)},
		{Name: "resp", Run: b.separated(b.resp)},
		{Name: "http", Run: b.separated(b.http)},
		{Name: "overrides", Run: b.overrides},
		{Name: "additions", Run: b.separated(b.compareAdditions)},
		{Name: "weight", Run: b.weigh},
	})
}
