package main

import (
	"fmt"
	"io"
	"time"
)

// A bench is one run: on which server, how long and how large, and what it has
// found so far.
type bench struct {
	server   *server
	rounds   int
	length   time.Duration // of a round through a client library
	sizes    sizes
	progress io.Writer
	report   report
}

// sizes are the numbers of keys and requests in the cases.
type sizes struct {
	many          int // "10 thousand keys"
	counted       int // calls whose allocations are counted
	pressed       int // keys of each shape under redis-benchmark
	requests      int // of one turn of redis-benchmark
	decisions     int // of which instructions are counted
	weighed       int // "200 thousand keys"
	entries       int // of all logs together
	crowd         int // "500 connections"
	crowdKeys     int // "500 thousand keys"
	crowdRequests int
	tenMillion    int
}

var fullSizes = sizes{
	many:          10_000,
	counted:       50_000,
	pressed:       50_000,
	requests:      32_000,
	decisions:     320,
	weighed:       200_000,
	entries:       200_000,
	crowd:         500,
	crowdKeys:     500_000,
	crowdRequests: 40_000,
	tenMillion:    10_000_000,
}

// quickSizes let every case run in no time, to see that it runs.
var quickSizes = sizes{
	many:          200,
	counted:       1_000,
	pressed:       200,
	requests:      1_600,
	decisions:     160,
	weighed:       2_000,
	entries:       4_000,
	crowd:         20,
	crowdKeys:     5_000,
	crowdRequests: 2_000,
	tenMillion:    4_000,
}

// pressRounds is how many turns redis-benchmark gives each shape. They are
// longer than those of a client library, so there are fewer.
func (b *bench) pressRounds() int { return max(b.rounds/3, 1) }

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, format+"\n", args...)
}

// A trial is one line, or a few, of the table. Its error means that it did not
// measure what it should; a missed target is a finding.
type trial struct {
	name    string
	run     func(b *bench) error
	onlyFor func(o options) bool // nil for always
}

var trials = []trial{
	{"clients", (*bench).clients, nil},
	{"scripts", (*bench).scripts, nil},
	{"instructions", (*bench).instructions, func(o options) bool { return o.instructions }},
	{"weight", (*bench).weights, nil},
	{"logweight", (*bench).logWeights, nil},
	{"settings", (*bench).settings, nil},
	{"tenmillion", (*bench).tenMillionKeys, func(o options) bool { return o.tenMillion }},
}
