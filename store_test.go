package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestTakeEachAndAllNameTheBadRequest(t *testing.T) {
	rs, ds := []penstock.Request{{Key: "a", Limit: penstock.PerSecond(1), Cost: 1}, {Limit: penstock.PerSecond(1)}}, make([]penstock.Decision, 2)
	for name, take := range map[string]func(penstock.Store) error{
		"TakeAll":  func(s penstock.Store) error { return penstock.TakeAll(ctx, s, rs, ds) },
		"TakeEach": func(s penstock.Store) error { return penstock.TakeEach(ctx, s, rs, ds) },
	} {
		if err := take(nil); err == nil {
			t.Errorf("%s of no store: no error", name)
		}
		want := "penstock: request 1: bad key: Key is empty: want any bytes that identify the caller"
		if err := take(penstock.NewMemory(nil)); !errors.Is(err, penstock.ErrBadKey) || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", name, err, want)
		}
	}
}

func TestAllowAllAllowsAndDenyAllDenies(t *testing.T) {
	for _, c := range []struct {
		store   penstock.Store
		cost    int64
		allowed bool
		granted int64
	}{
		{penstock.AllowAll, 7, true, 7},
		{penstock.AllowAll, 0, true, 0},
		{penstock.AllowAll, -7, true, 0},
		{penstock.DenyAll, 7, false, 0},
		{penstock.DenyAll, 0, true, 0},
		{penstock.DenyAll, -7, true, 0},
	} {
		d, err := c.store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(5), Cost: c.cost})
		if err != nil || d.Allowed != c.allowed || d.Granted != c.granted || d.Limit != 5 {
			t.Errorf("cost %d: %+v, %v", c.cost, d, err)
		}
		if _, err := c.store.Take(ctx, penstock.Request{Limit: penstock.PerSecond(5)}); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("no key: %v", err)
		}
	}
}

// countingStore is a wrapper that has only Take, as a user might write it.
type countingStore struct {
	next  penstock.Store
	calls int
	fail  map[string]bool
}

func (c *countingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	c.calls++
	if c.fail[r.Key] {
		return penstock.Decision{}, fmt.Errorf("counting: %w", penstock.ErrUnavailable)
	}
	return c.next.Take(ctx, r)
}

func TestTakeAllOverPlainStoreRefundsAfterDenial(t *testing.T) {
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now})
	store := &countingStore{next: memory, fail: map[string]bool{"broken": true}}
	limit := penstock.PerHour(5)
	takeAll := func(keys ...string) ([]penstock.Decision, error) {
		rs := make([]penstock.Request, len(keys))
		for i, key := range keys {
			rs[i] = penstock.Request{Key: key, Limit: limit, Cost: 3}
		}
		ds := make([]penstock.Decision, len(keys))
		return ds, penstock.TakeAll(ctx, store, rs, ds)
	}
	ds, err := takeAll("a", "b")
	if err != nil || !ds[0].Allowed || !ds[1].Allowed || ds[1].Remaining != 2 {
		t.Fatalf("a, b: %+v, %v", ds, err)
	}
	ds, err = takeAll("c", "b", "d")
	if err != nil || ds[1].Allowed || ds[1].RetryAfter == 0 || !ds[0].Allowed || ds[0].Granted != 0 || ds[2].Remaining != 5 {
		t.Errorf("b cannot: %+v, %v", ds, err)
	}
	if _, err = takeAll("c", "broken", "d"); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a store that fails half way: %v", err)
	}
	lim, err := penstock.New(memory, limit)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"a": 2, "b": 2, "c": 5, "d": 5} {
		expectRemaining(t, lim, key, want)
	}
	if ds, err = takeAll("e", "e"); err != nil || ds[0].RetryAfter != penstock.Never || ds[0].Remaining != 5 {
		t.Errorf("twice three of five: %v, %v, want never, and five left", ds, err)
	}
	if ds, err = takeAll("f", "a"); err != nil || ds[1].Remaining != 2 || ds[1].RetryAfter != 12*time.Minute {
		t.Errorf("three of two: %v, %v, want two left and 12 minutes", ds, err)
	}
}

// The first request that does not fit tells when it does, and then the next one. None tells too late.
func TestTakeAllOverPlainStoreTellsOneRetryAfterAtATime(t *testing.T) {
	const slow, fast, queue = "10/100s", "10/1s", "10/1s leaky-bucket"
	for _, c := range []struct {
		limits [2]string // of one key, which is empty
		denied []time.Duration
	}{
		{[2]string{slow, fast}, []time.Duration{10 * time.Second}},
		{[2]string{fast, slow}, []time.Duration{100 * time.Millisecond, 9900 * time.Millisecond}},
		{[2]string{fast, fast}, []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}},
		{[2]string{queue, queue}, []time.Duration{800 * time.Millisecond, 100 * time.Millisecond}},
	} {
		clock := newFakeClock()
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.now})
		rs, ds := make([]penstock.Request, 2), make([]penstock.Decision, 2)
		for i, text := range c.limits {
			lim := limiter(t, memory, text)
			if _, err := lim.AllowAtMost(ctx, "key", 10); err != nil {
				t.Fatal(err)
			}
			if rs[i] = lim.Request("key"); text == queue {
				rs[i].MaxDelay = 200 * time.Millisecond
			}
		}
		for _, want := range append(c.denied, 0) {
			err := penstock.TakeAll(ctx, penstock.StoreFunc(memory.Take), rs, ds)
			d := penstock.Tightest(ds)
			if err != nil || d.RetryAfter != want || d.Allowed != (want == 0) {
				t.Errorf("%q: %v, %v, want a RetryAfter of %v", c.limits, ds, err, want)
			}
			clock.advance(d.RetryAfter)
		}
	}
}

func TestTakeEachOverPlainStoreCallsTakeForEach(t *testing.T) {
	store := &countingStore{next: penstock.NewMemory(nil)}
	rs := []penstock.Request{
		{Key: "a", Limit: penstock.PerHour(1), Cost: 1},
		{Key: "a", Limit: penstock.PerHour(1), Cost: 1},
		{Key: "b", Limit: penstock.PerHour(1), Cost: 1},
	}
	ds := make([]penstock.Decision, 3)
	if err := penstock.TakeEach(ctx, store, rs, ds); err != nil || !ds[0].Allowed || ds[1].Allowed || !ds[2].Allowed {
		t.Errorf("%+v, %v", ds, err)
	}
	calls := store.calls
	rs[2].Key = ""
	if err := penstock.TakeEach(ctx, store, rs, ds); !errors.Is(err, penstock.ErrBadKey) || store.calls != calls {
		t.Errorf("a malformed third request: %v after %d calls", err, store.calls-calls)
	}
	if err := penstock.TakeEach(ctx, store, rs[:2], ds[:1]); err == nil {
		t.Error("two requests and one decision: no error")
	}
}

func TestTakeEachOverPlainStoreDecidesBesideAKeyError(t *testing.T) {
	memory, down := penstock.NewMemory(nil), errors.New("down")
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		switch r.Key {
		case "foreign":
			return penstock.Decision{}, &penstock.KeyError{Key: r.Key, Err: errors.New("foreign value")}
		case "down":
			return penstock.Decision{}, down
		}
		return memory.Take(ctx, r)
	})
	takeEach := func(keys ...string) (ds []penstock.Decision, err error) {
		rs := make([]penstock.Request, len(keys))
		for i, key := range keys {
			rs[i] = penstock.Request{Key: key, Limit: penstock.PerHour(5), Cost: 1}
		}
		ds = make([]penstock.Decision, len(keys))
		return ds, penstock.TakeEach(ctx, store, rs, ds)
	}
	var about *penstock.KeyError
	var request *penstock.RequestError
	ds, err := takeEach("a", "foreign", "b", "foreign")
	if !errors.As(err, &about) || !errors.As(err, &request) || request.Index != 1 {
		t.Errorf("%v, want a KeyError of request 1", err)
	}
	if !ds[0].Allowed || ds[1].Allowed || !ds[2].Allowed || ds[3].Allowed {
		t.Errorf("%v, want all but those of the key", ds)
	}
	if ds, err = takeEach("foreign", "down", "b"); !errors.Is(err, down) || ds[2].Allowed {
		t.Errorf("%v, %v, want the error of the store, and nothing after it", ds, err)
	}
}

func TestMemoryTakeUsesLimitChangedByWrapper(t *testing.T) {
	memory := penstock.NewMemory(nil)
	halving := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		r.Limit.Count /= 2
		return memory.Take(ctx, r)
	})
	lim := limiter(t, halving, "10/1h sliding-log")
	if d, err := lim.Allow(ctx, "k"); err != nil || d.Limit != 5 || d.Remaining != 4 {
		t.Errorf("half of 10: %+v, %v", d, err)
	}
}

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
