package main

import (
	"fmt"
	"io"
	"time"
)

// A bench is one run: its server, its length, its sizes and its results so far.
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
func (b *bench) benchmarkRounds() int { return max(b.rounds/3, 1) }

func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.progress, format+"\n", args...)
}

// A benchCase is one or more rows of the table. Its error means that the workload was
// wrong; a missed target is a finding.
type benchCase struct {
	name    string
	run     func(b *bench) error
	onlyFor func(o options) bool // nil for always
}

var cases = []benchCase{
	{"clients", (*bench).clients, nil},
	{"split", (*bench).split, nil},
	{"scripts", (*bench).scripts, nil},
	{"instructions", (*bench).instructions, func(o options) bool { return o.instructions }},
	{"weight", (*bench).weights, nil},
	{"logweight", (*bench).logWeights, nil},
	{"settings", (*bench).settings, nil},
	{"tenmillion", (*bench).tenMillionKeys, func(o options) bool { return o.tenMillion }},
}
