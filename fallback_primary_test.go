package penstock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// An earlyEnd is a number of calls that a store ends early.
type earlyEnd struct {
	took     time.Duration
	wantDown int
	settle   bool
}

// id returns the ID of a call: those of settlements differ, or they would wait for each other.
func (e *earlyEnd) id(call int) string {
	if !e.settle {
		return ""
	}
	return fmt.Sprint("id ", call)
}

// A store that ends calls before the caller's deadline: silence counts as its failure, unless it
// had too little time. Either way the secondary store decides.
func TestFallbackCountsEarlyEndsWithEnoughTime(t *testing.T) {
	for _, c := range []earlyEnd{
		{took: 6 * time.Millisecond, wantDown: 1},
		{took: time.Millisecond, wantDown: 0},
		{took: 6 * time.Millisecond, wantDown: 1, settle: true},
		{took: time.Millisecond, wantDown: 0, settle: true},
	} {
		clock := time.Unix(0, 0)
		silent := StoreFunc(func(context.Context, Request) (Decision, error) {
			clock = clock.Add(c.took)
			return Decision{}, fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded)
		})
		f := WithFallback(silent, nil, &FallbackOptions{Failures: 3, Now: func() time.Time { return clock }})
		f.shards[0].verifyAt.Store(1 << 62)        // its peeks are another test
		f.shards[0].ledger.chargeAt.Store(1 << 62) // and so are calls in the background, for which time would pass as well
		for i := range 3 {
			d, err := f.Take(t.Context(), Request{Key: "k", Limit: PerHour(9), Cost: 1, ID: c.id(i), Settle: c.settle})
			if err != nil || !d.Allowed || d.Source != SourceFallback {
				t.Errorf("call %d: got %v, %v", i, d, err)
			}
		}
		if down, _ := f.Down(); down != c.wantDown {
			t.Errorf("after calls of %v: %d shards down, want %d", c.took, down, c.wantDown)
		}
	}
}

// A waitingStore bounds the time that a server has, but not that calls wait for others before.
type waitingStore struct{ Store }

func (waitingStore) Timeout() time.Duration { return 50 * time.Millisecond }

// Callers that leave a crowd prove nothing about the store, however long they have waited. If it had its
// timeout, its error tells.
func TestFallbackIgnoresCallersThatLeaveCrowd(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for failure, wantDown := range map[error]int{context.Canceled: 0, ErrUnavailable: 1} {
		clock := time.Unix(0, 0)
		store := waitingStore{StoreFunc(func(context.Context, Request) (Decision, error) {
			clock = clock.Add(time.Second)
			return Decision{}, failure
		})}
		f := WithFallback(store, nil, &FallbackOptions{Failures: 3, Now: func() time.Time { return clock }})
		f.shards[0].verifyAt.Store(1 << 62) // its peeks are another test
		for range 5 {
			_, _ = f.Take(ctx, Request{Key: "k", Limit: PerHour(9), Cost: 1})
		}
		if down, _ := f.Down(); down != wantDown {
			t.Errorf("after calls that end with %v: %d shards down, want %d", failure, down, wantDown)
		}
	}
}

// A primary store that is busy is up: its error is the caller's, and the secondary grants nothing. A settlement, which
// grants nothing either, is kept for the primary.
func TestFallbackGrantsNothingWhilePrimaryIsBusy(t *testing.T) {
	clock, busy, charged := time.Unix(0, 0), true, make(chan Request, 10)
	store := waitingStore{StoreFunc(func(_ context.Context, r Request) (Decision, error) {
		if busy {
			clock = clock.Add(time.Second)
			return Decision{}, fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
		}
		charged <- r
		return Decision{Allowed: true, Granted: r.Cost}, nil
	})}
	f := WithFallback(store, nil, &FallbackOptions{Failures: 1, Now: func() time.Time { return clock }})
	f.shards[0].ledger.chargeAt.Store(charging) // not in the background
	left, leave := context.WithCancel(t.Context())
	leave()
	rs, ds := []Request{{Key: "k", Limit: PerHour(9), Cost: 1}, {Key: "l", Limit: PerHour(9)}}, make([]Decision, 2)
	refund := []Request{{Key: "k", Limit: PerHour(9), Cost: -1}}
	for name, err := range map[string]error{
		"a take":                       f.TakeEach(t.Context(), rs[:1], ds),
		"a take of a caller that left": f.TakeEach(left, rs[:1], ds),
		"a peek":                       f.TakeEach(t.Context(), rs[1:], ds),
		"a refund":                     f.TakeEach(t.Context(), refund, ds),
		"TakeEach":                     f.TakeEach(t.Context(), rs, ds),
		"TakeAll":                      f.TakeAll(t.Context(), rs, ds),
	} {
		if !errors.Is(err, ErrBusy) || ds[0] != (Decision{}) || ds[1] != (Decision{}) {
			t.Errorf("%s: %v, %v, want ErrBusy", name, err, ds)
		}
	}
	settle := Request{Key: "k", Limit: PerHour(9), Cost: 3, ID: "x", Settle: true}
	if d, err := f.Take(t.Context(), settle); err != nil || d.Source != SourceFallback {
		t.Errorf("a settlement: %+v, %v, want it to be kept", d, err)
	}
	if down, _ := f.Down(); down != 0 {
		t.Error("it counts as down")
	}
	if err := f.chargeBatch(&f.shards[0], 10, false); !errors.Is(err, ErrBusy) {
		t.Errorf("charged: %v", err)
	}
	if down, _ := f.Down(); down != 0 {
		t.Error("it counts as down, after a charge")
	}
	busy = false
	if err := f.chargeBatch(&f.shards[0], 10, false); err != nil || (<-charged).ID != "x" {
		t.Errorf("the settlement did not reach the primary: %v", err)
	}
}

// A probe that finds the primary store busy finds it up.
func TestFallbackComesUpWhilePrimaryIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := ErrUnavailable
		store := waitingStore{StoreFunc(func(context.Context, Request) (Decision, error) { return Decision{}, failure })}
		f := WithFallback(store, nil, &FallbackOptions{Failures: 1})
		if d, err := f.Take(t.Context(), Request{Key: "k", Limit: PerHour(9), Cost: 1}); err != nil || d.Source != SourceFallback {
			t.Fatalf("down: %+v, %v", d, err)
		}
		synctest.Wait()
		failure = ErrBusy
		time.Sleep(time.Second)
		f.Down() // probes
		synctest.Wait()
		if down, _ := f.Down(); down != 0 {
			t.Error("it is still down")
		}
	})
}

// Other errors count at once: a refused connection takes no time.
func TestFallbackCountsErrorsThatAreNoSilence(t *testing.T) {
	clock := time.Unix(0, 0)
	refused := StoreFunc(func(context.Context, Request) (Decision, error) { return Decision{}, errors.New("refused") })
	f := WithFallback(refused, nil, &FallbackOptions{Failures: 2, Now: func() time.Time { return clock }})
	rs, ds := []Request{{Key: "k", Limit: PerHour(9), Cost: 1}}, make([]Decision, 1)
	for range 2 {
		if err := f.TakeEach(t.Context(), rs, ds); err != nil {
			t.Fatal(err)
		}
	}
	if down, _ := f.Down(); down != 1 {
		t.Errorf("%d shards down, want 1", down)
	}
}

// A probe settles one debt at a time. One that fails again stays before later settlements of its
// ID: the last amount counts.
func TestLedgerRetriesSettlementsInOrder(t *testing.T) {
	l := ledger{maxDebts: 10}
	settle := func(id string, amount int64) {
		l.settle(&Request{Key: "key", Limit: PerHour(9), ID: id, Cost: amount, Settle: true}, PerHour(9), amount, 0)
	}
	fail := func(n int) {
		claimed := l.claim(n)
		if len(claimed) != n {
			t.Fatalf("%d claimed, want %d", len(claimed), n)
		}
		l.finish(claimed, claimed)
	}
	settle("a", 1)
	fail(1)
	settle("other", 5)
	settle("a", 2)
	fail(3)
	fail(1)
	settle("a", 1) // not what is on its way: the last to come is 2
	fail(4)
	var amounts []int64
	for _, d := range l.claim(10) {
		if d.id == "a" {
			amounts = append(amounts, d.amount)
		}
	}
	if want := []int64{1, 2, 1}; !slices.Equal(amounts, want) {
		t.Errorf("settled to %v, want %v", amounts, want)
	}
}
