package penstock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A ledger holds debts: units granted without the primary store and not yet
// charged to it.
type ledger struct {
	maxDebts int
	mu       sync.Mutex
	debts    map[debtKey]debt
	retries  []debt       // debts that were sent, and may or may not have been charged
	size     atomic.Int64 // the number of both
	chargeAt atomic.Int64 // when debts may be charged next, or charging

	// sent are the debts under an ID that were claimed and are not known to be charged.
	sent map[debtKey]sentDebts
}

// charging is the value of chargeAt while debts are being charged.
const charging = int64(math.MaxInt64)

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

// ofID returns the key of all debts under an ID.
func (k debtKey) ofID() debtKey {
	k.overdraw = false
	return k
}

// A sentDebts is how many debts of an ID were sent, and what the last of them settles it to, or
// notSettled.
type sentDebts struct {
	n      int
	amount int64
}

const notSettled = -1

// A debt is the units granted to one key.
type debt struct {
	key      string
	limit    Limit  // to charge at the primary store
	local    Limit  // used by the secondary store
	units    int64  // granted and not refunded
	id       string // to charge under; set before the first attempt
	overdraw bool   // whether to overdraw the primary store
	until    int64  // of a debt that overdraws, or is under an ID: when its last window ends, or its bucket is full

	hold      time.Duration // how long to remember the ID
	isSettled bool          // whether what was granted under the ID is settled
	amount    int64         // to settle it to
}

func (d *debt) ofID() debtKey {
	return debtKey{stateKey: stateKeyOf(Request{Key: d.key, Limit: d.limit}), id: d.id}
}

func (l *ledger) hasDebts() bool { return l.size.Load() > 0 }

func (l *ledger) updateSize() { l.size.Store(int64(len(l.debts) + len(l.retries))) }

// addDebt records the units that the secondary store granted or refunded.
func (f *Fallback) addDebt(s *fallbackShard, r *Request, local Limit, d *Decision) {
	if r.Limit.hasPermits() {
		return // permits are not used up: their next renewal takes them from the primary store
	}
	if d.Granted < 0 {
		s.ledger.refundLocal(r, local, -d.Granted)
		return
	}
	now, until := int64(0), int64(0)
	if r.Overdraw || r.ID != "" {
		now, until = f.clock.Now(), f.debtUntil(r, d)
	}
	s.ledger.add(r, local, d.Granted, now, until)
}

// debtUntil returns when the window ends that a decision was charged to, or when its bucket is full.
func (f *Fallback) debtUntil(r *Request, d *Decision) int64 {
	until := f.clock.Now() + int64(d.ResetAfter)
	if r.Limit.slides() {
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
	case r.Overdraw && !r.Limit.isBucket() && now >= d.until:
		d.units = 0 // that window has ended, and its debt with it
	}
	if until > 0 {
		until = max(until, d.until) // concurrent charges may be recorded in another order than they were decided in
	}
	d.limit, d.local, d.overdraw, d.until, d.hold = r.Limit, local, r.Overdraw, until, max(d.hold, r.Hold)
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

// isPending reports whether the primary store is to be told something about the ID of a
// request, or is being told. Only while debts are being charged, some are in neither list.
func (l *ledger) isPending(r *Request) bool {
	if !l.hasDebts() && l.chargeAt.Load() != charging {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := debtKeyOf(r)
	for _, k.overdraw = range []bool{false, true} {
		if _, known := l.debts[k]; known {
			return true
		}
	}
	return l.sent[k.ofID()].n > 0
}

// addSent records which debts under an ID are sent to the primary store.
func (l *ledger) addSent(ds []debt) {
	for i := range ds {
		if ds[i].id == "" {
			continue
		}
		if l.sent == nil {
			l.sent = map[debtKey]sentDebts{}
		}
		k, amount := ds[i].ofID(), int64(notSettled)
		if ds[i].isSettled {
			amount = ds[i].amount
		}
		l.sent[k] = sentDebts{l.sent[k].n + 1, amount}
	}
}

// removeSent removes debts that were charged, or are not sent any more.
func (l *ledger) removeSent(ds []debt) {
	for i := range ds {
		k := ds[i].ofID()
		if sent, known := l.sent[k]; known && sent.n > 1 {
			l.sent[k] = sentDebts{sent.n - 1, sent.amount}
		} else {
			delete(l.sent, k)
		}
	}
}

// finish ends the charging of claimed debts. Those that may not have been charged are put
// back. They keep their IDs, so they are charged only once.
func (l *ledger) finish(claimed, retries []debt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	later := l.laterSettlements(retries)
	l.removeSent(later)
	retries = append(slices.Clip(retries), later...)
	l.retries = append(l.retries, retries...)
	l.addSent(retries)
	l.removeSent(claimed)
	l.updateSize()
}

// laterSettlements removes from the retries the settlements of IDs that some debts settle too.
// They were made later, and must not overtake those when they are put back.
func (l *ledger) laterSettlements(of []debt) (later []debt) {
	earlier := map[debtKey]bool{}
	for i := range of {
		if of[i].isSettled {
			earlier[of[i].ofID()] = true
		}
	}
	if len(earlier) == 0 {
		return nil
	}
	l.retries = slices.DeleteFunc(l.retries, func(d debt) bool {
		isLater := d.isSettled && earlier[d.ofID()]
		if isLater {
			later = append(later, d)
		}
		return isLater
	})
	return later
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
	l.addSent(ds[n:])
	l.updateSize()
	return ds
}

// hasRoom reports whether the ledger has room for a settlement, the nth of a call.
func (l *ledger) hasRoom(r *Request, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.debts[debtKeyOf(r)]
	return known || len(l.debts)+len(l.retries)+n <= l.maxDebts
}

// settle records that what was granted under an ID is settled. The units are those that
// the secondary store has charged, in a window that ends at until.
func (l *ledger) settle(r *Request, local Limit, units, until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := debtKeyOf(r)
	d, known := l.debts[k]
	if sent := l.sent[k.ofID()]; !known && sent.n > 0 && sent.amount == r.Cost {
		return // it is on its way; a caller that repeats it must not keep the ledger busy
	}
	if !known {
		d.key, d.id = strings.Clone(r.Key), strings.Clone(r.ID)
		k.key, k.id = d.key, d.id
	}
	if d.until == 0 || units > d.units { // otherwise time pays them back when it would have
		d.until = until
	}
	d.limit, d.local, d.units, d.overdraw = r.Limit, local, units, r.Limit.canOwe()
	d.isSettled, d.amount = true, r.Cost
	l.put(k, d)
}

// What follows charges debts to the primary store when it is up again. A debt is what the
// secondary granted meanwhile; see ledger.

// chargeAsync charges all debts to the primary store in a goroutine, unless one
// charges them already or has just failed.
func (f *Fallback) chargeAsync(s *fallbackShard) {
	at := s.ledger.chargeAt.Load()
	if f.clock.Now() < at || !s.ledger.chargeAt.CompareAndSwap(at, charging) {
		return
	}
	go func() {
		var err error
		for err == nil && s.ledger.hasDebts() {
			err = f.chargeBatch(s, maxChargeBatch, false)
		}
		next := int64(0)
		if err != nil {
			next = f.clock.Now() + int64(f.rules.Wait)
		}
		s.ledger.chargeAt.Store(next)
	}()
}

// chargeOne charges one debt, for a probe, unless others are being charged: two settlements of
// one ID could arrive in another order than they were made in.
func (f *Fallback) chargeOne(s *fallbackShard) error {
	at := s.ledger.chargeAt.Load()
	if at == charging || !s.ledger.chargeAt.CompareAndSwap(at, charging) {
		return nil
	}
	defer s.ledger.chargeAt.Store(at)
	return f.chargeBatch(s, 1, true)
}

// maxChargeBatch is how many debts one call charges.
const maxChargeBatch = 128

// chargeBatch charges up to maxDebts debts. While the breaker is open, only a
// probe may do so.
func (f *Fallback) chargeBatch(s *fallbackShard, maxDebts int, isProbe bool) error {
	t, ok := s.breaker.Admit(f.clock.Now())
	if !ok && !isProbe {
		return ErrUnavailable
	}
	claimed := s.ledger.claim(maxDebts)
	retries, err := f.chargeDebts(claimed)
	s.ledger.finish(claimed, retries)
	if err != nil {
		f.failed(s, t, err)
	}
	return err
}

// chargeDebts charges debts, and returns those that it could not charge, with the error.
func (f *Fallback) chargeDebts(debts []debt) (retries []debt, err error) {
	rs := make([]Request, 0, len(debts))
	kept := make([]debt, 0, len(debts))
	var settled []debt
	for _, d := range debts {
		if d.isSettled {
			settled = append(settled, d)
		} else if r, ok := f.chargeOf(&d); ok {
			rs, kept = append(rs, r), append(kept, d)
		}
	}
	retries, err = f.chargeAllSettled(settled)
	if err == nil && len(rs) > 0 {
		err = f.tellPrimary(rs...)
	}
	switch {
	case isMalformed(err) || isKeyError(err):
		return append(retries, without(kept, err)...), nil
	case err != nil:
		return append(retries, kept...), err
	}
	return nil, nil
}

// without removes the debt named by the error, because the primary store will
// never accept it. If the error names none, it removes all.
func without(ds []debt, err error) []debt {
	at, _ := indexOf(err)
	if uint(at) >= uint(len(ds)) {
		return nil
	}
	return slices.Delete(ds, at, at+1)
}

// chargeOf returns the request that charges a debt. It excludes units that,
// according to the secondary store, have come back by time.
func (f *Fallback) chargeOf(d *debt) (r Request, ok bool) {
	peek, err := f.secondary.Take(context.Background(), Request{Key: d.key, Limit: d.local})
	if err != nil {
		return r, false
	}
	due := min(d.units, peek.Limit-peek.Remaining)
	if d.overdraw {
		due = min(d.units, f.owed(d, &peek))
	}
	due = min(due, f.unpaid(d))
	if d.id == "" {
		d.id = f.ids.next()
	}
	return Request{Key: d.key, Limit: d.limit, Cost: due, AtMost: !d.overdraw, Overdraw: d.overdraw, ID: d.id, Hold: d.hold}, due > 0
}

// chargeIDs makes the IDs under which debts without one are charged, so that a repeated charge
// counts once. They are unique among all processes.
type chargeIDs struct {
	once    sync.Once
	process string
	n       atomic.Int64
}

func (c *chargeIDs) next() string {
	c.once.Do(func() { c.process = rand.Text() })
	return "penstock settles " + c.process + " " + strconv.FormatInt(c.n.Add(1), 36)
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

// unpaid returns how many units time has not paid back, as far as it is known when they were
// granted. By what the key owes alone, each of its debts under IDs would be charged for all.
func (f *Fallback) unpaid(d *debt) int64 {
	cl, err := f.limits.get(d.local, 1, nil)
	if d.until == 0 || err != nil {
		return d.units
	}
	grant := algorithm.Grant{Owed: d.units, Due: d.until}
	if d.limit.slides() {
		grant.Due += int64(d.limit.Period) // the next window counts them too
	}
	return grant.Unpaid(f.clock.Now(), cl.interval())
}

// chargeSettled charges a settled debt. If the primary store has granted the ID, it is
// settled there. Otherwise what the secondary has granted is charged, under the same ID.
func (f *Fallback) chargeSettled(d *debt) error {
	err := f.tellPrimary(Request{Key: d.key, Limit: d.limit, Cost: d.amount, ID: d.id, Settle: true})
	if !errors.Is(err, ErrUnknownID) {
		return err
	}
	if r, ok := f.chargeOf(d); ok {
		return f.tellPrimary(r)
	}
	return nil
}

// chargeAllSettled charges settled debts one by one, and returns those that it could not
// charge, with the error.
func (f *Fallback) chargeAllSettled(ds []debt) (rest []debt, err error) {
	for i := range ds {
		err = f.chargeSettled(&ds[i])
		if err != nil && !isMalformed(err) && !isKeyError(err) {
			return ds[i:], err
		}
	}
	return nil, nil
}

// What follows settles what was taken under an ID.

// settle decides settlements as one. The store that granted the ID knows it: the primary, or the
// secondary while the primary was down. A settlement that the primary does not get is kept in the
// ledger.
func (f *Fallback) settle(ctx context.Context, rs []Request, ds []Decision) error {
	if f.anyPending(rs) {
		return f.settleWithoutPrimary(ctx, rs, ds)
	}
	var buffer [batchBuffer]shardCall
	c := f.admit(buffer[:0], rs)
	if !c.allAdmitted {
		return f.settleWithoutPrimary(ctx, rs, ds)
	}
	answered, err := f.callPrimary(ctx, &c, rs, ds, len(rs) > 1)
	switch {
	case errors.Is(err, ErrUnknownID):
		if local := f.settleLocal(ctx, rs, ds); !errors.Is(local, ErrUnknownID) {
			return local
		}
		return err
	case errors.Is(err, ErrBusy) && ctx.Err() == nil: // it grants nothing, and the primary gets it later
	case answered || err != nil:
		return err
	}
	return f.settleWithoutPrimary(ctx, rs, ds)
}

// settleWithoutPrimary settles without the primary store, as one. What the secondary store has
// granted is settled there. The rest the primary may have granted: the ledger settles it
// when that is up again. While the ledger has an earlier settlement of an ID, a later one must
// not overtake it, so it goes the same way.
func (f *Fallback) settleWithoutPrimary(ctx context.Context, rs []Request, ds []Decision) error {
	for i := range rs {
		f.probeWith(f.shardFor(rs[i].Key), &rs[i])
		defer f.chargeAsync(f.shardFor(rs[i].Key))
	}
	err := f.settleLocal(ctx, rs, ds)
	if !errors.Is(err, ErrUnknownID) {
		return err
	}
	known := make([]bool, len(rs))
	locals := f.localSettlements(rs)
	for i := range locals {
		if ds[i], known[i], err = f.settleIfKnown(ctx, locals[i]); err != nil {
			return requestError(i, err)
		}
	}
	for i := range rs {
		f.deferSettlement(&rs[i], locals[i].Limit, &ds[i], known[i])
	}
	return nil
}

// settleLocal settles what the secondary store granted, as one. The ledger charges it to
// the primary.
func (f *Fallback) settleLocal(ctx context.Context, rs []Request, ds []Decision) error {
	if !f.hasRoom(rs) {
		return errLedgerFull
	}
	locals := f.localSettlements(rs)
	if err := TakeAll(ctx, f.secondary, locals, ds); err != nil {
		return err
	}
	for i := range rs {
		f.deferSettlement(&rs[i], locals[i].Limit, &ds[i], true)
	}
	return nil
}

// anyPending reports whether the ledgers have something to tell about an ID of the requests.
func (f *Fallback) anyPending(rs []Request) bool {
	return slices.ContainsFunc(rs, func(r Request) bool { return f.shardFor(r.Key).ledger.isPending(&r) })
}

// errLedgerFull is returned if the ledger has no room for a settlement, which would be lost.
var errLedgerFull = fmt.Errorf("penstock: fallback: settle: %w: too many settlements wait for the primary store", ErrUnavailable)

// hasRoom reports whether the ledgers have room for all settlements.
func (f *Fallback) hasRoom(rs []Request) bool {
	for i := range rs {
		if !f.shardFor(rs[i].Key).ledger.hasRoom(&rs[i], i+1) {
			return false
		}
	}
	return true
}

// localSettlements returns the settlements under the limits of the secondary store.
func (f *Fallback) localSettlements(rs []Request) []Request {
	locals := slices.Clone(rs)
	for i := range locals {
		_, locals[i].Limit = f.modeFor(rs[i].Limit)
	}
	return locals
}

// settleIfKnown settles what the secondary store granted, or peeks if it knows nothing.
func (f *Fallback) settleIfKnown(ctx context.Context, local Request) (d Decision, known bool, err error) {
	d, err = f.secondary.Take(ctx, local)
	if !errors.Is(err, ErrUnknownID) {
		return d, true, err
	}
	d, err = f.secondary.Take(ctx, Request{Key: local.Key, Limit: local.Limit})
	return d, false, err
}

// deferSettlement records a settlement for the primary store, by the decision of the
// secondary: its settlement or, if it does not know the ID, a peek.
func (f *Fallback) deferSettlement(r *Request, local Limit, d *Decision, known bool) {
	units, until := int64(0), int64(0)
	if known {
		units, until = d.Granted, f.debtUntil(r, d)
	} else {
		d.settled(r.Cost)
	}
	d.Source = SourceFallback
	f.shardFor(r.Key).ledger.settle(r, local, units, until)
}
