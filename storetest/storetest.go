// Package storetest says what any [penstock.Store] must do, as tests. The author
// of a store runs them all with one call:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
//			return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
//		})
//	}
//
// There are six kinds of them. Transcripts show what every algorithm and every
// verb means, with numbers that can be checked by hand; they are in
// internal/algorithm/vectors. Agreement makes up requests, limits and times, and
// compares every field of every decision with what the pure algorithms say.
// Promises holds decisions against what the documentation says of them, without
// asking how they came about. Bad input must be an error that names the field
// and charge nothing. Keys must never be mistaken for one another. And however
// many ask at once, it must look as if they had asked one after the other.
//
// The requests that agreement makes up differ from run to run. A failure prints
// them as a transcript, and how to repeat it.
package storetest

import (
	"testing"

	"github.com/penstock-io/penstock"
)

// Open opens an empty store that goes by the given clock, in steps of one
// millisecond. It is called some thousands of times; stores may share a server
// behind them, but no state. What has to be closed is closed by t.Cleanup.
type Open func(t testing.TB, clock *Clock) penstock.Store

// Run runs all tests on the stores that open opens. A store needs a TakeAll of its
// own to pass them: what [penstock.TakeAll] does for one that has none is neither
// atomic nor as telling.
func Run(t *testing.T, open Open) {
	RunSequential(t, open)
	t.Run("linearizability", func(t *testing.T) { testLinearizability(t, open) })
}

// RunSequential runs all tests but that of linearizability. It is for a store
// whose TakeAll answers as if it were atomic, but lets others who ask at the same
// time see a part of it.
func RunSequential(t *testing.T, open Open) {
	t.Run("transcripts", func(t *testing.T) { testTranscripts(t, open) })
	t.Run("agreement", func(t *testing.T) { testAgreement(t, open) })
	t.Run("promises", func(t *testing.T) { testPromises(t, open) })
	t.Run("bad input", func(t *testing.T) { testBadInput(t, open) })
	t.Run("keys", func(t *testing.T) { testKeys(t, open) })
	t.Run("crowd", func(t *testing.T) { testCrowd(t, open) })
}
