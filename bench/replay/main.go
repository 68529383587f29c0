// Command replay measures how fast access logs are replayed: ten million lines of the combined format that it generates,
// under one rule, then with suggestions, and beside other rules. A line is decided twice, because its time is a whole second.
//
//	go run ./replay           # two minutes, and 2 GB in the directory for temporary files
//	go run ./replay -quick    # a few seconds, to see that it runs
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/replay"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct{ *harness.Run }

// command measures, and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{harness.New("replay", stdout, stderr)}
	b.Settings = func() string { return "lines for each second of processor time, garbage collection included" }
	return b.Main(args, []harness.Case{{Name: "combined", Run: b.combined}})
}

// combined measures the replays of one log.
func (b *bench) combined() {
	lines := b.Size(10_000_000, 20_000)
	log := filepath.Join(b.TempDir(), "access.log")
	generate(log, lines)
	t := b.Table(fmt.Sprintf("Replay of %s lines", harness.Thousands(lines)), "replay", "lines a second", "denied")
	for _, c := range []struct {
		name    string
		least   float64
		options replay.Options
	}{
		{"one rule", 700_000, replay.Options{}},
		{"with suggestions", 0, replay.Options{Suggest: 0.999}},
		{"beside other rules", 0, replay.Options{Compare: parse("100/1m")}},
	} {
		c.options.Rules = parse("60/1m burst=20")
		rate, report := measure(log, c.options)
		t.Row(c.name, harness.Decimals(0)(rate), report.Denied.Count)
		if report.Requests != int64(lines) || report.Denied.Count == 0 {
			harness.Failf("%d requests, %d denied", report.Requests, report.Denied.Count)
		}
		if c.least > 0 {
			b.Find(c.name, "≥ 700,000 lines a second", rate >= c.least, "%.0f", rate)
		}
	}
}

// measure returns how many lines were replayed in a second of processor time.
func measure(log string, o replay.Options) (rate float64, report *replay.Report) {
	user, system := harness.Processor()
	report = harness.Must(replay.Run(context.Background(), []string{log}, o))
	userAfter, systemAfter := harness.Processor()
	return 1e6 * float64(report.Requests) / (userAfter - user + systemAfter - system), report
}

func parse(limit string) *rules.Set {
	text := fmt.Sprintf("domain: edge\ndescriptors: [{key: remote_address, limit: %q}]\n", limit)
	return harness.Must(rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(text)}))
}

// generate writes a log of 2,000 lines a second, of 200,000 addresses of which few are busy.
func generate(path string, lines int) {
	const perSecond, addresses = 2000, 200_000
	file := harness.Must(os.Create(path))
	out, random := bufio.NewWriterSize(file, 1<<20), rand.New(rand.NewPCG(1, 2))
	busy := rand.NewZipf(random, 1.1, 10, addresses-1)
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for i := range lines {
		a := busy.Uint64()
		at := begin.Add(time.Duration(i/perSecond) * time.Second).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(out, `10.%d.%d.%d - - [%s] "GET /item/%d?page=2 HTTP/1.1" 200 5120 "https://shop.example/" `+
			`"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"`+"\n",
			a>>16, a>>8&255, a&255, at, random.IntN(1e6))
	}
	harness.Check(out.Flush())
	harness.Check(file.Close())
}
