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
	"time"
)

// A ledger holds debts: units granted without the primary store and not yet
// charged to it.
type ledger struct {
	maxDebts int
	mu       sync.Mutex
	debts    map[debtKey]debt
	retries  []debt       // debts that were sent, and may or may not have been charged
	size     atomic.Int64 // the number of both
	settleAt atomic.Int64 // when to settle next, or settling
}

// settling is the value of settleAt while a settlement is in flight.
const settling = int64(math.MaxInt64)

// A debtKey identifies a debt. Each grant under an ID is a separate debt. It is
// charged under the same ID, so nothing is charged if the primary store had
// granted it too and the response was lost.
//
// Charges that may overdraw the key are a separate debt, because the primary store
// may be overdrawn by them, and not by takes.
type debtKey struct {
	stateKey
	id       string
	overdraw bool
}

func debtKeyOf(r *Request) debtKey { return debtKey{stateKeyOf(*r), r.ID, r.Overdraw} }

// A debt is the units granted to one key.
type debt struct {
	key      string
	limit    Limit  // to charge at the primary store
	local    Limit  // used by the secondary store
	units    int64  // granted and not refunded
	id       string // to charge under; set before the first attempt
	overdraw bool   // whether to overdraw the primary store
	until    int64  // of a debt that overdraws: when its last window ends

	hold      time.Duration // how long to remember the ID
	isSettled bool          // whether what was granted under the ID is settled
	amount    int64         // to settle it to
}

func (l *ledger) hasDebts() bool { return l.size.Load() > 0 }

func (l *ledger) updateSize() { l.size.Store(int64(len(l.debts) + len(l.retries))) }

// addDebt records the units that the secondary store granted or refunded.
func (f *Fallback) addDebt(s *fallbackShard, r *Request, local Limit, d *Decision) {
	if r.Limit.Algorithm == Concurrent {
		return // permits are not used up: their next renewal takes them from the primary store
	}
	if d.Granted < 0 {
		s.ledger.refundLocal(r, local, -d.Granted)
		return
	}
	now, until := int64(0), int64(0)
	if r.Overdraw {
		now, until = f.clock.Now(), f.debtUntil(r, d)
	}
	s.ledger.add(r, local, d.Granted, now, until)
}

// debtUntil returns when the window ends that a decision was charged to.
func (f *Fallback) debtUntil(r *Request, d *Decision) int64 {
	until := f.clock.Now() + int64(d.ResetAfter)
	if r.Limit.Algorithm == SlidingWindow {
		until -= int64(r.Limit.Period) // the debt ends one window before the key is idle
	}
	return until
}

// refundLocal subtracts units that the secondary store refunded, from charges that
// may have overdrawn the key first.
func (l *ledger) refundLocal(r *Request, local Limit, units int64) {
	charged := *r
	charged.Overdraw = true
	l.add(r, local, l.subtract(&charged, units)-units, 0, 0)
}

// add records units that were granted under a local limit, or refunded if
// negative. Units that may have overdrawn a window are those of the window at now,
// which ends at until.
func (l *ledger) add(r *Request, local Limit, units, now, until int64) {
	if units == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := debtKeyOf(r)
	d, known := l.debts[k]
	switch {
	case !known && (units < 0 || len(l.debts)+len(l.retries) >= l.maxDebts):
		return
	case !known:
		d.key, d.id = strings.Clone(r.Key), strings.Clone(r.ID) // they may be parts of large strings
		k.key, k.id = d.key, d.id
	case r.ID != "" && units > 0:
		d.units = 0 // a retry gets the same grant again
	case r.Overdraw && !r.Limit.Algorithm.isBucket() && now >= d.until:
		d.units = 0 // that window has ended, and its debt with it
	}
	d.limit, d.local, d.overdraw, d.until, d.hold = r.Limit, local, r.Overdraw, until, r.Hold
	d.units = max(d.units+units, 0)
	l.put(k, d)
}

// put writes a debt, or removes it if it has no units and is not settled.
func (l *ledger) put(k debtKey, d debt) {
	if l.debts == nil {
		l.debts = map[debtKey]debt{}
	}
	l.debts[k] = d
	if d.units == 0 && !d.isSettled {
		delete(l.debts, k)
	}
	l.updateSize()
}

// refund subtracts a refund from a debt, and returns how many units it
// subtracted.
func (l *ledger) refund(r *Request) (units int64) {
	most := int64(math.MaxInt64)
	if r.Cost != Reset {
		most = -r.Cost
	}
	charged := *r
	charged.Overdraw = true
	units = l.subtract(&charged, most)
	return units + l.subtract(r, most-units)
}

// subtract subtracts at most so many units from a debt, and returns how many.
func (l *ledger) subtract(r *Request, most int64) (units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := debtKeyOf(r)
	d, known := l.debts[k]
	if !known {
		return 0
	}
	units = min(d.units, most)
	d.units -= units
	l.put(k, d)
	return units
}

// claim removes up to maxDebts debts from the ledger, retries first.
func (l *ledger) claim(maxDebts int) (ds []debt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(maxDebts, len(l.retries))
	ds = append(ds, l.retries[:n]...)
	l.retries = l.retries[n:]
	for k, d := range maps.All(l.debts) {
		if len(ds) == maxDebts {
			break
		}
		ds = append(ds, d)
		delete(l.debts, k)
	}
	l.updateSize()
	return ds
}

// retry puts back debts that may or may not have been charged. They keep their
// IDs, so they are charged only once.
func (l *ledger) retry(ds []debt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retries = append(l.retries, ds...)
	l.updateSize()
}

// settlementIDs makes request IDs that are unique among all processes.
type settlementIDs struct {
	once    sync.Once
	process string
	n       atomic.Int64
}

func (s *settlementIDs) next() string {
	s.once.Do(func() { s.process = rand.Text() })
	return "penstock settles " + s.process + " " + strconv.FormatInt(s.n.Add(1), 36)
}

// settleAsync charges all debts to the primary store in a goroutine, unless a
// settlement is in flight or has just failed.
func (f *Fallback) settleAsync(s *fallbackShard) {
	at := s.ledger.settleAt.Load()
	if f.clock.Now() < at || !s.ledger.settleAt.CompareAndSwap(at, settling) {
		return
	}
	go func() {
		var err error
		for err == nil && s.ledger.hasDebts() {
			err = f.settleBatch(s, maxSettleBatch, false)
		}
		next := int64(0)
		if err != nil {
			next = f.clock.Now() + int64(f.rules.Wait)
		}
		s.ledger.settleAt.Store(next)
	}()
}

// maxSettleBatch is how many debts one call charges.
const maxSettleBatch = 128

// settleBatch charges up to maxDebts debts. While the breaker is open, only a
// probe may do so.
func (f *Fallback) settleBatch(s *fallbackShard, maxDebts int, isProbe bool) error {
	t, ok := s.breaker.Admit(f.clock.Now())
	if !ok && !isProbe {
		return ErrUnavailable
	}
	debts := s.ledger.claim(maxDebts)
	rs := make([]Request, 0, len(debts))
	kept := debts[:0]
	var settled []debt
	for _, d := range debts {
		if d.isSettled {
			settled = append(settled, d)
		} else if r, ok := f.settlement(&d); ok {
			rs, kept = append(rs, r), append(kept, d)
		}
	}
	settled, err := f.chargeAllSettled(settled)
	s.ledger.retry(settled)
	if err == nil && len(rs) > 0 {
		err = f.charge(rs)
	}
	switch {
	case isMalformed(err) || isKeyError(err):
		s.ledger.retry(without(kept, err))
		return nil
	case err != nil:
		s.ledger.retry(kept)
		f.failed(s, t, err)
	}
	return err
}

// without removes the debt named by the error, because the primary store will
// never accept it. If the error names none, it removes all.
func without(ds []debt, err error) []debt {
	var about *RequestError
	if !errors.As(err, &about) || uint(about.Index) >= uint(len(ds)) {
		return nil
	}
	at := about.Index
	return slices.Delete(ds, at, at+1)
}

// charge sends settlements to the primary store.
func (f *Fallback) charge(rs []Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	return TakeEach(ctx, f.primary, rs, make([]Decision, len(rs)))
}

// settlement returns the request that charges a debt. It excludes units that,
// according to the secondary store, have come back by time.
func (f *Fallback) settlement(d *debt) (r Request, ok bool) {
	peek, err := f.secondary.Take(context.Background(), Request{Key: d.key, Limit: d.local})
	if err != nil {
		return r, false
	}
	due := min(d.units, peek.Limit-peek.Remaining)
	if d.overdraw {
		due = min(d.units, f.owed(d, &peek))
	}
	if d.id == "" {
		d.id = f.ids.next()
	}
	return Request{Key: d.key, Limit: d.limit, Cost: due, AtMost: !d.overdraw, Overdraw: d.overdraw, ID: d.id, Hold: d.hold}, due > 0
}

// owed returns how many units have not come back, according to a peek at the
// secondary store, of a key that may be overdrawn. Remaining is 0 however much it
// owes: a bucket's ResetAfter says how much, and the window of the last charge holds
// all that was charged in it.
func (f *Fallback) owed(d *debt, peek *Decision) int64 {
	cl, err := f.limits.get(d.local, 1, nil)
	switch {
	case err != nil || peek.ResetAfter == 0:
		return 0
	case cl.rate() != nil:
		return int64((peek.ResetAfter-1)/time.Duration(cl.rate().Interval)) + 1
	case peek.Remaining == 0 && f.clock.Now() < d.until:
		return d.units
	}
	return peek.Limit - peek.Remaining
}

// refundsDebt reports whether one of the requests is a refund to a shard with
// debts.
func (f *Fallback) refundsDebt(rs []Request) bool {
	for i := range rs {
		if rs[i].Cost < 0 && !rs[i].leased && f.shardFor(rs[i].Key).ledger.hasDebts() {
			return true
		}
	}
	return false
}

// refundDebt refunds units that the secondary store granted and that are not yet
// charged to the primary, and subtracts them from the request. The rest is for
// the primary. It returns the secondary's decision, or the zero Decision if there
// was nothing to refund.
func (f *Fallback) refundDebt(ctx context.Context, s *fallbackShard, r *Request) (d Decision) {
	if r.ID != "" || r.leased {
		return d
	}
	units := s.ledger.refund(r)
	if units == 0 && r.Cost != Reset {
		return d
	}
	local := Request{Key: r.Key, Limit: r.Limit, Cost: -units}
	_, local.Limit = f.modeFor(r.Limit)
	if r.Cost == Reset {
		local.Cost = Reset // this also cancels the debts under IDs
	} else {
		r.Cost += units
	}
	d, _ = f.secondary.Take(ctx, local) // on an error the secondary counts too much
	d.Allowed, d.Granted, d.Source = true, -units, SourceFallback
	return d
}
