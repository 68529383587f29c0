package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/bench/lineage/rivalscripts"
)

// A load is a shape under redis-benchmark. Its figures are the rate, and microseconds a request: of
// the server's processor, and inside the command.
type load struct {
	harness.Contender
	*shape
}

// turn sends requests, and returns what the server did meanwhile.
func (s *load) turn(srv *server, run harness.RedisBenchmark) harness.Info {
	before := srv.info()
	rate, err := run.Run(srv.Port, s.open())
	if err != nil {
		harness.Check(fmt.Errorf("%s: %w", s.name, err))
	}
	d := srv.info().Since(before)
	sent := float64(run.Sent())
	s.Add("rate", rate)
	s.Add("server", 1e6*d.CPU/sent)
	s.Add("inside", float64(d.Commands[s.command()].Micros)/sent)
	return d
}

// benchmarkInTurns runs shapes in turns under redis-benchmark, verifies each turn by what the server
// did, and adds rows to the table, with ratios to the first.
func (b *bench) benchmarkInTurns(title string, run harness.RedisBenchmark, shapes []*shape, verify func(*shape, harness.RedisBenchmark, harness.Info) error) []*load {
	b.Logf("%s: %d rounds of %d requests for each of %d shapes", title, b.benchmarkRounds(), run.Requests, len(shapes))
	var subjects []*load
	for _, sh := range shapes {
		s := &load{shape: sh}
		s.Name = sh.name
		run := run
		run.Requests *= cmp.Or(sh.more, 1) // or else the start of redis-benchmark would cost commands without a script more
		s.Measure = func(*harness.Contender) { harness.Check(verify(sh, run, s.turn(b.server, run))) }
		subjects = append(subjects, s)
	}
	harness.TakeTurns(b.benchmarkRounds(), subjects...)
	t := b.Table("By redis-benchmark", "redis-benchmark", "shape", "thousand a second", "to INCR", "server µs each", "of these inside the command")
	for _, c := range subjects {
		t.Row(title, c.Name, harness.Decimals(0)(c.Median("rate")/1000), c.To(subjects[0], "rate"),
			harness.Decimals(1)(c.Median("server")), harness.Decimals(1)(c.Median("inside")))
	}
	return subjects
}

// verifyExisting returns an error unless every request was granted, and the number of keys is
// unchanged.
func verifyExisting(s *shape, run harness.RedisBenchmark, d harness.Info) error {
	if d.Keys != 0 || d.Expires != 0 {
		return fmt.Errorf("%s: %d new keys during the load, want none", s.name, d.Keys)
	}
	return s.verifyGrants(d, run.Sent())
}

// scriptShapes are all shapes for redis-benchmark: INCR first and penstock next, so that
// both sides of the ratio with a target run next to each other.
func scriptShapes() (shapes []*shape, ours int) {
	our := ourShapes(1)
	shapes = append([]*shape{incrShape()}, our...)
	shapes = append(shapes, pingShape(), trivialShape())
	return append(shapes, designShapes()...), len(our)
}

// scriptTargets are the targets of the scripts as shares of INCR's rate, and instructionTargets as
// multiples of INCR's instructions, in the order of ourShapes.
var (
	scriptTargets      = []float64{0.18, 0.19, 0.18}
	instructionTargets = []float64{9.5, 10, 10.5}
)

// scripts measures every shape with 50 connections and pipelines of 16, on existing
// keys.
func (b *bench) scripts() {
	shapes, ours := scriptShapes()
	b.server.empty()
	for _, s := range shapes {
		s.fillFresh(b.server, b.Size(50_000, 200), 1)
	}
	run := harness.RedisBenchmark{Connections: 50, Pipeline: 16, Requests: b.Size(32_000, 1_600), Keys: b.Size(50_000, 200)}
	subjects := b.benchmarkInTurns("50 connections, pipelines of 16", run, shapes, verifyExisting)
	for i, s := range subjects[1 : 1+ours] {
		b.FindAtLeast(s.Name+" script, redis-benchmark -c 50 -P 16", s.To(subjects[0], "rate"), scriptTargets[i], "INCR's rate")
	}
}

// tenMillionKeys measures Redis with more keys than any cache holds. INCR has as many.
// It has no target.
func (b *bench) tenMillionKeys() {
	n := b.Size(10_000_000, 4_000)
	ours, incr := ourShape(keyOf("pen"), tokenBucket, 1), incrShape()
	b.server.empty()
	defer b.server.empty()
	b.Logf("%s keys: filling", harness.Thousands(n))
	bytes := b.weigh(b.server, "standalone", ours, n, 1)
	incr.fillFresh(b.server, n, 1)
	run := harness.RedisBenchmark{Connections: 50, Pipeline: 16, Requests: b.Size(32_000, 1_600), Keys: n}
	subjects := b.benchmarkInTurns(harness.Thousands(n)+" keys, 50 connections, pipelines of 16", run, []*shape{incr, ours}, verifyExisting)
	b.Find(harness.Thousands(n)+" keys, token bucket", "", true, "%.1f B a key, %.0f thousand decisions a second (%s INCR)",
		bytes, subjects[1].Median("rate")/1000, subjects[1].To(subjects[0], "rate"))
}

// The documents that propose the logs measure them with 500 connections, no pipeline,
// 500,000 random keys, random times, two units in 30,000, and the script's text in each
// call. These are the same settings; penstock sends its usual commands, for two units in
// 30 seconds.

// settings measures the two logs and penstock as those documents do: on keys that are created on
// first use. A third request for a key is denied, so grants are not counted; failures are.
func (b *bench) settings() {
	shapes := settingsShapes()
	b.server.empty()
	for _, s := range shapes {
		s.fill(b.server, 0, 0) // loads its script
	}
	run := harness.RedisBenchmark{Connections: b.Size(500, 20), Pipeline: 1, Requests: b.Size(40_000, 2_000), Keys: b.Size(500_000, 5_000)}
	verify := func(s *shape, run harness.RedisBenchmark, d harness.Info) error {
		if n := d.Failed(); n > 0 || d.Commands[s.command()].Calls < run.Requests {
			return fmt.Errorf("%s: %d commands failed of %d", s.name, n, run.Requests)
		}
		return nil
	}
	subjects := b.benchmarkInTurns(fmt.Sprintf("%d connections, no pipeline", run.Connections), run, shapes, verify)[1:]
	var bytes []float64
	for _, s := range subjects {
		bytes = append(bytes, b.weighRandomly(run, s.shape))
	}
	hash, zset := subjects[0], subjects[1]
	for i, s := range subjects[2:] {
		toHash, toZset, bytesOfOurs := s.To(hash, "rate"), s.To(zset, "rate"), bytes[2+i]
		b.Find(s.Name+", with the documents' settings", "faster and smaller than hash log and zset log",
			toHash.Median > 1 && toZset.Median > 1 && bytesOfOurs < min(bytes[0], bytes[1]),
			"%s the hash log, %s the zset log; %.0f B a key to %.0f and %.0f", toHash, toZset, bytesOfOurs, bytes[0], bytes[1])
	}
}

// settingsShapes returns INCR, the two logs, and then penstock's shapes.
func settingsShapes() []*shape {
	shapes := []*shape{
		{name: "INCR", words: []string{"INCR", "i" + numberMark}, perKey: 1, lasting: true},
		scripted("hash log, by its text", rivalscripts.HashLog, "", []string{"h" + numberMark}, numberMark, "30000", "2").unscripted(),
		scripted("zset log, by its text", rivalscripts.ZsetLog, "", []string{"z" + numberMark}, numberMark, "30000", "2").unscripted(),
	}
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.SlidingWindow, penstock.SlidingLog} {
		shapes = append(shapes, ourShape(numberMark, penstock.Limit{Count: 2, Period: 30 * time.Second, Algorithm: a}, 1))
	}
	return shapes
}

// weighRandomly runs a shape alone on an empty server, and returns the memory of a key.
func (b *bench) weighRandomly(run harness.RedisBenchmark, s *shape) float64 {
	b.server.empty()
	d := (&load{shape: s}).turn(b.server, run)
	// Random requests leave this share of the keys unused.
	want := float64(run.Keys) * (1 - math.Exp(-float64(run.Requests)/float64(run.Keys)))
	if d.Keys != d.Expires || math.Abs(float64(d.Keys)-want) > 0.1*want+10 {
		b.Fatalf("%s: %d keys, %d with an expiry; want about %.0f", s.name, d.Keys, d.Expires, want)
	}
	return b.addWeight(s.name, fmt.Sprintf("%d connections", run.Connections), d.Keys, d)
}

// instructions counts the server's instructions for one decision with callgrind. Unlike
// a rate, the result is nearly the same on every machine, and it ignores caches and the
// kernel.
func (b *bench) instructions() {
	shapes, ours := scriptShapes()
	if _, err := exec.LookPath("callgrind_control"); err != nil {
		b.Fatalf("valgrind is needed; on Debian: apt-get install valgrind: %w", err)
	}
	wrapper := []string{"valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.out"}
	v := simulated{b.startServer(wrapper, "--hz", "1")} // what it does besides is not to be counted
	t := b.Table("Instructions of the server, counted by callgrind", "shape", "server instructions each", "to INCR")
	incr := 0.0
	for i, s := range shapes {
		b.Logf("instructions of %s", s.name)
		each := v.count(s, b.Size(320, 160))
		if i == 0 {
			incr = each
		}
		t.Row(s.name, harness.Decimals(0)(each), harness.Times(each/incr))
		if i >= 1 && i <= ours {
			most := instructionTargets[i-1]
			b.Find(s.name+" script, server instructions", fmt.Sprintf("≤ %g× INCR's", most), each/incr <= most, "%.1f× (%.0f to %.0f)", each/incr, each, incr)
		}
	}
}

// A simulated server runs under callgrind.
type simulated struct{ *server }

// count returns the instructions of one decision, on existing keys. It subtracts two
// loads of different lengths, which removes the constant cost of a load: its
// connections.
func (v simulated) count(s *shape, decisions int) float64 {
	const keys = 200
	s.fillFresh(v.server, keys, 1)
	short := harness.RedisBenchmark{Connections: 4, Pipeline: 16, Requests: decisions, Keys: keys}
	long := short
	long.Requests *= 3
	var counts []float64
	for range 3 {
		less, more := v.under(s, short), v.under(s, long)
		counts = append(counts, float64(more-less)/float64(long.Sent()-short.Sent()))
	}
	return harness.SpreadOf(counts).Median
}

// under returns the instructions that the server executes under a load.
func (v simulated) under(s *shape, run harness.RedisBenchmark) int {
	before := v.info()
	v.control("-i", "on")
	harness.Must(run.Run(v.Port, s.open()))
	v.control("-i", "off")
	harness.Check(s.verifyGrants(v.info().Since(before), run.Sent()))
	return v.dump()
}

func (v simulated) control(words ...string) {
	out, err := exec.Command("callgrind_control", append(words, strconv.Itoa(v.PID()))...).CombinedOutput()
	if err != nil {
		harness.Check(fmt.Errorf("callgrind_control %s: %w: %s", words, err, out))
	}
}

// dump makes callgrind write its counters to a file and reset them.
func (v simulated) dump() int {
	v.control("-d")
	paths := harness.Must(filepath.Glob(v.File("callgrind.out.*")))
	if len(paths) != 1 {
		harness.Failf("callgrind wrote %d files, want one: %q", len(paths), paths)
	}
	defer func() { harness.Check(os.Remove(paths[0])) }()
	return harness.Must(readTotal(paths[0]))
}

var totals = regexp.MustCompile(`(?m)^totals: (\d+)$`)

// readTotal returns the number of instructions in a file of callgrind.
func readTotal(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	total := totals.FindSubmatch(text)
	if total == nil {
		return 0, fmt.Errorf("%s: no total", path)
	}
	return strconv.Atoi(string(total[1]))
}
