package penstock

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// This file charges debts to the primary store when it is up again. A debt is what the
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
		err = f.sendCharges(rs)
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
	var about *RequestError
	if !errors.As(err, &about) || uint(about.Index) >= uint(len(ds)) {
		return nil
	}
	at := about.Index
	return slices.Delete(ds, at, at+1)
}

// sendCharges sends the requests that charge debts to the primary store.
func (f *Fallback) sendCharges(rs []Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	return TakeEach(ctx, f.primary, rs, make([]Decision, len(rs)))
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
	if d.limit.Algorithm == SlidingWindow {
		grant.Due += int64(d.limit.Period) // the next window counts them too
	}
	return grant.Unpaid(f.clock.Now(), cl.interval())
}

// chargeSettled charges a settled debt. If the primary store has granted the ID, it is
// settled there. Otherwise what the secondary has granted is charged, under the same ID.
func (f *Fallback) chargeSettled(d *debt) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	_, err := f.primary.Take(ctx, Request{Key: d.key, Limit: d.limit, Cost: d.amount, ID: d.id, Settle: true})
	if !errors.Is(err, ErrUnknownID) {
		return err
	}
	r, ok := f.chargeOf(d)
	if !ok {
		return nil
	}
	_, err = f.primary.Take(ctx, r)
	return err
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
