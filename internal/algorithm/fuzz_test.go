package algorithm_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// fuzz makes a fuzz target of a property: there the stories are chosen by which
// code they reach, and not by chance. It begins with some that are long enough
// to have an end, as each draw of a property uses up eight bytes or more. They
// are too long for go test to shorten what it finds interesting; have it go on
// instead, with -fuzzminimizetime=1x.
func fuzz(f *testing.F, property func(*rapid.T)) {
	source := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		story := make([]byte, 0, 16<<10)
		for len(story) < cap(story) {
			story = binary.LittleEndian.AppendUint64(story, source.Uint64())
		}
		f.Add(story)
	}
	f.Fuzz(rapid.MakeFuzz(property))
}

func fuzzKinds(f *testing.F, kinds []kind, property func(*rapid.T, kind)) {
	fuzz(f, func(t *rapid.T) { property(t, rapid.SampledFrom(kinds).Draw(t, "kind")) })
}

func FuzzAnswersAreTheOracles(f *testing.F) { fuzzKinds(f, everyKind, answersAreTheOracles) }

func FuzzAnswersOnABusyKey(f *testing.F) { fuzzKinds(f, everyKind, busyAnswersAreTheOracles) }

func FuzzAnswersForLargeProducts(f *testing.F) { fuzz(f, largeProductsAreTheOracles) }

func FuzzBounds(f *testing.F) { fuzzKinds(f, boundKinds, boundHolds) }

func FuzzTremblingClock(f *testing.F) { fuzzKinds(f, boundKinds, tremblingBuysNothing) }

func FuzzAlignedBounds(f *testing.F) { fuzz(f, alignedBoundsHold) }

func FuzzReservations(f *testing.F) { fuzz(f, reservationsKeepRateAndOrder) }

func FuzzSpendOne(f *testing.F) { fuzz(f, spendOneIsDecide) }

func FuzzSpend(f *testing.F) { fuzzKinds(f, []kind{rollingWindow, slidingLog}, spendIsDecide) }

func FuzzLeakyBucketSpaces(f *testing.F) { fuzz(f, leakyBucketSpaces) }

func FuzzDenialIsFree(f *testing.F) { fuzzKinds(f, everyKind, denialIsFree) }

func FuzzLookIsFree(f *testing.F) { fuzzKinds(f, everyKind, lookIsFree) }

func FuzzStatesAreSound(f *testing.F) { fuzzKinds(f, everyKind, statesAreSound) }

func FuzzRemainingCanBeTaken(f *testing.F) { fuzzKinds(f, everyKind, remainingCanBeTaken) }

func FuzzRemainingMoves(f *testing.F) { fuzzKinds(f, everyKind, remainingMoves) }

func FuzzRetryAfterIsTrue(f *testing.F) { fuzzKinds(f, everyKind, retryAfterIsTrue) }

func FuzzResetAfterIsTrue(f *testing.F) { fuzzKinds(f, everyKind, resetAfterIsTrue) }

func FuzzLockoutIsBounded(f *testing.F) { fuzzKinds(f, everyKind, lockoutIsBounded) }

func FuzzStepBackFreesNothing(f *testing.F) { fuzzKinds(f, everyKind, stepBackFreesNothing) }

func FuzzTakeAndGiveBack(f *testing.F) { fuzzKinds(f, everyKind, takeAndGiveBack) }

func FuzzForget(f *testing.F) { fuzzKinds(f, everyKind, forgetIsAsGoodAsNew) }

func FuzzChangeCountsAtOnce(f *testing.F) { fuzzKinds(f, everyKind, changeCountsAtOnce) }

func FuzzOneInstantAdmitsTheLimit(f *testing.F) { fuzzKinds(f, everyKind, oneInstantAdmitsTheLimit) }

func FuzzIdleForTenYears(f *testing.F) { fuzzKinds(f, everyKind, idleForTenYears) }

func FuzzDurationsAreWholeTicks(f *testing.F) { fuzzKinds(f, everyKind, durationsAreWholeTicks) }

func FuzzAlignedWindowContainsNow(f *testing.F) { fuzz(f, alignedWindowContainsNow) }

func FuzzRateFillsInTime(f *testing.F) { fuzz(f, rateFillsInTime) }

func FuzzRounding(f *testing.F) { fuzz(f, roundingGoesToTheNextTick) }
