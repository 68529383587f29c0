// Package fixedseed makes random tests try the same cases in every run, so that a run is
// green or red by the code alone. Packages with property tests import it for its effect. With the
// race detector, properties try a quarter of the cases.
//
// The environment variable PENSTOCK_SEED chooses other cases: a number, or 0 for new ones in
// each run, as `make properties` does.
package fixedseed

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	_ "pgregory.net/rapid" // registers the flag
)

// Seed returns the seed of random tests.
func Seed() uint64 {
	if seed == 0 {
		return rand.Uint64()
	}
	return seed
}

var seed uint64 = 1

func init() {
	if text := os.Getenv("PENSTOCK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			fmt.Fprintln(os.Stderr, "PENSTOCK_SEED:", err)
			os.Exit(2)
		}
	}
	_ = flag.Set("rapid.seed", strconv.FormatUint(seed, 10)) // any number is valid
	if raceEnabled {
		_ = flag.Lookup("rapid.checks").Value.Set("25") // of 100; -rapid.checks overrides it
	}
}

// FewerUnderRace returns a tenth of a number of random cases or steps if the race detector is
// on, which makes each ten times as slow and finds races in the first few. make unit has them
// all.
func FewerUnderRace(n int) int {
	if raceEnabled {
		return max(n/10, 1)
	}
	return n
}
