package renewal_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/renewal"
)

var (
	errLost = errors.New("lost")
	errDown = errors.New("down")
)

// A store grants everything, unless it is down or denies.
type store struct {
	calls  atomic.Int64
	down   atomic.Bool
	denies atomic.Int64 // the value to deny
	delay  atomic.Int64
}

func (s *store) renew(_ context.Context, values []int) (granted []bool, err error) {
	s.calls.Add(1)
	time.Sleep(time.Duration(s.delay.Load()))
	if s.down.Load() {
		return make([]bool, len(values)), errDown
	}
	for _, v := range values {
		granted = append(granted, int64(v) != s.denies.Load())
	}
	return granted, nil
}

// held runs a test with an item for each of n values, granted one after the other.
func held(t *testing.T, n int, test func(t *testing.T, s *store, r *renewal.Renewer[int], held []*renewal.Item[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.denies.Store(-1)
		r := renewal.New(30*time.Second, errLost, s.renew)
		var held []*renewal.Item[int]
		for i := range n {
			held = append(held, &renewal.Item[int]{Value: i})
			r.Hold(t.Context(), held[i], time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		test(t, s, r, held)
		for _, i := range held {
			r.Drop(i)
			i.End()
		}
	})
}

func expectHeld(t *testing.T, items ...*renewal.Item[int]) {
	t.Helper()
	for _, i := range items {
		if err := context.Cause(i.Context()); err != nil {
			t.Fatalf("item %d: %v, want it held", i.Value, err)
		}
	}
}

// Items that are due at about the same time are renewed in one call.
func TestManyItemsAreRenewedTogether(t *testing.T) {
	held(t, 200, func(t *testing.T, s *store, _ *renewal.Renewer[int], items []*renewal.Item[int]) {
		time.Sleep(5 * time.Minute)
		if expectHeld(t, items...); s.calls.Load() > 90 || s.calls.Load() < 60 {
			t.Errorf("200 items needed %d calls in 5 minutes, want two or three each 10 s", s.calls.Load())
		}
	})
}

// A renewal that fails is repeated, so a short outage loses nothing.
func TestItemSurvivesShortOutage(t *testing.T) {
	held(t, 1, func(t *testing.T, s *store, _ *renewal.Renewer[int], items []*renewal.Item[int]) {
		time.Sleep(9 * time.Second)
		s.down.Store(true)
		time.Sleep(15 * time.Second)
		s.down.Store(false)
		time.Sleep(time.Minute)
		expectHeld(t, items...)
	})
}

func TestItemIsLostOnePeriodAfterLastGrant(t *testing.T) {
	held(t, 1, func(t *testing.T, s *store, _ *renewal.Renewer[int], items []*renewal.Item[int]) {
		time.Sleep(11 * time.Second) // it was renewed after ten
		s.down.Store(true)
		start := time.Now()
		<-items[0].Context().Done()
		if after := time.Since(start).Round(time.Second); after != 29*time.Second || !errors.Is(context.Cause(items[0].Context()), errLost) {
			t.Errorf("%v after %v, want %v after 29 s", context.Cause(items[0].Context()), after, errLost)
		}
	})
}

func TestItemThatIsDeniedIsLostAtOnce(t *testing.T) {
	held(t, 3, func(t *testing.T, s *store, _ *renewal.Renewer[int], items []*renewal.Item[int]) {
		s.denies.Store(1)
		time.Sleep(11 * time.Second)
		if err := context.Cause(items[1].Context()); !errors.Is(err, errLost) {
			t.Errorf("an item that was denied: %v, want %v", err, errLost)
		}
		expectHeld(t, items[0], items[2])
	})
}

func TestDropWaitsForRenewalInFlight(t *testing.T) {
	held(t, 1, func(t *testing.T, s *store, r *renewal.Renewer[int], items []*renewal.Item[int]) {
		s.delay.Store(int64(3 * time.Second))
		time.Sleep(11 * time.Second)
		start := time.Now()
		if r.Drop(items[0]); s.calls.Load() != 1 || time.Since(start) < time.Second {
			t.Errorf("returned after %v, during renewal %d, want it to wait for the first", time.Since(start), s.calls.Load())
		}
		time.Sleep(time.Minute)
		if s.calls.Load() != 1 {
			t.Errorf("%d renewals, want none of what was dropped", s.calls.Load())
		}
	})
}

// An item whose holder has gone without dropping it is not renewed.
func TestItemIsNotRenewedAfterItsContextEnds(t *testing.T) {
	held(t, 0, func(t *testing.T, s *store, r *renewal.Renewer[int], _ []*renewal.Item[int]) {
		ctx, cancel := context.WithCancel(t.Context())
		r.Hold(ctx, &renewal.Item[int]{}, time.Now())
		cancel()
		if time.Sleep(time.Minute); s.calls.Load() != 0 {
			t.Errorf("%d renewals, want none", s.calls.Load())
		}
	})
}

func TestItemOfALateAnswerIsLost(t *testing.T) {
	held(t, 0, func(t *testing.T, _ *store, r *renewal.Renewer[int], _ []*renewal.Item[int]) {
		var i renewal.Item[int]
		r.Hold(t.Context(), &i, time.Now().Add(-30*time.Second))
		if err := context.Cause(i.Context()); !errors.Is(err, errLost) {
			t.Errorf("granted a period ago: %v, want %v", err, errLost)
		}
	})
}

// In an outage each item ends at a time of its own, one period after it was granted. To look at all items each time would be
// quadratic work.
func TestManyItemsExpireOneByOne(t *testing.T) {
	held(t, 10_000, func(t *testing.T, s *store, r *renewal.Renewer[int], items []*renewal.Item[int]) {
		time.Sleep(time.Minute)
		s.down.Store(true)
		sent := time.Now()
		for _, i := range items {
			r.Drop(i)
			r.Hold(t.Context(), i, sent)
			sent = sent.Add(time.Millisecond)
		}
		time.Sleep(30*time.Second - time.Nanosecond)
		for _, i := range items {
			expectHeld(t, i)
			time.Sleep(time.Millisecond)
			if err := context.Cause(i.Context()); !errors.Is(err, errLost) {
				t.Fatalf("item %d: %v one period after it was granted, want %v", i.Value, err, errLost)
			}
		}
	})
}
