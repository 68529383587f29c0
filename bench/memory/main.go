// Command memory compares penstock's memory store with the rate limiters that Go
// programs use today, and with the floor: the least that any of them could do. It
// prints Markdown.
//
//	go run ./memory                     # everything, some minutes
//	go run ./memory -run 'hot|many'     # some cases
//	go run ./memory -quick              # a few seconds, to see that it runs
//
// The results are ratios: medians over many short rounds in which the contenders take
// turns, so that other load on the machine affects all of them alike. Every case
// verifies its workload: how many different keys were used, and how many calls were
// denied.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() {
	harness.RunIfChild(runTask)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A bench is one run. It has cases of many keys, which fit into a cache, and of a million, which do not.
type bench struct {
	*harness.Run
	many, million int
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("memory", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 80, Turn: 10 * time.Millisecond}, harness.Turns{Rounds: 5, Turn: 200 * time.Microsecond})
	file := b.Flags.String("series", "", "only measure decisions at growing numbers of keys, and write CSV to this `file`")
	b.Rivals = rivalModules()
	b.Settings = func() string {
		return fmt.Sprintf("%d rounds of %s a contender, %d-byte keys", b.Rounds, b.Turn, keySize)
	}
	b.Prepare = func() {
		b.many, b.million = b.Size(10_000, 200), b.Size(1_000_000, 2_000)
		if *file != "" {
			b.writeSeries(*file)
			b.Done = true
		}
	}
	return b.Main(args, []harness.Case{
		{Name: "hot", Run: b.hotKey},
		{Name: "denied", Run: b.hotKeyDenied},
		{Name: "store", Run: b.throughStore},
		{Name: "many", Run: b.manyKeys},
		{Name: "algorithms", Run: b.otherAlgorithms},
		{Name: "log", Run: b.turningLog},
		{Name: "million", Run: b.millionKeys},
		{Name: "alone", Run: b.aloneKeys},
		{Name: "flood", Run: b.floodOfNewKeys},
		{Name: "weight", Run: b.weights},
		{Name: "logweight", Run: b.logWeight},
		{Name: "tenmillion", Run: b.tenMillionKeys},
	})
}
