package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
)

// takeAcrossSlots takes from keys in several slots. It reserves all units in one round trip,
// and refunds them in a second if a key denies or fails. Where a denial is likely it peeks
// first, so that it disturbs no other call. A call that is denied after it has reserved
// something may only have met the reservation of another call that ends so too: it pauses
// and tries once more.
func (s *Store) takeAcrossSlots(d *deadline, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision) error {
	began := time.Now()
	for again := false; ; again = true {
		if again || s.peeksFirst(rs, items) {
			if decided, err := s.peekAcrossSlots(d, rs, items, ds); decided || err != nil {
				return err
			}
		}
		granted, err := s.reserveAll(d, rs, items, ds)
		if granted || err != nil || again || !pauseAfterLoss(d, time.Since(began)) {
			return err
		}
	}
}

// peeksFirst reports whether a TakeAll looks at its keys before it reserves units: because
// it has an ID, which may be recorded, because it charges a key twice, so that its own
// reservation would change the answer, or because a key denied the last one.
func (s *Store) peeksFirst(rs []penstock.Request, items []takeAllItem) bool {
	for i := range items {
		it := &items[i]
		if rs[i].ID != "" || it.totalCost != it.ask.Cost || it.ask.NeverFits(it.limit.capacity) || s.denied.has(it.key) {
			return true
		}
	}
	return false
}

// peekAcrossSlots decides what needs no reservation: a denial, the repetition of an ID, and a
// settlement.
func (s *Store) peekAcrossSlots(d *deadline, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision) (decided bool, err error) {
	if err = s.tryAcrossSlots(d, items); err != nil {
		return false, err
	}
	if items[0].settle {
		if err = settleAll(items, ds); err == nil {
			err = s.takeOneByOne(d, rs, ds, func(int) bool { return true })
		}
		return true, err
	}
	if decided, err = repeatAll(items, ds); decided {
		err = s.takeOneByOne(d, rs, ds, func(i int) bool { return items[i].permits != "" && items[i].wasGranted() }) // renews them
	}
	if decided || err != nil {
		return decided, err
	}
	denyAll(items, ds)
	return s.denied.note(items, ds), nil
}

// tryAcrossSlots tries all keys in one round trip, without taking. If Redis's clock was
// outside the windows sent, it is known then, and all are tried again.
func (s *Store) tryAcrossSlots(d *deadline, items []takeAllItem) error {
	for range maxClockAttempts {
		if err := s.tryOnce(d, items); err != nil || !s.clockMissed(items) {
			return err
		}
	}
	return fmt.Errorf("redisstore: take all: %w", errClockChanged)
}

func (s *Store) tryOnce(d *deadline, items []takeAllItem) error {
	byPlace := map[string][]int{}
	for i := range items {
		place := s.placeOf(items[i].key)
		byPlace[place] = append(byPlace[place], i)
	}
	var calls []Call
	var groups [][]int
	for _, group := range byPlace {
		calls, groups = append(calls, s.encodeTakeAll(pickToTry(items, group), false)), append(groups, group)
	}
	s.roundTrip(d, calls)
	for i, group := range groups {
		picked := pickToTry(items, group)
		if _, err := s.decodeTakeAll(d, &calls[i], picked); err != nil {
			return requestError(group[0], err)
		}
		for j, at := range group {
			it := &items[at]
			it.state, it.found, it.held = picked[j].state, picked[j].found, it.permits != "" && picked[j].found.exists()
		}
	}
	return nil
}

// pickToTry returns copies of items, to be tried. Without a common ID, items that take permits ask
// for records all the same: those tell whether their permits are held already.
func pickToTry(items []takeAllItem, index []int) []takeAllItem {
	picked, lifetime := make([]takeAllItem, len(index)), items[0].lifetime
	for i, at := range index {
		if picked[i] = items[at]; picked[i].permits != "" {
			lifetime = max(lifetime, 1)
		}
	}
	for i := range picked {
		picked[i].lifetime = lifetime
	}
	return picked
}

// takeOneByOne decides some of the requests, one after the other. If it is interrupted, it can be
// repeated.
func (s *Store) takeOneByOne(d *deadline, rs []penstock.Request, ds []penstock.Decision, some func(i int) bool) error {
	for i := range rs {
		if !some(i) {
			continue
		}
		qs, calls, err := s.sendEach(d, rs[i:i+1], 0)
		if err == nil {
			ds[i], err = s.receive(d, &qs[0], calls)
		}
		if err != nil {
			return requestError(i, err)
		}
	}
	return nil
}

// reserveAll takes from all keys at the same time, and refunds what it took if one denies or
// fails. Calls for one key are sent in their order.
func (s *Store) reserveAll(d *deadline, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision) (granted bool, err error) {
	rs, ttl := s.withIDs(rs, items)
	qs, calls, err := s.sendEach(d, rs, ttl)
	if err != nil {
		return false, err
	}
	errs := make([]error, len(rs))
	for i := range rs {
		if ds[i], errs[i] = s.receive(d, &qs[i], calls[i:i+1]); errs[i] != nil {
			ds[i] = penstock.Decision{}
		}
	}
	switch denied := s.denied.note(items, ds); {
	case slices.ContainsFunc(errs, isError):
		return false, s.rollBackFailed(d, rs, items, ds, errs)
	case denied:
		return false, s.rollBackDenied(d, rs, items, ds)
	}
	return true, nil
}

func isError(err error) bool { return err != nil }

func isDenied(d penstock.Decision) bool { return !d.Allowed }

// withIDs returns the requests with an ID on each take, by which it can be refunded,
// and how long they are remembered, in ticks.
func (s *Store) withIDs(rs []penstock.Request, items []takeAllItem) (_ []penstock.Request, ttl int64) {
	if items[0].lifetime > 0 {
		return rs, items[0].lifetime
	}
	rs = slices.Clone(rs)
	id := rand.Text()
	for i := range rs {
		if rs[i].Cost > 0 && rs[i].ID == "" {
			rs[i].ID, rs[i].KeepFree = itemID(id, i), items[i].keepFree()
		}
	}
	return rs, s.rollBackTTL().Milliseconds()
}

// keepFree returns how many units must remain after the item is taken by itself, so that
// its KeepFree remain after all items on its key.
func (it *takeAllItem) keepFree() int64 {
	if it.ask.KeepFree == 0 {
		return 0
	}
	return it.ask.KeepFree + it.totalCost - it.priorCost - it.ask.Cost
}

// rollBackTTL is how long a grant is remembered that may have to be rolled back: longer than
// the call and then the roll-back can take, but not a whole period, because every item leaves
// a record.
func (s *Store) rollBackTTL() time.Duration { return 2*maxTimeouts*s.timeout + 10*time.Second }

func itemID(id string, i int) string { return id + strconv.Itoa(i) }

// rollBackDenied refunds what was taken, even if the caller has left meanwhile, and writes a
// peek at every key. Permits that were only renewed stay.
func (s *Store) rollBackDenied(d *deadline, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision) error {
	taken, refunds := slices.Clone(ds[:len(rs)]), slices.Clone(rs)
	for i := range rs {
		if refunds[i] = refundOf(rs[i]); isDenied(taken[i]) || items[i].held {
			refunds[i].Cost = 0
		}
	}
	if err := s.refundAll(d.Context, s.startOfRefunds(d), refunds, ds); err != nil {
		return err
	}
	for i := range taken {
		if ds[i].Granted, ds[i].Delay = 0, 0; isDenied(taken[i]) {
			setDenied(&ds[i], taken[i].RetryAfter)
		}
	}
	return nil
}

// rollBackFailed refunds what was taken, and in the background what may have been: the nodes
// that have not answered would let the caller wait for as long again. It returns the first
// error of the calls.
func (s *Store) rollBackFailed(d *deadline, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision, errs []error) error {
	var taken, unknown []penstock.Request
	var grants []grantName
	for i := range rs {
		switch {
		case items[i].held: // its holder still works
		case errs[i] == nil && isDenied(ds[i]): // what its ID is granted by now is another call's
		case errs[i] == nil:
			taken = append(taken, refundOf(rs[i]))
		case !rs[i].NewID: // under an ID that had to be new, it may be another's
			unknown, grants = append(unknown, refundOf(rs[i])), append(grants, grantName{items[i].key, rs[i].ID})
		}
	}
	ctx := d.Context // the deadline may be reused
	_, end := s.rollBacks.Begin(grants)
	go func() {
		defer end()
		_ = s.refundAll(ctx, time.Now(), unknown, make([]penstock.Decision, len(unknown)))
	}()
	_ = s.refundAll(ctx, s.startOfRefunds(d), taken, make([]penstock.Decision, len(taken)))
	failed := slices.IndexFunc(errs, isError)
	return requestError(failed, errs[failed])
}

// refundOf returns the request that refunds another, which has an ID.
func refundOf(r penstock.Request) penstock.Request {
	r.MaxDelay, r.Overdraw, r.NewID, r.Cost = 0, false, false, -r.Cost
	return r
}

// startOfRefunds returns since when refunds for which the caller of d waits are counted: they end when its call
// must, but have one timeout even then.
func (s *Store) startOfRefunds(d *deadline) time.Time {
	if least := time.Now().Add(-(maxTimeouts - 1) * s.timeout); d.start.Before(least) {
		return least
	}
	return d.start
}

// refundAll makes refunds in a round trip that has its own timeout. Without any it does not wait for a place among
// the calls in flight, of which Redis may answer none.
func (s *Store) refundAll(ctx context.Context, start time.Time, refunds []penstock.Request, ds []penstock.Decision) error {
	if len(refunds) == 0 {
		return nil
	}
	d := s.deadlineAfter(context.WithoutCancel(ctx), start, s.timeout)
	defer d.stop()
	return s.takeEach(d, refunds, ds)
}

// pauseAfterLoss waits for up to twice as long as a try took, at random, because calls that
// deny each other take about as long. It reports whether there is time for another try.
func pauseAfterLoss(d *deadline, took time.Duration) bool {
	pause := mathrand.N(2*took + 1) //nolint:gosec // only jitter
	if due, _ := d.Deadline(); time.Until(due) < pause+took {
		return false
	}
	// The deadline may notice a moment later that the caller has left.
	return monotime.Sleep(d, pause) == nil && d.Err() == nil && d.callerErr() == nil
}
