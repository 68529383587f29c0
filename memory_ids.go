package penstock

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A grant under an ID is remembered beside the key, in the same shard, so that
// charge and record are one. Its slot holds when it is forgotten, what was
// granted and is still charged, and when to act on it. Two sign bits say more:
// that the units were taken from the bucket that new keys share, and that the
// grant was given back, which can be done once.
const (
	grantUntil  = 1
	grantUnits  = 2
	grantActing = 3
)

// takeOnce decides a request that has an ID.
func (m *Memory) takeOnce(cl *compiledLimit, r *Request) (Decision, error) {
	h := m.hashOf(cl, r.Key)
	id := max(h*0x9e3779b97f4a7c15^m.sum(r.ID), 1)
	s := m.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, clock := m.clocks(cl.kind)
	grant := s.grant(id, clock)
	switch {
	case r.Cost < 0:
		return s.reverse(cl, r, h, now, grant), nil
	case grant != nil:
		return s.repeat(cl, h, now, clock, grant), nil
	}
	return s.takeFirst(cl, r, h, id, now, clock)
}

// grant returns the slot of a grant that is still remembered, or nil.
func (s *shard) grant(id uint64, clock int64) []uint64 {
	t := &s.tables[grantTable]
	at, ok := t.find(id)
	if !ok || t.until(at) <= clock {
		return nil
	}
	return t.words[at : at+t.width]
}

// takeFirst takes under an ID that is not remembered. The record gets its place
// before anything is charged: without one, asking again would charge again.
func (s *shard) takeFirst(cl *compiledLimit, r *Request, h, id uint64, now, clock int64) (Decision, error) {
	t := &s.tables[grantTable]
	at, ok := t.find(id)
	if !ok {
		at, ok = s.place(grantTable, id, clock)
	}
	if !ok {
		return Decision{}, fmt.Errorf("penstock: memory: no place left to remember the ID: %w", ErrUnavailable)
	}
	t.words[at+grantUntil] = uint64(clock + cl.grantLife)
	var d Decision
	s.wentShared = false
	s.take(cl, h, now, r.ask(), &d)
	at, ok = t.find(id) // taking may have moved it, or swept it if its time was short
	if ok {
		s.writeGrant(t.words[at:at+t.width], clock, cl.grantLife, d)
		t.firstStale = min(t.firstStale, t.until(at))
	}
	return d, nil
}

// writeGrant records what was granted; a denial leaves nothing to remember.
func (s *shard) writeGrant(grant []uint64, clock, life int64, d Decision) {
	grant[grantUntil] = 0
	if d.Granted > 0 {
		grant[grantUntil] = uint64(clock + life)
	}
	grant[grantUnits] = uint64(d.Granted)
	if s.wentShared {
		grant[grantUnits] |= signBit
	}
	grant[grantActing] = uint64(clock + int64(d.Delay))
}

// repeat answers for a grant that was made before, with the numbers of now.
func (s *shard) repeat(cl *compiledLimit, h uint64, now, clock int64, grant []uint64) (d Decision) {
	granted, acting := int64(grant[grantUnits]&^signBit), int64(grant[grantActing]&^signBit)
	s.take(cl, h, now, algorithm.Ask{}, &d)
	d.Granted = granted
	d.Delay = max(0, time.Duration(acting-clock))
	return d
}

// reverse gives back what a grant took, once.
func (s *shard) reverse(cl *compiledLimit, r *Request, h uint64, now int64, grant []uint64) (d Decision) {
	ask := r.ask()
	if grant == nil || grant[grantActing]&signBit != 0 {
		s.take(cl, h, now, algorithm.Ask{}, &d)
		return d
	}
	shared, granted := grant[grantUnits]&signBit, int64(grant[grantUnits]&^signBit)
	ask.Cost = max(ask.Cost, -granted)
	grant[grantUnits] = uint64(granted+ask.Cost) | shared
	grant[grantActing] |= signBit
	if granted+ask.Cost == 0 {
		grant[grantUntil] = 0
	}
	if shared != 0 {
		s.takeShared(cl, ask, &d)
	} else {
		s.take(cl, h, now, ask, &d)
	}
	return d
}
