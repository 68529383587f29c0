package httpapi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/penstock-io/penstock"
)

// lossyStore fails some calls before the store carries them out, and some after that.
type lossyStore struct {
	*penstock.Memory
	rng     *rand.Rand
	failing bool
	faults  []storeFault
}

// A storeFault is a failed call of the store.
type storeFault struct {
	asks []ask // all or nothing
	lost bool  // they were carried out, and only the response was lost
}

func (s *lossyStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := penstock.Decision{}, r.Validate()
	if err != nil {
		return d, err
	}
	fails := s.fail([]ask{askOf(&r)}, func() { d, err = s.Memory.Take(ctx, r) })
	if fails != nil {
		return penstock.Decision{}, fails
	}
	return d, err
}

// TakeEach decides the requests like a store with shards: each of them may fail by itself.
func (s *lossyStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (first error) {
	if err := penstock.ValidateBatch(rs, ds, false); err != nil {
		return err
	}
	for i := range rs {
		d, err := s.Take(ctx, rs[i])
		if ds[i] = d; err != nil && first == nil {
			first = &penstock.RequestError{Index: i, Err: err}
		}
	}
	return first
}

func (s *lossyStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (err error) {
	if err := penstock.ValidateBatch(rs, ds, true); err != nil {
		return err
	}
	asks := make([]ask, len(rs))
	for i := range rs {
		asks[i] = askOf(&rs[i])
	}
	if fails := s.fail(asks, func() { err = s.Memory.TakeAll(ctx, rs, ds) }); fails != nil {
		return fails
	}
	return err
}

// fail carries out a call, or not, and returns the error if it fails.
func (s *lossyStore) fail(asks []ask, call func()) error {
	outcome := 40
	if s.failing {
		outcome = s.rng.IntN(40)
	}
	if outcome >= 3 {
		call()
		return nil
	}
	for i := range asks {
		asks[i].key = strings.Clone(asks[i].key)
	}
	if outcome == 0 {
		s.faults = append(s.faults, storeFault{asks, false})
		return fmt.Errorf("no connection: %w", penstock.ErrUnavailable)
	}
	call()
	s.faults = append(s.faults, storeFault{asks, true})
	return fmt.Errorf("no response: %w", penstock.ErrUnavailable)
}

func askOf(r *penstock.Request) ask {
	return ask{
		key: r.Key, id: r.ID, cost: r.Cost, atMost: r.AtMost, overdraw: r.Overdraw, settle: r.Settle, newID: r.NewID,
		keepFree: r.KeepFree, hold: r.Hold.Milliseconds(),
	}
}
