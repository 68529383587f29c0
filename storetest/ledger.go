package storetest

import (
	"maps"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
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
	grant    algorithm.Grant
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
		if l.IsBucket() {
			l.Period = time.Second
		}
	}
	return l.String()
}

func stateKeyOf(r penstock.Request) stateKey {
	return stateKey{limit: identity(r.Limit), key: r.Key}
}

// take decides one request.
func (l *ledger) take(now int64, r penstock.Request) (penstock.Decision, error) {
	if r.ID == "" || r.Cost == 0 && !r.Settle || needsID(r.Limit) { // permits are the records of their IDs
		return l.charge(now, r), nil
	}
	id := idKey{stateKeyOf(r), r.ID}
	g, ok := l.idRecords[id]
	remembered := ok && now < g.until
	switch {
	case r.Settle && !remembered:
		l.peek(now, r)
		return penstock.Decision{}, penstock.ErrUnknownID
	case r.Settle:
		return l.settle(now, r, id), nil
	case r.Cost < 0 && remembered && !g.refunded:
		return l.refund(now, r, id), nil
	case r.Cost < 0:
		return l.peek(now, r), nil
	case remembered:
		return l.replay(now, r, g), nil
	}
	d := l.charge(now, r)
	if d.Allowed {
		l.record(id, now, lifetime(r), d)
	}
	return d, nil
}

// lifetime returns how long a grant under an ID is remembered.
func lifetime(r penstock.Request) time.Duration {
	return max(min(r.Limit.Normal().Period, day), r.Hold)
}

// record records a grant.
func (l *ledger) record(id idKey, now int64, lifetime time.Duration, d penstock.Decision) {
	g := algorithm.Grant{Units: d.Granted, Owed: d.Granted, Due: now + int64(d.ResetAfter)}
	l.idRecords[id] = idRecord{until: now + int64(lifetime), grant: g, actAt: now + int64(d.Delay)}
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
	d.Granted = g.grant.Units
	d.Delay = time.Duration(max(g.actAt-now, 0))
	return d
}

// refund refunds at most what is still charged under an ID. A record without units is
// deleted.
func (l *ledger) refund(now int64, r penstock.Request, id idKey) penstock.Decision {
	g := l.idRecords[id]
	d := l.move(now, r, &g.grant, max(r.Cost, -g.grant.Units))
	g.refunded = true
	l.idRecords[id] = g
	if g.grant.Units == 0 {
		delete(l.idRecords, id)
	}
	return d
}

// settle makes what is charged under an ID equal to the cost.
func (l *ledger) settle(now int64, r penstock.Request, id idKey) penstock.Decision {
	g := l.idRecords[id]
	d := l.move(now, r, &g.grant, r.Cost-g.grant.Units)
	l.idRecords[id] = g
	d.Allowed, d.Granted, d.RetryAfter, d.Delay = true, g.grant.Units, 0, 0
	return d
}

// move charges more units of a grant, or refunds some of them.
func (l *ledger) move(now int64, r penstock.Request, g *algorithm.Grant, change int64) penstock.Decision {
	interval := int64(0)
	if r.Limit.IsBucket() {
		interval = rate(r.Limit.Normal()).Interval
	}
	if change > 0 {
		more := penstock.Request{Key: r.Key, Limit: r.Limit, Cost: change, Overdraw: true}
		if more.Validate() != nil { // a limit that cannot owe
			more.Overdraw, more.AtMost = false, true
		}
		d := l.charge(now, more)
		*g = g.Charged(now, d.Granted, now+int64(d.ResetAfter), interval)
		return d
	}
	back := min(-change, g.Unpaid(now, interval))
	d := l.refundDue(now, r, back, g.Due)
	*g = g.Refunded(now, -change, back, interval, int64(tick))
	return d
}

// refundDue refunds units that time will have paid back at due.
func (l *ledger) refundDue(now int64, r penstock.Request, units, due int64) penstock.Decision {
	if units == 0 {
		return l.peek(now, r)
	}
	s, d := l.states[stateKeyOf(r)].refundDue(now, r.Limit.Normal(), units, due)
	l.states[stateKeyOf(r)] = s
	return d
}

// takeAll decides requests all or nothing, which have the same ID or none. If only some
// grants of the ID are remembered, the error is ErrUnknownID.
func (l *ledger) takeAll(now int64, rs []penstock.Request) ([]penstock.Decision, error) {
	if slices.ContainsFunc(rs, func(r penstock.Request) bool { return r.ID == "" || r.ID != rs[0].ID || r.NewID }) {
		return l.takeAllAnew(now, rs), nil
	}
	takes, known, longest := 0, 0, time.Duration(0)
	for _, r := range rs {
		longest = max(longest, lifetime(r))
		if r.Cost > 0 || r.Settle {
			takes++
		}
		if l.remembers(now, r) {
			known++
		}
	}
	switch {
	case known == 0 && !rs[0].Settle:
		return l.takeAllUnderID(now, longest, rs), nil
	case known == takes && !rs[0].Settle:
		return l.replayAll(now, rs), nil
	case known == takes:
		return l.settleAll(now, rs), nil
	}
	for _, r := range rs {
		l.peek(now, r)
	}
	return nil, penstock.ErrUnknownID
}

// remembers reports whether a take was granted under its ID before.
func (l *ledger) remembers(now int64, r penstock.Request) bool {
	if needsID(r.Limit) {
		return r.Cost > 0 && l.states[stateKeyOf(r)].key.Holds(hashOf(r.ID), now)
	}
	g, ok := l.idRecords[idKey{stateKeyOf(r), r.ID}]
	return ok && (r.Cost > 0 || r.Settle) && now < g.until
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

func (l *ledger) settleAll(now int64, rs []penstock.Request) []penstock.Decision {
	ds := make([]penstock.Decision, len(rs))
	for i, r := range rs {
		ds[i] = l.settle(now, r, idKey{stateKeyOf(r), r.ID})
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
	total, prior := map[stateKey]int64{}, map[stateKey]int64{}
	for _, r := range rs {
		total[stateKeyOf(r)] += r.Cost
	}
	ok := true
	retry := make([]time.Duration, len(rs))
	for i, r := range rs {
		h := stateKeyOf(r)
		retry[i] = l.states[h].retryAll(now, r, prior[h], total[h])
		ok = ok && retry[i] == 0
		prior[h] += r.Cost
	}
	return retry, ok
}

// retryAll returns the RetryAfter of a request among others for the same key. Of two requests in one leaky bucket, the
// second waits for the first, perhaps for longer than its MaxDelay.
func (s state) retryAll(now int64, r penstock.Request, prior, total int64) time.Duration {
	all, first := r, r
	if r.Cost > 0 {
		all.Cost = total
	}
	queues := r.Limit.HasQueue() && r.Cost > 0 && !r.Overdraw
	if queues {
		all.MaxDelay = 0
	}
	_, d := s.decide(now, all)
	if !queues || d.RetryAfter == penstock.Never {
		return d.RetryAfter
	}
	peek := penstock.Request{Key: r.Key, Limit: r.Limit}
	s, _ = s.decide(now, peek) // of a clock that stepped back, before now moves on
	first.Cost, first.MaxDelay, first.KeepFree = prior, 0, 0
	now += int64(d.RetryAfter)
	behind, _ := s.decide(now, first)
	_, own := behind.decide(now, r)
	behind, _ = state{}.decide(now, first)
	if _, best := behind.decide(now, r); !best.Allowed {
		return penstock.Never
	}
	return d.RetryAfter + own.RetryAfter
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
