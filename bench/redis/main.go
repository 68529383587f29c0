// Command redis compares penstock's Redis store with the limiters on Redis that Go
// programs use today, with common designs, and with the floors: the least that a round
// trip to Redis can cost. It starts its own redis-server and prints Markdown.
//
//	go run ./redis                      # some minutes
//	go run ./redis -run 'clients'       # some cases
//	go run ./redis -instructions        # with instructions counted, by valgrind
//	go run ./redis -tenmillion          # with ten million keys
//	go run ./redis -quick               # a few seconds, to see that it runs
//
// The results are ratios: medians over rounds in which the contenders take turns, so
// that other load on the machine affects all of them alike. Every case verifies its
// workload: that the keys exist and expire, and that every request was granted, counted
// by the server.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run, with a server.
type bench struct {
	*harness.Run
	server *server
}

// benchmarkRounds is the number of turns of each shape under redis-benchmark. They are
// longer than those of a client library, so there are fewer.
func (b *bench) benchmarkRounds() int { return max(b.Rounds/3, 1) }

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	quietGoZero()
	b := &bench{Run: harness.New("redis", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 60, Turn: 40 * time.Millisecond}, harness.Turns{Rounds: 3, Turn: 2 * time.Millisecond})
	instructions := b.Flags.Bool("instructions", false, "count the server's instructions too, which needs valgrind and is slow")
	tenMillion := b.Flags.Bool("tenmillion", false, "fill ten million keys too, which takes minutes and 3 GB")
	for _, l := range append(floors[:1:1], rivals...) {
		b.Rivals = append(b.Rivals, l.module)
	}
	version := ""
	b.Settings = func() string {
		return fmt.Sprintf("Redis %s, %d rounds of %s a limiter, %d by redis-benchmark", version, b.Rounds, b.Turn, b.benchmarkRounds())
	}
	b.Prepare = func() {
		b.server = b.startServer(nil)
		version = redistest.InfoField(b, b.server.Server, "redis_version")
	}
	return b.Main(args, []harness.Case{
		{Name: "clients", Run: b.clients},
		{Name: "split", Run: b.split},
		{Name: "permits", Run: b.permits},
		{Name: "settle", Run: b.settlements},
		{Name: "scripts", Run: b.scripts},
		{Name: "instructions", Run: b.instructions, Only: instructions},
		{Name: "weight", Run: b.weights},
		{Name: "logweight", Run: b.logWeights},
		{Name: "settings", Run: b.settings},
		{Name: "tenmillion", Run: b.tenMillionKeys, Only: tenMillion},
	})
}
