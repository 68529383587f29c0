package algorithm_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A permitKey decides as a store does. It grows its words when needed.
type permitKey struct {
	limit   algorithm.Concurrent
	permits algorithm.Permits
}

func (k *permitKey) decide(now int64, req algorithm.Request) result {
	k.limit.Normalize(&k.permits, now)
	v := k.limit.Decide(&k.permits, now, req)
	if v.Granted != 0 {
		if room := k.limit.Room(&k.permits, now); room > len(k.permits.Words) {
			k.permits.Words = append(k.permits.Words, make([]int64, room-len(k.permits.Words))...)
		}
		k.limit.Record(&k.permits, now, req, v.Granted)
	}
	return result{v, k.limit.Balance(&k.permits, now)}
}

// A holder is the oracle's view of the permits under one ID.
type holder struct {
	units    int64
	since    int64 // when they were taken or last renewed
	released bool
}

// A permitOracle is a slow and simple model of a concurrency limit: a map of holders. It
// finds times by search, tick by tick.
type permitOracle struct {
	limit   algorithm.Concurrent
	holders map[uint64]holder
}

func (o *permitOracle) holds(h holder, t int64) bool { return t < h.since+o.limit.Period }

func (o *permitOracle) held(t int64) (units int64) {
	for _, h := range o.holders {
		if o.holds(h, t) {
			units += h.units
		}
	}
	return units
}

// grant returns how many permits a request under a new ID would get at t.
func (o *permitOracle) grant(t int64, req algorithm.Request) int64 {
	free := max(o.limit.Count-o.held(t)-req.KeepFree, 0)
	switch {
	case req.Cost <= free:
		return req.Cost
	case req.AtMost:
		return free
	}
	return 0
}

// firstTick returns how long it takes until something holds, or Never.
func (o *permitOracle) firstTick(now int64, passes func(t int64) bool) int64 {
	for t := now; t <= now+o.limit.Period; t += o.limit.Tick {
		if passes(t) {
			return t - now
		}
	}
	return algorithm.Never
}

func (o *permitOracle) decide(now int64, req algorithm.Request) result {
	v := algorithm.Outcome{Allowed: true}
	h, known := o.holders[req.ID]
	known = known && o.holds(h, now)
	switch {
	case req.Cost == algorithm.Reset:
		v.Granted = -o.held(now)
		clear(o.holders)
	case req.Cost > 0 && known:
		v.Granted, h.since = h.units, now
		o.holders[req.ID] = h
	case req.Cost > 0:
		v = o.take(now, req)
	case req.Cost < 0 && known && !h.released:
		v.Granted = -min(-req.Cost, h.units)
		o.holders[req.ID] = holder{units: h.units + v.Granted, since: h.since, released: true}
		if h.units+v.Granted == 0 {
			delete(o.holders, req.ID)
		}
	}
	return result{v, algorithm.Balance{
		Remaining:  max(o.limit.Count-o.held(now), 0),
		ResetAfter: o.firstTick(now, func(t int64) bool { return o.held(t) == 0 }),
	}}
}

func (o *permitOracle) take(now int64, req algorithm.Request) algorithm.Outcome {
	if granted := o.grant(now, req); granted > 0 {
		o.holders[req.ID] = holder{units: granted, since: now}
		return algorithm.Outcome{Allowed: true, Granted: granted}
	}
	return algorithm.Outcome{RetryAfter: o.firstTick(now, func(t int64) bool { return o.grant(t, req) > 0 })}
}

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
