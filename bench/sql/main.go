// Command sql compares the store on databases with that on Redis. It starts its own servers, redis-server without
// persistence and the databases with their defaults, and prints Markdown.
//
//	go run ./sql                      # some minutes
//	go run ./sql -run processes      # some cases
//	go run ./sql -quick               # a few seconds, to see that it runs
//
// The results are ratios: medians over rounds in which the stores take turns, so that other load on the machine
// affects all of them alike. Every case verifies that all requests were granted, and at the end that the table holds
// what was granted.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() {
	harness.RunIfChild(work)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// callers is the number of concurrent callers, as in a busy server. Several processes share them.
const callers = 64

// A bench is one run.
type bench struct {
	*harness.Run
	places []place
	titles []string                     // of the cases that have run
	ratios map[[2]string]harness.Spread // by the store and the case
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("sql", stdout, stderr), ratios: map[[2]string]harness.Spread{}}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 15, Turn: 400 * time.Millisecond}, harness.Turns{Rounds: 2, Turn: 20 * time.Millisecond})
	b.Settings = func() string {
		return fmt.Sprintf("%d callers, %d rounds of %s a store", callers, b.Rounds, b.Turn)
	}
	b.Prepare = func() { b.places = b.start() }
	keys := func() int { return b.Size(10_000, 200) }
	return b.Main(args, []harness.Case{
		{Name: "keys", Run: func() { b.compare(1, keys(), targets{rate: 0.4, p99: 4}) }},
		{Name: "hot", Run: func() { b.compare(1, 1, targets{rate: 0.8, p99: 4}) }},
		{Name: "processes", Run: func() { b.compare(4, 1, targets{rate: 0.2}) }},
		{Name: "processes-keys", Run: func() { b.compare(4, keys(), targets{}) }},
		{Name: "summary", Run: b.summary},
	})
}
