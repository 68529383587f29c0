package main

import (
	"fmt"
	"io"
	"time"
)

// A bench is one run: its length, its sizes and its results so far.
type bench struct {
	rounds   int
	length   time.Duration // of a round
	sizes    sizes
	progress io.Writer
	report   report
}

// sizes are the numbers of keys in the cases.
type sizes struct {
	many       int // "10 thousand keys"
	million    int // "1 million keys"
	tenMillion int // "10 million keys"
	logs       int // keys with full logs
	room       int // MaxKeys of the flooded store
	flood      int // new keys in the flood
	victims    int // spent keys that are taken again after it
}

var fullSizes = sizes{
	many:       10_000,
	million:    1_000_000,
	tenMillion: 10_000_000,
	logs:       100_000,
	room:       100_000,
	flood:      2_000_000,
	victims:    1_000,
}

// quickSizes only show that every case runs.
var quickSizes = sizes{
	many:       200,
	million:    2_000,
	tenMillion: 4_000,
	logs:       100,
	room:       1_000,
	flood:      5_000,
	victims:    100,
}

func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.progress, format+"\n", args...)
}

// A benchCase is one or more lines of the table. Its error means that the workload was
// wrong; a missed target is a finding.
type benchCase struct {
	name string
	run  func(b *bench) error
}

var cases = []benchCase{
	{"hot", (*bench).hotKey},
	{"denied", (*bench).hotKeyDenied},
	{"store", (*bench).throughStore},
	{"many", (*bench).manyKeys},
	{"algorithms", (*bench).otherAlgorithms},
	{"log", (*bench).turningLog},
	{"million", (*bench).millionKeys},
	{"alone", (*bench).aloneKeys},
	{"flood", (*bench).floodOfNewKeys},
	{"weight", (*bench).weights},
	{"logweight", (*bench).logWeight},
	{"tenmillion", (*bench).tenMillionKeys},
}
