package algorithmtest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// fuzz makes a fuzz target of a property: coverage guides its draws instead of chance.
// The seeds are long enough for a whole run, as each draw uses eight bytes or more. They
// are too long for go test to minimize; use -fuzzminimizetime=1x.
func fuzz(f *testing.F, property func(*rapid.T)) {
	source := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		input := make([]byte, 0, 16<<10)
		for len(input) < cap(input) {
			input = binary.LittleEndian.AppendUint64(input, source.Uint64())
		}
		f.Add(input)
	}
	f.Fuzz(rapid.MakeFuzz(property))
}

func fuzzKinds(f *testing.F, kinds []kind, property func(*rapid.T, kind)) {
	fuzz(f, func(t *rapid.T) { property(t, rapid.SampledFrom(kinds).Draw(t, "kind")) })
}

func FuzzDecideMatchesOracle(f *testing.F) { fuzzKinds(f, everyKind(), decideMatchesOracle) }

func FuzzBusyKeyMatchesOracle(f *testing.F) { fuzzKinds(f, everyKind(), busyKeyMatchesOracle) }

func FuzzLargeProductsMatchOracle(f *testing.F) { fuzz(f, largeProductsMatchOracle) }

func FuzzBounds(f *testing.F) { fuzzKinds(f, boundKinds(), boundHolds) }

func FuzzBoundsOnJitteringClock(f *testing.F) { fuzzKinds(f, boundKinds(), boundHoldsOnJitteringClock) }

func FuzzChargesKeepBound(f *testing.F) { fuzzKinds(f, debtKinds(), chargesKeepBound) }

func FuzzAlignedBounds(f *testing.F) { fuzz(f, alignedBoundsHold) }

func FuzzReservations(f *testing.F) { fuzz(f, reservationsKeepRateAndOrder) }

func FuzzSpendOneMatchesDecide(f *testing.F) { fuzz(f, spendOneMatchesDecide) }

func FuzzSpendMatchesDecide(f *testing.F) {
	fuzzKinds(f, []kind{fixedWindow, rollingWindow, slidingLog}, spendMatchesDecide)
}

func FuzzLeakyBucketSpaces(f *testing.F) { fuzz(f, leakyBucketSpaces) }

func FuzzDenialChangesNothing(f *testing.F) { fuzzKinds(f, everyKind(), denialChangesNothing) }

func FuzzPeekChangesNothing(f *testing.F) { fuzzKinds(f, everyKind(), peekChangesNothing) }

func FuzzStatesAreValid(f *testing.F) { fuzzKinds(f, everyKind(), statesAreValid) }

func FuzzRemainingCanBeTaken(f *testing.F) { fuzzKinds(f, everyKind(), remainingCanBeTaken) }

func FuzzRemainingMoves(f *testing.F) { fuzzKinds(f, everyKind(), remainingMoves) }

func FuzzRetryAfterIsExact(f *testing.F) { fuzzKinds(f, everyKind(), retryAfterIsExact) }

func FuzzResetAfterIsExact(f *testing.F) { fuzzKinds(f, everyKind(), resetAfterIsExact) }

func FuzzLockoutIsBounded(f *testing.F) { fuzzKinds(f, everyKind(), lockoutIsBounded) }

func FuzzStepBackFreesNothing(f *testing.F) { fuzzKinds(f, everyKind(), stepBackFreesNothing) }

func FuzzTakeAndRefund(f *testing.F) { fuzzKinds(f, everyKind(), takeAndRefund) }

func FuzzReset(f *testing.F) { fuzzKinds(f, everyKind(), resetMakesKeyFull) }

func FuzzLimitChangeAppliesAtOnce(f *testing.F) { fuzzKinds(f, everyKind(), limitChangeAppliesAtOnce) }

func FuzzOneInstantAdmitsTheLimit(f *testing.F) { fuzzKinds(f, everyKind(), oneInstantAdmitsTheLimit) }

func FuzzIdleForTenYears(f *testing.F) { fuzzKinds(f, everyKind(), idleForTenYears) }

func FuzzDurationsAreWholeTicks(f *testing.F) { fuzzKinds(f, everyKind(), durationsAreWholeTicks) }

func FuzzAlignedWindowContainsNow(f *testing.F) { fuzz(f, alignedWindowContainsNow) }

func FuzzRateFillsInTime(f *testing.F) { fuzz(f, rateFillsInTime) }

func FuzzRounding(f *testing.F) { fuzz(f, roundingGoesToTheNextTick) }
