// Package fixedseed makes property tests try the same cases in every run, so that a run is
// green or red by the code alone. Packages with such tests import it for its effect.
//
// The environment variable PENSTOCK_SEED chooses other cases: a number, or 0 for new ones in
// each run, as `make properties` does.
package fixedseed

import (
	"flag"
	"fmt"
	"os"

	_ "pgregory.net/rapid" // registers the flag
)

func init() {
	seed := "1"
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		seed = s
	}
	if err := flag.Set("rapid.seed", seed); err != nil {
		fmt.Fprintln(os.Stderr, "PENSTOCK_SEED:", err)
		os.Exit(2)
	}
}
