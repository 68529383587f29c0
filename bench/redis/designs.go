package main

import (
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/lineage/rivalscripts"
)

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
	hash := scripted("hash log", rivalscripts.HashLog, []string{keyOf("hsh")}, timeMark, "3600000", largeLimit)
	hash.write = "hincrby"
	zset := scripted("zset log", rivalscripts.ZsetLog, []string{keyOf("zst")}, timeMark, "3600000", largeLimit)
	zset.write = "zadd"
	fixed := scripted("Istio fixed window", rivalscripts.IstioFixedWindow, []string{keyOf("ifx")},
		largeLimit, hourNanos, bucketNanos, "0", "1", timeNanos, "")
	fixed.write = "hmset"
	rolling := scripted("Istio rolling window", rivalscripts.IstioRollingWindow, []string{keyOf("irl"), keyOf("ird")},
		largeLimit, hourNanos, bucketNanos, "0", "1", timeNanos, "")
	rolling.write, rolling.times = "hincrby", 2
	rolling.perKey = 1 // its set comes with the second bucket
	gozero := scripted("go-zero period", rivalscripts.GoZeroPeriod, []string{keyOf("per")}, largeLimit, "3600")
	gozero.write = "incrby"
	return []*shape{hash, zset, fixed, rolling, gozero}
}

// The floors: a command without decision, one that writes, and one with a script.

func pingShape() *shape { return &shape{name: "PING", words: []string{"PING"}} }

func incrShape() *shape {
	return &shape{name: "INCR", words: []string{"INCR", keyOf("inc")}, write: "incr", times: 1, perKey: 1, lasting: true}
}

// trivialScript is the least that a script can do.
const trivialScript = "return 1"

func trivialShape() *shape {
	s := scripted("trivial EVALSHA", trivialScript, []string{keyOf("nop")})
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
func ourShapes(cost int64) ([]*shape, error) {
	var shapes []*shape
	for _, limit := range []penstock.Limit{tokenBucket, fixedWindow, slidingWindow} {
		s, err := ourShape(keyOf("pen"), limit, cost)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", limit, err)
		}
		shapes = append(shapes, s)
	}
	return shapes, nil
}
