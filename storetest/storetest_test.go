package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock"
)

// The model is a store itself, and must pass the tests that compare other stores with
// it.
func TestRunAcceptsModel(t *testing.T) {
	Run(t, func(_ testing.TB, clock *Clock) penstock.Store { return newModel(clock) })
}

// A store of some algorithms passes the tests of these.
func TestRunOnlyAcceptsStoreOfSomeAlgorithms(t *testing.T) {
	for _, some := range [][]penstock.Algorithm{
		{penstock.TokenBucket}, {penstock.SlidingLog}, {penstock.FixedWindow, penstock.Concurrent},
	} {
		t.Run(some[0].String(), func(t *testing.T) {
			RunOnly(t, func(_ testing.TB, clock *Clock) penstock.Store { return onlyStore(newModel(clock), some) }, some...)
		})
	}
}

// onlyStore returns a store that decides only by some algorithms.
func onlyStore(next penstock.Store, some []penstock.Algorithm) penstock.Store {
	return new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		if err := penstock.ValidateBatch(rs, ds, all); err != nil {
			return err
		}
		for i := range rs {
			if !slices.Contains(some, rs[i].Limit.Algorithm) {
				return errors.ErrUnsupported
			}
		}
		return penstock.TakeBatch(ctx, next, rs, ds, all)
	}))
}
