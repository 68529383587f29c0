package main

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/bench/lineage/rivalscripts"
)

// A shape is a command, with a script or without, that has placeholders for the key's
// number and the time. The same shape is sent by redis-benchmark, by fill, and to a
// server under callgrind.
type shape struct {
	name  string
	text  string   // of the script, if there is one
	words []string // the command

	// Every grant runs this command so many times; the server's counter of it
	// gives the number of grants.
	write string
	times int

	more    int  // requests in a turn for each of another shape, so that turns are about as long
	lasting bool // whether its keys are to have no expiry
	perKey  int  // keys in Redis for each key of the caller
}

// The placeholders of the key's number, which redis-benchmark replaces with twelve
// digits, and of the time, which it does not know.
const numberMark, timeMark = "__rand_int__", "__time__"

// at returns the command for a key at a time, in milliseconds from some start.
func (s *shape) at(number, at int) []string {
	return s.replaced(strings.NewReplacer(numberMark, fmt.Sprintf("%012d", number), timeMark, strconv.Itoa(firstTime+at)))
}

// open returns the command at the first time, with the placeholder of the key.
func (s *shape) open() []string {
	return s.replaced(strings.NewReplacer(timeMark, strconv.Itoa(firstTime)))
}

func (s *shape) replaced(marks *strings.Replacer) []string {
	words := slices.Clone(s.words)
	for i, w := range words {
		words[i] = marks.Replace(w)
	}
	return words
}

// firstTime is a time in milliseconds, as callers of the designs send it.
const firstTime = 1_700_000_000_000

// command returns the name of the shape's command as the server counts it.
func (s *shape) command() string { return strings.ToLower(s.words[0]) }

// scripted returns a shape that runs a script on keys, and this command for a grant.
func scripted(name, text, write string, keys []string, args ...string) *shape {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	words := append([]string{"EVALSHA", hex.EncodeToString(sum[:]), strconv.Itoa(len(keys))}, keys...)
	return &shape{name: name, text: text, write: write, words: append(words, args...), times: 1, perKey: len(keys)}
}

// unscripted returns the shape that sends the script's text with each call.
func (s *shape) unscripted() *shape {
	u := *s
	u.words = append([]string{"EVAL", s.text}, s.words[2:]...)
	return &u
}

// ourShape returns the command that the store sends for a take of some units.
func ourShape(key string, limit penstock.Limit, cost int64) *shape {
	call := harness.StoreCall(penstock.Request{Key: key, Limit: limit, Cost: cost})
	return scripted("penstock "+limit.Algorithm.String(), call.Script.Text, "incrby", call.Keys, call.Args...)
}

// keyOf returns a key of 20 bytes with three letters that are unique to a shape, and a
// placeholder for its number.
func keyOf(letters string) string { return "user:" + letters + numberMark }

// An hour, and a bucket of a tenth of it, in nanoseconds, as Istio counts; and the time
// in nanoseconds, from milliseconds.
const hourNanos, bucketNanos, timeNanos = "3600000000000", "360000000000", timeMark + "000000"

// largeLimit is never reached in a run.
const largeLimit = "1000000"

// designShapes are common designs of limiters on Redis.
func designShapes() []*shape {
	istio := []string{largeLimit, hourNanos, bucketNanos, "0", "1", timeNanos, ""}
	rolling := scripted("Istio rolling window", rivalscripts.IstioRollingWindow, "hincrby", []string{keyOf("irl"), keyOf("ird")}, istio...)
	rolling.times, rolling.perKey = 2, 1 // its set comes with the second bucket
	return []*shape{
		scripted("hash log", rivalscripts.HashLog, "hincrby", []string{keyOf("hsh")}, timeMark, "3600000", largeLimit),
		scripted("zset log", rivalscripts.ZsetLog, "zadd", []string{keyOf("zst")}, timeMark, "3600000", largeLimit),
		scripted("Istio fixed window", rivalscripts.IstioFixedWindow, "hmset", []string{keyOf("ifx")}, istio...),
		rolling,
		scripted("go-zero period", rivalscripts.GoZeroPeriod, "incrby", []string{keyOf("per")}, largeLimit, "3600"),
	}
}

// The floors: a command without decision, one that writes, and one with a script.

func pingShape() *shape { return &shape{name: "PING", words: []string{"PING"}, more: 4} }

func incrShape() *shape {
	return &shape{name: "INCR", words: []string{"INCR", keyOf("inc")}, write: "incr", times: 1, more: 4, perKey: 1, lasting: true}
}

// trivialScript is the least that a script can do.
const trivialScript = "return 1"

func trivialShape() *shape {
	s := scripted("trivial EVALSHA", trivialScript, "", []string{keyOf("nop")})
	s.perKey = 0
	return s
}

// Limits that no key of a run reaches, and that hardly refill during it.
var (
	tokenBucket   = penstock.PerHour(100).WithBurst(100_000)
	fixedWindow   = penstock.PerHour(1_000_000).WithAlgorithm(penstock.FixedWindow)
	slidingWindow = penstock.PerHour(1_000_000).WithAlgorithm(penstock.SlidingWindow)
)

// ourShapes are the algorithms that have targets.
func ourShapes(cost int64) (shapes []*shape) {
	for _, limit := range []penstock.Limit{tokenBucket, fixedWindow, slidingWindow} {
		shapes = append(shapes, ourShape(keyOf("pen"), limit, cost))
	}
	return shapes
}

// fillBatch is the number of commands in one pipeline.
const fillBatch = 500

// fill sends the shape once for each of the keys 0 to n-1, at each of so many times.
func (s *shape) fill(srv *server, n, times int) {
	if s.text != "" {
		harness.Must(srv.Command("SCRIPT", "LOAD", s.text))
	}
	for i := 0; i < n*times; i += fillBatch {
		var commands rueidis.Commands
		for k := i; k < min(i+fillBatch, n*times); k++ {
			commands = append(commands, srv.client.B().Arbitrary(s.at(k%n, k/n)...).Build())
		}
		for _, result := range srv.client.DoMulti(context.Background(), commands...) {
			if err := result.Error(); err != nil && !rueidis.IsRedisNil(err) {
				harness.Check(fmt.Errorf("filling with %s: %w", s.name, err))
			}
		}
	}
}

// fillFresh fills new keys, and verifies that all of them exist afterwards, with an
// expiry.
func (s *shape) fillFresh(srv *server, n, times int) harness.Info {
	before := srv.info()
	s.fill(srv, n, times)
	d := srv.info().Since(before)
	harness.Check(s.verifyKeys(d, n))
	return d
}

// verifyKeys returns an error unless so many keys were created.
func (s *shape) verifyKeys(d harness.Info, n int) error {
	expires := n * s.perKey
	if s.lasting {
		expires = 0
	}
	if d.Keys() != n*s.perKey || d.Expires() != expires {
		return fmt.Errorf("%s: %d new keys, %d with an expiry; want %d and %d", s.name, d.Keys(), d.Expires(), n*s.perKey, expires)
	}
	return nil
}

// verifyGrants returns an error unless every one of the calls was granted.
func (s *shape) verifyGrants(d harness.Info, calls int) error {
	if n := d.Failed(); n > 0 {
		return fmt.Errorf("%s: %d commands failed", s.name, n)
	}
	if s.write == "" {
		return nil
	}
	if got := d.Calls(s.write); got != calls*s.times {
		return fmt.Errorf("%s: %d of %s for %d calls, want %d", s.name, got, s.write, calls, calls*s.times)
	}
	return nil
}

// A load is a shape under redis-benchmark. Its figures are the rate, and microseconds a request: of
// the server's processor, and inside the command.
type load struct {
	harness.Contender
	*shape
}

// turn sends requests, and returns what the server did meanwhile.
func (s *load) turn(srv *server, run harness.RedisBenchmark) harness.Info {
	before := srv.info()
	s.Add("rate", run.Run(srv.Port, s.open()))
	d, sent := srv.info().Since(before), float64(run.Sent())
	s.Add("server", d.Processor()/sent)
	s.Add("inside", float64(d.Micros(s.command()))/sent)
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
	if d.Keys() != 0 || d.Expires() != 0 {
		return fmt.Errorf("%s: %d new keys during the load, want none", s.name, d.Keys())
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
var scriptTargets, instructionTargets = []float64{0.18, 0.19, 0.18}, []float64{9.5, 10, 10.5}

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
		if n := d.Failed(); n > 0 || d.Calls(s.command()) < run.Requests {
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
	if d.Keys() != d.Expires() || math.Abs(float64(d.Keys())-want) > 0.1*want+10 {
		b.Fatalf("%s: %d keys, %d with an expiry; want about %.0f", s.name, d.Keys(), d.Expires(), want)
	}
	return b.addWeight(s.name, fmt.Sprintf("%d connections", run.Connections), d.Keys(), d)
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
	run.Run(v.Port, s.open())
	v.control("-i", "off")
	harness.Check(s.verifyGrants(v.info().Since(before), run.Sent()))
	return v.dump()
}

func (v simulated) control(words ...string) {
	harness.Output(exec.Command("callgrind_control", append(words, strconv.Itoa(v.PID()))...))
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
