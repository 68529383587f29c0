package penstock

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// A ledger holds what was spent by the second store's leave and has yet to be
// charged to the first.
type ledger struct {
	most     int
	mu       sync.Mutex
	debts    map[owed]debt
	claimed  []debt       // sent before, and not known to be charged
	entries  atomic.Int64 // of both
	settleAt atomic.Int64 // when to try next, or settling
}

// owed is what a debt is about. What was granted under an ID is owed by itself: it
// is charged under the same ID, so that nothing is if the first store has granted
// it as well, and its answer was lost.
type owed struct {
	stateKey
	id string
}

func owedOf(r *Request) owed { return owed{stateKeyOf(*r), r.ID} }

// A debt is what was spent of one key.
type debt struct {
	key   string
	limit Limit  // of the first store
	local Limit  // of the second
	units int64  // that were granted, and not given back
	id    string // under which they are charged, once that was tried
}

// owes reports whether anything waits to be settled.
func (l *ledger) owes() bool { return l.entries.Load() > 0 }

// add takes note of units that were granted under a local limit, or given back.
func (l *ledger) add(r *Request, local Limit, units int64) {
	if units == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := owedOf(r)
	d, known := l.debts[of]
	switch {
	case !known && (units < 0 || len(l.debts)+len(l.claimed) >= l.most):
		return
	case !known:
		d.key, d.id = strings.Clone(r.Key), strings.Clone(r.ID) // which may be pieces of something large
		of.key, of.id = d.key, d.id
	case r.ID != "" && units > 0:
		d.units = 0 // asked again, it is told what was granted before
	}
	d.limit, d.local = r.Limit, local
	d.units = max(d.units+units, 0)
	l.put(of, d)
}

// put writes a debt, or removes it when nothing is owed.
func (l *ledger) put(of owed, d debt) {
	if l.debts == nil {
		l.debts = map[owed]debt{}
	}
	l.debts[of] = d
	if d.units == 0 {
		delete(l.debts, of)
	}
	l.entries.Store(int64(len(l.debts) + len(l.claimed)))
}

// giveBack takes units off a debt, as many as there are, and returns how many
// that were.
func (l *ledger) giveBack(r *Request) (units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := owedOf(r)
	d := l.debts[of]
	units = d.units
	if r.Cost != Reset {
		units = min(d.units, -r.Cost)
	}
	d.units -= units
	l.put(of, d)
	return units
}

// claim takes debts out of the ledger: those that were tried before first.
func (l *ledger) claim(most int) (ds []debt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(most, len(l.claimed))
	ds = append(ds, l.claimed[:n]...)
	l.claimed = l.claimed[n:]
	for of, d := range maps.All(l.debts) {
		if len(ds) == most {
			break
		}
		ds = append(ds, d)
		delete(l.debts, of)
	}
	l.entries.Store(int64(len(l.debts) + len(l.claimed)))
	return ds
}

// putBack returns debts of which it is not known whether they were charged. They
// keep their IDs, by which they are charged once.
func (l *ledger) putBack(ds []debt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claimed = append(l.claimed, ds...)
	l.entries.Store(int64(len(l.debts) + len(l.claimed)))
}

// A settlementID tells apart the settlements of all processes.
type settlementID struct {
	once    sync.Once
	process string
	n       atomic.Int64
}

func (s *settlementID) next() string {
	s.once.Do(func() { s.process = rand.Text() })
	return "penstock settles " + s.process + " " + strconv.FormatInt(s.n.Add(1), 36)
}

// settleSoon charges to the first store what is owed to it, unless somebody is at
// it or has just failed.
func (f *Fallback) settleSoon(p *part) {
	at := p.ledger.settleAt.Load()
	if f.clock.Now() < at || !p.ledger.settleAt.CompareAndSwap(at, settling) {
		return
	}
	go func() {
		var err error
		for err == nil && p.ledger.owes() {
			err = f.settleSome(p, settleAtOnce, false)
		}
		again := int64(0)
		if err != nil {
			again = f.clock.Now() + int64(f.retry)
		}
		p.ledger.settleAt.Store(again)
	}()
}

// settling is the value of settleAt while a settlement is in flight.
const settling = int64(math.MaxInt64)

// settleAtOnce is how many debts are charged in one trip.
const settleAtOnce = 128

// settleSome charges some of what is owed. A probe does so while the breaker is
// open.
func (f *Fallback) settleSome(p *part, most int, probe bool) error {
	t, ok := p.breaker.Admit(f.clock.Now())
	if !ok && !probe {
		return ErrUnavailable
	}
	debts := p.ledger.claim(most)
	rs := make([]Request, 0, len(debts))
	kept := debts[:0]
	for _, d := range debts {
		if r, ok := f.settlement(&d); ok {
			rs, kept = append(rs, r), append(kept, d)
		}
	}
	if len(rs) == 0 {
		return nil
	}
	err := f.charge(rs)
	switch {
	case isMalformed(err) || isAnswer(err):
		p.ledger.putBack(without(kept, err))
		return nil
	case err != nil:
		p.ledger.putBack(kept)
		f.failed(p, t, err)
	}
	return err
}

// without returns the debts that an error is not about, or none if it does not say:
// what the first store will never take need not be tried again.
func without(ds []debt, err error) []debt {
	var about *RequestError
	if !errors.As(err, &about) || uint(about.Index) >= uint(len(ds)) {
		return nil
	}
	at := about.Index
	return slices.Delete(ds, at, at+1)
}

// charge takes units of the first store, as many as there are.
func (f *Fallback) charge(rs []Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	return TakeEach(ctx, f.first, rs, make([]Decision, len(rs)))
}

// settlement returns the request by which a debt is charged. What has come back
// by itself meanwhile, by the second store's account, is not owed any more.
func (f *Fallback) settlement(d *debt) (r Request, ok bool) {
	look, err := f.second.Take(context.Background(), Request{Key: d.key, Limit: d.local})
	if err != nil {
		return r, false
	}
	due := min(d.units, look.Limit-look.Remaining)
	if d.id == "" {
		d.id = f.identity.next()
	}
	return Request{Key: d.key, Limit: d.limit, Cost: due, AtMost: true, ID: d.id}, due > 0
}

// unsettled reports whether requests give back what may not be charged to the
// first store yet.
func (f *Fallback) unsettled(rs []Request) bool {
	for i := range rs {
		if rs[i].Cost < 0 && f.part(rs[i].Key).ledger.owes() {
			return true
		}
	}
	return false
}

// giveBack gives back what was granted by the second store and is not charged to
// the first yet, and takes that off the request: the rest is the first store's. It
// returns the second's decision, which gives back nothing if there was nothing.
func (f *Fallback) giveBack(ctx context.Context, p *part, r *Request) (d Decision) {
	if r.ID != "" {
		return d
	}
	units := p.ledger.giveBack(r)
	if units == 0 && r.Cost != Reset {
		return d
	}
	back := Request{Key: r.Key, Limit: r.Limit, Cost: -units}
	_, back.Limit = f.policy(r.Limit)
	if r.Cost == Reset {
		back.Cost = Reset // what is owed under IDs is so no more
	} else {
		r.Cost += units
	}
	d, _ = f.second.Take(ctx, back) // if that fails, its own account says more than it should
	d.Allowed, d.Granted, d.Source = true, -units, SourceFallback
	return d
}
