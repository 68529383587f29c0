package algorithmtest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

func drawConcurrent(t *rapid.T) algorithm.Concurrent {
	tick := rapid.SampledFrom([]int64{1, millisecond}).Draw(t, "tick")
	return algorithm.Concurrent{
		Count:  rapid.Int64Range(0, 12).Draw(t, "count"),
		Period: rapid.Int64Range(1, 40).Draw(t, "ticks") * tick,
		Tick:   tick,
	}
}

func drawPermitRequest(t *rapid.T) algorithm.Request {
	req := algorithm.Request{Cost: rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 13, 0, -1, -1, -5, algorithm.Reset}).Draw(t, "cost")}
	if req.Cost != 0 && req.Cost != algorithm.Reset {
		req.ID = rapid.Uint64Range(1, 8).Draw(t, "id")
	}
	if req.Cost > 0 {
		req.AtMost = rapid.Bool().Draw(t, "at most")
		req.KeepFree = rapid.SampledFrom([]int64{0, 0, 0, 1, 2, 5, 13}).Draw(t, "keep free")
	}
	return req
}

// On a clock that never steps back, every field of every result equals the oracle's, for
// any requests and changes of the count.
func TestConcurrentMatchesOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawConcurrent(t)
		k, o := &permitKey{limit: l}, &permitOracle{limit: l, holders: map[uint64]holder{}}
		now := l.Tick * 1000
		for range 60 {
			if rapid.IntRange(0, 20).Draw(t, "count changes at 20") == 20 {
				l.Count = rapid.Int64Range(0, 12).Draw(t, "count")
				k.limit, o.limit = l, l
			}
			now += l.Tick * rapid.SampledFrom([]int64{0, 0, 1, 3, 10}).Draw(t, "ticks")
			req := drawPermitRequest(t)
			if got, want := k.decide(now, req), o.decide(now, req); got != want {
				t.Fatalf("%+v at %d, %+v:\n got %+v\nwant %+v", l, now, req, got, want)
			}
		}
	})
}

// A span is how long a holder may believe that it holds permits: one period from when it
// sent its request, in forward time.
type span struct{ units, until int64 }

// On a clock that steps back, too, never more than Count permits are held, where each
// grant is held for a whole period of forward time unless it is released.
func TestConcurrentBoundHoldsOnAnyClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawConcurrent(t)
		k := &permitKey{limit: l}
		now, forward := l.Tick*1000, int64(0)
		holders := map[uint64]span{}
		for range 60 {
			step := l.Tick * rapid.SampledFrom([]int64{0, 0, 1, 3, 10, -1, -20, -100}).Draw(t, "ticks")
			now += step
			forward += max(step, 0)
			req := drawPermitRequest(t)
			r := k.decide(now, req)
			switch {
			case req.Cost == algorithm.Reset:
				clear(holders)
			case r.Granted > 0:
				holders[req.ID] = span{r.Granted, forward + l.Period}
			case r.Granted < 0:
				h := holders[req.ID]
				holders[req.ID] = span{h.units + r.Granted, h.until}
			}
			held := int64(0)
			for _, h := range holders {
				if forward < h.until {
					held += h.units
				}
			}
			if held > l.Count {
				t.Fatalf("%+v: %d permits are held after %+v: %+v", l, held, req, holders)
			}
			if r.ResetAfter > l.Period || r.RetryAfter > l.Period && r.RetryAfter != algorithm.Never {
				t.Fatalf("%+v: %+v locks the key out for longer than a period", l, r)
			}
		}
	})
}

// A denial and a peek change nothing.
func TestConcurrentDenialChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawConcurrent(t)
		k := &permitKey{limit: l}
		now := l.Tick * 1000
		for range 40 {
			now += l.Tick * rapid.SampledFrom([]int64{0, 1, 3}).Draw(t, "ticks")
			before := slices.Clone(k.permits.Words[:algorithm.PermitWords*k.permits.Len])
			if r := k.decide(now, drawPermitRequest(t)); r.Granted != 0 {
				continue
			}
			if after := k.permits.Words[:algorithm.PermitWords*k.permits.Len]; !slices.Equal(before, after) {
				t.Fatalf("%+v: a decision without a grant changed %d to %d", l, before, after)
			}
		}
	})
}
