package storetest

import (
	"maps"
	"time"

	"github.com/penstock-io/penstock"
)

// A ledger is everything that a store remembers. States and grants are never
// changed, only replaced, so that a copy of the maps is a copy of the ledger.
type ledger struct {
	states map[holder]state
	grants map[grantee]grant
}

// A holder is whom a state belongs to.
type holder struct {
	limit string // as identity has it
	key   string
}

// A grantee is whom a grant under an ID belongs to.
type grantee struct {
	holder
	id string
}

// A grant is what is remembered of a take that had an ID. Times are nanoseconds
// since 1970.
type grant struct {
	until    int64 // it is remembered
	units    int64 // that are still charged
	acting   int64 // when its holder may act on it
	reversed bool  // whether units were given back, which can be done once
}

func newLedger() ledger {
	return ledger{states: map[holder]state{}, grants: map[grantee]grant{}}
}

func (l ledger) clone() ledger {
	return ledger{states: maps.Clone(l.states), grants: maps.Clone(l.grants)}
}

// identity returns what the state of a limit belongs to: all that is said of a
// limit without a name; of one with a name, the name and the shape of what is
// counted.
func identity(l penstock.Limit) string {
	if l.Name != "" {
		l.Count, l.Burst = 0, 0
		if isBucket(l) {
			l.Period = time.Second
		}
	}
	return l.String()
}

func isBucket(l penstock.Limit) bool {
	return l.Algorithm == penstock.TokenBucket || l.Algorithm == penstock.LeakyBucket
}

func holderOf(r penstock.Request) holder {
	return holder{limit: identity(r.Limit), key: r.Key}
}

// take decides one request.
func (l *ledger) take(now int64, r penstock.Request) penstock.Decision {
	if r.ID == "" || r.Cost == 0 {
		return l.charge(now, r)
	}
	id := grantee{holderOf(r), r.ID}
	g, ok := l.grants[id]
	remembered := ok && now < g.until
	switch {
	case r.Cost < 0 && remembered && !g.reversed:
		return l.reverse(now, r, id)
	case r.Cost < 0:
		return l.look(now, r)
	case remembered:
		return l.repeat(now, r, g)
	}
	d := l.charge(now, r)
	if d.Granted > 0 {
		until := now + int64(min(r.Limit.Normal().Period, day))
		l.grants[id] = grant{until: until, units: d.Granted, acting: now + int64(d.Delay)}
	}
	return d
}

// charge decides a request without regard to its ID.
func (l *ledger) charge(now int64, r penstock.Request) penstock.Decision {
	s, d := l.states[holderOf(r)].decide(now, r)
	if r.Cost == penstock.Reset {
		s = state{}
	}
	l.states[holderOf(r)] = s
	return d
}

func (l *ledger) look(now int64, r penstock.Request) penstock.Decision {
	return l.charge(now, penstock.Request{Key: r.Key, Limit: r.Limit})
}

// repeat answers a request that was granted before.
func (l *ledger) repeat(now int64, r penstock.Request, g grant) penstock.Decision {
	d := l.look(now, r)
	d.Granted = g.units
	d.Delay = time.Duration(max(g.acting-now, 0))
	return d
}

// reverse gives back at most what a grant still holds. A grant that holds
// nothing any more is forgotten.
func (l *ledger) reverse(now int64, r penstock.Request, id grantee) penstock.Decision {
	g := l.grants[id]
	r.Cost = max(r.Cost, -g.units)
	g.units += r.Cost
	g.reversed = true
	l.grants[id] = g
	if g.units == 0 {
		delete(l.grants, id)
	}
	return l.charge(now, r)
}

// takeAll decides requests as one.
func (l *ledger) takeAll(now int64, rs []penstock.Request) []penstock.Decision {
	refusals, ok := l.refusals(now, rs)
	if ok {
		return l.chargeAll(now, rs)
	}
	ds := make([]penstock.Decision, len(rs))
	for i, r := range rs {
		ds[i] = l.look(now, r)
		if retry := refusals[i]; retry > 0 {
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

// refusals tries requests without charging them, and returns how long those
// that cannot be granted have to wait. What is asked of one key is asked of it
// together.
func (l *ledger) refusals(now int64, rs []penstock.Request) ([]time.Duration, bool) {
	total := map[holder]int64{}
	for _, r := range rs {
		total[holderOf(r)] += r.Cost
	}
	ok := true
	retry := make([]time.Duration, len(rs))
	for i, r := range rs {
		if r.Cost > 0 {
			r.Cost = total[holderOf(r)]
		}
		_, d := l.states[holderOf(r)].decide(now, r)
		retry[i] = d.RetryAfter
		ok = ok && d.Allowed
	}
	if !ok {
		return retry, false
	}
	// Of two in one leaky bucket, the second waits behind the first, perhaps
	// longer than it may.
	attempt := l.clone()
	for i, d := range attempt.chargeAll(now, rs) {
		if !d.Allowed {
			retry[i] = d.RetryAfter
			return retry, false
		}
	}
	return retry, true
}

// expired reports whether something that was remembered about a key is not
// remembered any more.
func (l *ledger) expired(key string, now int64) bool {
	for id, g := range l.grants {
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
