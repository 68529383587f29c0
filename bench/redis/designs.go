package main

import (
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/rivalscripts"
)

// keyOf returns a key of 20 bytes, told apart from those of others by three
// letters, with its number open.
func keyOf(letters string) string { return "user:" + letters + numberMark }

// An hour, and a bucket of a tenth of it, in nanoseconds, as Istio counts; and
// the moment in nanoseconds, from milliseconds.
const (
	hourNanos   = "3600000000000"
	bucketNanos = "360000000000"
	momentNanos = momentMark + "000000"
)

// plenty is a limit that no key of a run reaches.
const plenty = "1000000"

// designShapes are what is commonly written about limits on Redis.
func designShapes() []*shape {
	hash := scripted("hash log", rivalscripts.HashLog, []string{keyOf("hsh")}, momentMark, "3600000", plenty)
	hash.write = "hincrby"
	zset := scripted("zset log", rivalscripts.ZsetLog, []string{keyOf("zst")}, momentMark, "3600000", plenty)
	zset.write = "zadd"
	fixed := scripted("Istio fixed window", rivalscripts.IstioFixedWindow, []string{keyOf("ifx")},
		plenty, hourNanos, bucketNanos, "0", "1", momentNanos, "")
	fixed.write = "hmset"
	rolling := scripted("Istio rolling window", rivalscripts.IstioRollingWindow, []string{keyOf("irl"), keyOf("ird")},
		plenty, hourNanos, bucketNanos, "0", "1", momentNanos, "")
	rolling.write, rolling.times = "hincrby", 2
	rolling.perKey = 1 // its set comes with the second bucket
	gozero := scripted("go-zero period", rivalscripts.GoZeroPeriod, []string{keyOf("per")}, plenty, "3600")
	gozero.write = "incrby"
	return []*shape{hash, zset, fixed, rolling, gozero}
}

// Floors are what there is to compare with: no decision, and none through Lua.

func pingShape() *shape { return &shape{name: "PING", words: []string{"PING"}} }

func incrShape() *shape {
	return &shape{name: "INCR", words: []string{"INCR", keyOf("inc")}, write: "incr", times: 1, perKey: 1, lasting: true}
}

// trivialScript is the least that a decision by a script can be.
const trivialScript = "return 1"

func trivialShape() *shape {
	s := scripted("trivial EVALSHA", trivialScript, []string{keyOf("nop")})
	s.perKey = 0
	return s
}

// The limits that no key of a run reaches. Nearly nothing comes back meanwhile.
var (
	tokenBucket   = penstock.PerHour(100).WithBurst(100_000)
	fixedWindow   = penstock.PerHour(1_000_000).WithAlgorithm(penstock.FixedWindow)
	slidingWindow = penstock.PerHour(1_000_000).WithAlgorithm(penstock.SlidingWindow)
)

// ourShapes are the algorithms with a target of their own.
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
