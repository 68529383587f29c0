package main

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/bench/lineage/rivalscripts"
	"github.com/redis/rueidis"
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
const (
	numberMark = "__rand_int__"
	timeMark   = "__time__"
)

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
const (
	hourNanos   = "3600000000000"
	bucketNanos = "360000000000"
	timeNanos   = timeMark + "000000"
)

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
	if d.Keys != n*s.perKey || d.Expires != expires {
		return fmt.Errorf("%s: %d new keys, %d with an expiry; want %d and %d", s.name, d.Keys, d.Expires, n*s.perKey, expires)
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
	if got := d.Commands[s.write].Calls; got != calls*s.times {
		return fmt.Errorf("%s: %d of %s for %d calls, want %d", s.name, got, s.write, calls, calls*s.times)
	}
	return nil
}
