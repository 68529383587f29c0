// Package storetest is the conformance test of a [penstock.Store]. The author of a
// store runs it with one call:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
//			return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
//		})
//	}
//
// It has these parts:
//
//   - transcripts: scenarios for every algorithm and verb, with numbers that can be
//     checked by hand; they are in internal/algorithm/vectors
//   - agreement: random requests, limits and times; every field of every decision must
//     equal that of the pure algorithms
//   - properties: decisions must be as documented, for example RetryAfter exact
//   - bad input: an invalid request must return an error that names the field, and
//     charge nothing
//   - keys: similar keys must not share state
//   - concurrency and linearizability: concurrent calls must have the results of some
//     sequential order
//
// A store whose state is shared with other processes is tested as several of them by [Spread].
//
// Random requests differ from run to run. A failure prints them as a transcript, and
// how to repeat it. With -short there are fewer of them, and fewer concurrent calls.
package storetest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock"
)

// Open opens an empty store that uses the given clock, with a resolution of one
// millisecond. It is called thousands of times; stores may share a server, but no
// state. Use t.Cleanup to close a store.
type Open func(t testing.TB, clock *Clock) penstock.Store

// Spread returns a store that lets the stores decide in turn. If they share their state, as processes on one
// database do, the tests of concurrency show whether it is locked against other processes, too.
func Spread(stores ...penstock.Store) penstock.Store {
	var calls atomic.Uint64
	return new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		return penstock.TakeBatch(ctx, stores[calls.Add(1)%uint64(len(stores))], rs, ds, all)
	}))
}

// Run runs all tests on the stores that open opens. A store needs its own TakeAll method
// to pass: the substitute of [penstock.TakeAll] is not atomic, and its decisions are less
// precise.
func Run(t *testing.T, open Open) { RunOnly(t, open, algorithms...) }

// RunOnly runs the tests of some algorithms, of which one must be over time, that is not
// [penstock.Concurrent]. Requests under any other must return an error that is
// [errors.ErrUnsupported].
func RunOnly(t *testing.T, open Open, supported ...penstock.Algorithm) {
	runSequential(t, open, supported)
	t.Run("linearizability", func(t *testing.T) { testLinearizability(t, open, supported) })
}

// RunSequential runs all tests except linearizability. It is for a store whose TakeAll
// is all or nothing, but not isolated: concurrent calls can see a part of it.
func RunSequential(t *testing.T, open Open) { runSequential(t, open, algorithms) }

func runSequential(t *testing.T, open Open, supported []penstock.Algorithm) {
	t.Run("transcripts", func(t *testing.T) { testTranscripts(t, open, supported) })
	runRandom(t, open, supported)
	t.Run("concurrency", func(t *testing.T) { testConcurrency(t, open, supported) })
}

// RunRandom runs the tests on random requests. They suffice for another way to a store
// that is tested in full elsewhere.
func RunRandom(t *testing.T, open Open) { runRandom(t, open, algorithms) }

func runRandom(t *testing.T, open Open, supported []penstock.Algorithm) {
	t.Run("agreement", func(t *testing.T) { testAgreement(t, open, supported) })
	t.Run("properties", func(t *testing.T) { testProperties(t, open, supported) })
	t.Run("bad input", func(t *testing.T) { testBadInput(t, open, supported) })
	t.Run("failure", func(t *testing.T) { testFailure(t, open, supported) })
	t.Run("keys", func(t *testing.T) { testKeys(t, open, supported) })
	t.Run("unsupported", func(t *testing.T) { testUnsupported(t, open, supported) })
}
