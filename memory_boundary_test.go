package penstock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// A store that is nearly full, of keys and IDs that live for a few nanoseconds, on a clock that
// moves with each reading: what one part of a decision finds, a sweep for another part may have
// dropped. No request panics, and no more is held than the store may hold.
func TestMemoryDecidesWhileStatesExpire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, step := int64(1_000_000), int64(0)
		o := &penstock.MemoryOptions{
			MaxKeys:  rapid.IntRange(1, 8).Draw(t, "MaxKeys"),
			MaxBytes: rapid.SampledFrom([]int64{1, 16 << 10, 33 << 10, 1 << 20}).Draw(t, "MaxBytes"),
			Now:      func() time.Time { now += step; return time.Unix(0, now) },
		}
		store := penstock.NewMemory(o)
		request := boundaryRequest()
		var last []penstock.Request
		takeAll := func(t *rapid.T, rs []penstock.Request) {
			ds := make([]penstock.Decision, len(rs))
			err := store.TakeAll(ctx, rs, ds)
			for i := range rs {
				checkBoundaryDecision(t, rs[i], ds[i], err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				r := request.Draw(t, "request")
				d, err := store.Take(ctx, r)
				checkBoundaryDecision(t, r, d, err)
			},
			"take all": func(t *rapid.T) {
				last = rapid.SliceOfN(request, 1, 5).Draw(t, "requests")
				alone := rapid.Bool().Draw(t, "without one ID")
				for i := range last {
					r := &last[i]
					r.Key, r.Cost, r.AtMost = boundaryKeys[i], max(r.Cost, 0), false
					if !alone {
						r.ID, r.Settle, r.Overdraw = "x", false, false
					}
				}
				takeAll(t, last)
			},
			"repeat": func(t *rapid.T) { takeAll(t, last) },
			"wait":   func(t *rapid.T) { now += rapid.Int64Range(0, 30).Draw(t, "for") },
			"step":   func(t *rapid.T) { step = rapid.Int64Range(0, 3).Draw(t, "step") },
			"": func(t *rapid.T) {
				if s := store.Stats(); s.Keys < 0 || s.Keys > int64(o.MaxKeys) || s.Bytes < 0 || s.Bytes > o.MaxBytes*5/4 {
					t.Fatalf("%+v, with %+v", s, o)
				}
			},
		})
	})
}

var boundaryKeys = []string{"a", "b", "c", "d", "e"}

// boundaryRequest generates requests, few of them invalid, for few keys under limits of a few
// nanoseconds.
func boundaryRequest() *rapid.Generator[penstock.Request] {
	return rapid.Custom(func(t *rapid.T) penstock.Request {
		l := penstock.Limit{
			Count:     rapid.SampledFrom([]int64{0, 1, 2, 9, 40}).Draw(t, "Count"),
			Period:    time.Duration(40 * rapid.Int64Range(1, 3).Draw(t, "Period")),
			Algorithm: penstock.Algorithm(rapid.IntRange(0, int(penstock.Concurrent)).Draw(t, "Algorithm")),
			Untrusted: rapid.Bool().Draw(t, "Untrusted"),
		}
		if l.Algorithm <= penstock.LeakyBucket && l.Count == 9 {
			l.Count = 10 // which can be spread evenly
		}
		r := penstock.Request{
			Key:   rapid.SampledFrom(boundaryKeys).Draw(t, "Key"),
			Limit: l,
			Cost:  rapid.SampledFrom([]int64{1, 1, 1, 2, 9, 40, 0, -1, penstock.Reset}).Draw(t, "Cost"),
			ID:    rapid.SampledFrom([]string{"", "", "x", "y", "z"}).Draw(t, "ID"),
			Hold:  time.Duration(rapid.SampledFrom([]int64{0, 0, 100}).Draw(t, "Hold")),
		}
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			r.AtMost = true
		case 1:
			r.Overdraw = true
		case 2:
			r.Settle = r.ID != ""
		case 3:
			r.MaxDelay = time.Duration(rapid.Int64Range(1, 50).Draw(t, "MaxDelay"))
		}
		return r
	})
}

// checkBoundaryDecision checks what is true of every decision.
func checkBoundaryDecision(t *rapid.T, r penstock.Request, d penstock.Decision, err error) {
	t.Helper()
	switch {
	case err != nil && d != (penstock.Decision{}):
		t.Fatalf("%+v: %v beside %v", r, d, err)
	case err != nil:
		if !errors.Is(err, penstock.ErrBadCost) && !errors.Is(err, penstock.ErrUnknownID) && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("%+v: %v", r, err)
		}
	case d.Remaining < 0 || d.Remaining > d.Limit || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Delay < 0, d.Allowed && d.RetryAfter != 0:
		t.Fatalf("%+v: %+v", r, d)
	}
}
