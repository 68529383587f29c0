package storetest

import (
	"maps"
	"time"

	"github.com/penstock-io/penstock"
)

// A ledger is the whole state of a store. States and ID records are never changed,
// only replaced, so a copy of the maps is a copy of the ledger.
type ledger struct {
	states    map[stateKey]state
	idRecords map[idKey]idRecord
}

// A stateKey identifies a state.
type stateKey struct {
	limit string // by identity
	key   string
}

// An idKey identifies the record of an ID.
type idKey struct {
	stateKey
	id string
}

// An idRecord is the record of a take with an ID. Times are nanoseconds since 1970.
type idRecord struct {
	until    int64 // when the record expires
	units    int64 // that are still charged
	actAt    int64 // when the caller may act on it
	refunded bool  // whether units were refunded, which is possible once
}

func newLedger() ledger {
	return ledger{states: map[stateKey]state{}, idRecords: map[idKey]idRecord{}}
}

func (l ledger) clone() ledger {
	return ledger{states: maps.Clone(l.states), idRecords: maps.Clone(l.idRecords)}
}

// identity returns what identifies the state of a limit: the whole limit if it has no
// name; otherwise its name, algorithm and window shape.
func identity(l penstock.Limit) string {
	if l.Name != "" {
		l.Count, l.Burst, l.Debt = 0, 0, 0
		if isBucket(l) {
			l.Period = time.Second
		}
	}
	return l.String()
}

func isBucket(l penstock.Limit) bool {
	return l.Algorithm == penstock.TokenBucket || l.Algorithm == penstock.LeakyBucket
}

func stateKeyOf(r penstock.Request) stateKey {
	return stateKey{limit: identity(r.Limit), key: r.Key}
}

// take decides one request.
func (l *ledger) take(now int64, r penstock.Request) penstock.Decision {
	if r.ID == "" || r.Cost == 0 || needsID(r.Limit) { // permits are the records of their IDs
		return l.charge(now, r)
	}
	id := idKey{stateKeyOf(r), r.ID}
	g, ok := l.idRecords[id]
	remembered := ok && now < g.until
	switch {
	case r.Cost < 0 && remembered && !g.refunded:
		return l.refund(now, r, id)
	case r.Cost < 0:
		return l.peek(now, r)
	case remembered:
		return l.replay(now, r, g)
	}
	d := l.charge(now, r)
	if d.Allowed {
		l.record(id, now, lifetime(r), d)
	}
	return d
}

// lifetime returns how long a grant under an ID is remembered.
func lifetime(r penstock.Request) time.Duration { return min(r.Limit.Normal().Period, day) }

// record records a grant.
func (l *ledger) record(id idKey, now int64, lifetime time.Duration, d penstock.Decision) {
	l.idRecords[id] = idRecord{until: now + int64(lifetime), units: d.Granted, actAt: now + int64(d.Delay)}
}

// charge decides a request without its ID.
func (l *ledger) charge(now int64, r penstock.Request) penstock.Decision {
	s, d := l.states[stateKeyOf(r)].decide(now, r)
	if r.Cost == penstock.Reset {
		s = state{}
	}
	l.states[stateKeyOf(r)] = s
	return d
}

func (l *ledger) peek(now int64, r penstock.Request) penstock.Decision {
	return l.charge(now, penstock.Request{Key: r.Key, Limit: r.Limit})
}

// replay decides a request that was granted before under the same ID.
func (l *ledger) replay(now int64, r penstock.Request, g idRecord) penstock.Decision {
	d := l.peek(now, r)
	d.Granted = g.units
	d.Delay = time.Duration(max(g.actAt-now, 0))
	return d
}

// refund refunds at most what is still charged under an ID. A record without units is
// deleted.
func (l *ledger) refund(now int64, r penstock.Request, id idKey) penstock.Decision {
	g := l.idRecords[id]
	r.Cost = max(r.Cost, -g.units)
	g.units += r.Cost
	g.refunded = true
	l.idRecords[id] = g
	if g.units == 0 {
		delete(l.idRecords, id)
	}
	return l.charge(now, r)
}

// takeAll decides requests all or nothing, which have the same ID or none. If only some
// grants of the ID are remembered, the error is ErrUnknownID.
func (l *ledger) takeAll(now int64, rs []penstock.Request) ([]penstock.Decision, error) {
	if len(rs) == 0 || rs[0].ID == "" {
		return l.takeAllAnew(now, rs), nil
	}
	takes, known, longest := 0, 0, time.Duration(0)
	for _, r := range rs {
		longest = max(longest, lifetime(r))
		if r.Cost > 0 {
			takes++
		}
		if l.remembers(now, r) {
			known++
		}
	}
	switch known {
	case 0:
		return l.takeAllUnderID(now, longest, rs), nil
	case takes:
		return l.replayAll(now, rs), nil
	}
	for _, r := range rs {
		l.peek(now, r)
	}
	return nil, penstock.ErrUnknownID
}

// remembers reports whether a take was granted under its ID before.
func (l *ledger) remembers(now int64, r penstock.Request) bool {
	if needsID(r.Limit) {
		permits := l.states[stateKeyOf(r)].permits
		return r.Cost > 0 && permits.Holds(hashOf(r.ID), now)
	}
	g, ok := l.idRecords[idKey{stateKeyOf(r), r.ID}]
	return ok && r.Cost > 0 && now < g.until
}

func (l *ledger) replayAll(now int64, rs []penstock.Request) []penstock.Decision {
	ds := make([]penstock.Decision, len(rs))
	for i, r := range rs {
		ds[i] = l.peek(now, r)
		switch {
		case r.Cost > 0 && needsID(r.Limit):
			ds[i] = l.charge(now, r) // renews them
		case r.Cost > 0:
			ds[i] = l.replay(now, r, l.idRecords[idKey{stateKeyOf(r), r.ID}])
		}
	}
	return ds
}

// takeAllUnderID records what it grants for as long as the longest of the limits says.
func (l *ledger) takeAllUnderID(now int64, longest time.Duration, rs []penstock.Request) []penstock.Decision {
	ds := l.takeAllAnew(now, rs)
	for _, d := range ds {
		if !d.Allowed {
			return ds
		}
	}
	for i, r := range rs {
		if r.Cost > 0 && !needsID(r.Limit) {
			l.record(idKey{stateKeyOf(r), r.ID}, now, longest, ds[i])
		}
	}
	return ds
}

func (l *ledger) takeAllAnew(now int64, rs []penstock.Request) []penstock.Decision {
	denials, ok := l.denials(now, rs)
	if ok {
		return l.chargeAll(now, rs)
	}
	ds := make([]penstock.Decision, len(rs))
	for i, r := range rs {
		ds[i] = l.peek(now, r)
		if retry := denials[i]; retry > 0 {
			ds[i].Allowed, ds[i].RetryAfter, ds[i].Delay = false, retry, 0
		}
	}
	return ds
}

func (l *ledger) chargeAll(now int64, rs []penstock.Request) []penstock.Decision {
	ds := make([]penstock.Decision, len(rs))
	for i, r := range rs {
		ds[i] = l.charge(now, r)
	}
	return ds
}

// denials decides requests without charging them, and returns the RetryAfter of each
// that is denied. Costs of the same key add up.
func (l *ledger) denials(now int64, rs []penstock.Request) ([]time.Duration, bool) {
	total := map[stateKey]int64{}
	for _, r := range rs {
		total[stateKeyOf(r)] += r.Cost
	}
	ok := true
	retry := make([]time.Duration, len(rs))
	for i, r := range rs {
		if r.Cost > 0 {
			r.Cost = total[stateKeyOf(r)]
		}
		_, d := l.states[stateKeyOf(r)].decide(now, r)
		retry[i] = d.RetryAfter
		ok = ok && d.Allowed
	}
	if !ok {
		return retry, false
	}
	// Of two requests in one leaky bucket, the second waits for the first, perhaps
	// for longer than its MaxDelay.
	attempt := l.clone()
	for i, d := range attempt.chargeAll(now, rs) {
		if !d.Allowed {
			retry[i] = d.RetryAfter
			return retry, false
		}
	}
	return retry, true
}

// expired reports whether some state of a key has expired.
func (l *ledger) expired(key string, now int64) bool {
	for id, g := range l.idRecords {
		if id.key == key && g.until <= now {
			return true
		}
	}
	for h, s := range l.states {
		if h.key == key && s.until > 0 && s.until <= now {
			return true
		}
	}
	return false
}
