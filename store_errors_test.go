package penstock_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
)

// A failingStore grants the first request of a call and fails at the second.
type failingStore struct{}

func (failingStore) Take(_ context.Context, r penstock.Request) (penstock.Decision, error) {
	if r.Key == "bad" {
		return penstock.Decision{}, &penstock.FieldError{Field: "Key", Kind: penstock.ErrBadKey, Problem: "is bad"}
	}
	return penstock.Decision{Allowed: true, Granted: r.Cost, Limit: 5, Remaining: 4}, nil
}

// An atomicFailingStore writes decisions before it fails.
type atomicFailingStore struct{ failingStore }

func (s atomicFailingStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	for i := range rs {
		var err error
		if ds[i], err = s.Take(ctx, rs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Beside an error, TakeAll leaves zero decisions, and TakeEach leaves those that it did not
// make zero, whatever ds held before.
func TestErrorsLeaveZeroDecisions(t *testing.T) {
	stores := map[string]penstock.Store{"plain": failingStore{}, "atomic": atomicFailingStore{}}
	for name, inner := range map[string]penstock.Store{"plain": failingStore{}, "atomic": atomicFailingStore{}} {
		lease := penstock.WithLease(inner, nil)
		t.Cleanup(func() { _ = lease.Close(context.Background()) })
		stores["lease on "+name] = lease
		stores["deny cache on "+name] = penstock.WithDenyCache(inner, nil)
		stores["fallback on "+name] = penstock.WithFallback(inner, penstock.NewMemory(nil), nil)
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			rs := []penstock.Request{
				{Key: "good", Limit: penstock.PerMinute(5), Cost: 1},
				{Key: "bad", Limit: penstock.PerMinute(5), Cost: 1},
				{Key: "late", Limit: penstock.PerMinute(5), Cost: 1},
			}
			stale := penstock.Decision{Allowed: true, Granted: 77, Limit: 77}
			ds := []penstock.Decision{stale, stale, stale, stale}
			if err := penstock.TakeEach(ctx, store, rs, ds); err == nil {
				t.Fatal("TakeEach: no error")
			}
			if ds[0].Granted == 77 || ds[1] != (penstock.Decision{}) || ds[2].Granted == 77 || ds[3] != stale {
				t.Errorf("TakeEach leaves %v", ds)
			}
			ds = []penstock.Decision{stale, stale, stale, stale}
			if err := penstock.TakeAll(ctx, store, rs, ds); err == nil {
				t.Fatal("TakeAll: no error")
			}
			for i, d := range ds[:3] {
				if d != (penstock.Decision{}) {
					t.Errorf("TakeAll leaves %v for request %d, want the zero Decision", d, i)
				}
			}
			if ds[3] != stale {
				t.Error("TakeAll wrote a decision that no request is for")
			}
		})
	}
}
