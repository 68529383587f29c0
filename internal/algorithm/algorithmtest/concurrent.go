package algorithmtest

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Concurrent has an oracle of its own, because requests differ by their IDs.
var _ = newKind("concurrent", row{newKey: func() key { return &permitKey{} }})

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

// refundDue refunds nothing: permits are released by their ID.
func (k *permitKey) refundDue(now, _, _ int64) result { return k.decide(now, algorithm.Request{}) }

func (k *permitKey) change(l limit) {
	k.limit = algorithm.Concurrent{Count: l.count, Period: l.period, Tick: l.tick}
}

func (k *permitKey) fork() key {
	copied := *k
	copied.permits.Words = slices.Clone(k.permits.Words)
	return &copied
}

func (k *permitKey) state(int64) string { return fmt.Sprintf("%+v", k.permits) }

func (k *permitKey) valid(int64) bool {
	return algorithm.PermitWords*k.permits.Len <= len(k.permits.Words)
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
