package penstock

import (
	"maps"
	"math"
	"slices"
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
	chargeAt atomic.Int64 // when debts may be charged next, or charging

	// sent are the debts under an ID that were claimed and are not known to be charged.
	sent map[idKey]sentDebts
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

// An idKey identifies all debts under an ID.
type idKey struct {
	stateKey
	id string
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

func (d *debt) idKey() idKey { return idKey{stateKeyOf(Request{Key: d.key, Limit: d.limit}), d.id} }

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
	case r.Overdraw && !r.Limit.isBucket() && now >= d.until:
		d.units = 0 // that window has ended, and its debt with it
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
	return l.sent[idKey{k.stateKey, k.id}].n > 0
}

// track adds to how many debts of an ID are claimed and not known to be charged.
func (l *ledger) track(ds []debt, n int) {
	for i := range ds {
		if ds[i].id == "" {
			continue
		}
		if l.sent == nil {
			l.sent = map[idKey]sentDebts{}
		}
		k := ds[i].idKey()
		sent := l.sent[k]
		if n > 0 {
			sent.amount = notSettled
		}
		if n > 0 && ds[i].isSettled {
			sent.amount = ds[i].amount
		}
		sent.n += n
		if l.sent[k] = sent; sent.n == 0 {
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
	l.track(later, -1)
	retries = append(slices.Clip(retries), later...)
	l.retries = append(l.retries, retries...)
	l.track(retries, 1)
	l.track(claimed, -1)
	l.updateSize()
}

// laterSettlements removes from the retries the settlements of IDs that some debts settle too.
// They were made later, and must not overtake those when they are put back.
func (l *ledger) laterSettlements(of []debt) (later []debt) {
	earlier := map[idKey]bool{}
	for i := range of {
		if of[i].isSettled {
			earlier[of[i].idKey()] = true
		}
	}
	if len(earlier) == 0 {
		return nil
	}
	l.retries = slices.DeleteFunc(l.retries, func(d debt) bool {
		isLater := d.isSettled && earlier[d.idKey()]
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
	l.track(ds[n:], 1)
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
	if sent := l.sent[idKey{k.stateKey, k.id}]; !known && sent.n > 0 && sent.amount == r.Cost {
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
