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

// A bench is one run: its server and its sizes.
type bench struct {
	*harness.Run
	server *server
	sizes  sizes
}

// sizes are the numbers of keys and requests in the cases.
type sizes struct {
	many           int // "10 thousand keys"
	counted        int // calls whose allocations are counted
	benchmarkKeys  int // keys of each shape under redis-benchmark
	requests       int // of one turn of redis-benchmark
	decisions      int // of which instructions are counted
	weighed        int // "200 thousand keys"
	entries        int // of all logs together
	connections    int // "500 connections"
	randomKeys     int // "500 thousand keys"
	randomRequests int
	tenMillion     int
}

var fullSizes = sizes{
	many:           10_000,
	counted:        50_000,
	benchmarkKeys:  50_000,
	requests:       32_000,
	decisions:      320,
	weighed:        200_000,
	entries:        200_000,
	connections:    500,
	randomKeys:     500_000,
	randomRequests: 40_000,
	tenMillion:     10_000_000,
}

// quickSizes only show that every case runs.
var quickSizes = sizes{
	many:           200,
	counted:        1_000,
	benchmarkKeys:  200,
	requests:       1_600,
	decisions:      160,
	weighed:        2_000,
	entries:        4_000,
	connections:    20,
	randomKeys:     5_000,
	randomRequests: 2_000,
	tenMillion:     4_000,
}

// benchmarkRounds is the number of turns of each shape under redis-benchmark. They are
// longer than those of a client library, so there are fewer.
func (b *bench) benchmarkRounds() int { return max(b.Rounds/3, 1) }

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	quietGoZero()
	b := &bench{Run: harness.New("redis", stdout, stderr), sizes: fullSizes}
	b.TurnFlags("rounds", 60, "round", 40*time.Millisecond)
	instructions := b.Flags.Bool("instructions", false, "count the server's instructions too, which needs valgrind and is slow")
	tenMillion := b.Flags.Bool("tenmillion", false, "fill ten million keys too, which takes minutes and 3 GB")
	for _, l := range append(floors[:1:1], rivals...) {
		b.Rivals = append(b.Rivals, l.module)
	}
	b.Settings = func() string {
		return fmt.Sprintf("Redis %s, %d rounds of %s a limiter, %d by redis-benchmark",
			redistest.InfoField(b, b.server.Server, "redis_version"), b.Rounds, b.Turn, b.benchmarkRounds())
	}
	b.Prepare = func() {
		if b.Quick {
			b.Rounds, b.Turn, b.sizes = min(b.Rounds, 3), 2*time.Millisecond, quickSizes
		}
		b.server = b.startServer(nil)
	}
	return b.Main(args, []harness.Case{
		{Name: "clients", Run: b.clients},
		{Name: "split", Run: b.split},
		{Name: "scripts", Run: b.scripts},
		{Name: "instructions", Run: b.instructions, Only: instructions},
		{Name: "weight", Run: b.weights},
		{Name: "logweight", Run: b.logWeights},
		{Name: "settings", Run: b.settings},
		{Name: "tenmillion", Run: b.tenMillionKeys, Only: tenMillion},
	})
}
