package simulation

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

// These oracles know which units were charged under which ID and when, and nothing of how a
// store remembers that. They share no code with it. Other tests show that Redis decides as
// memory does.

// A chargedLot is so many units, charged at one instant. Those of an ID that can no longer be
// refunded have none.
type chargedLot struct {
	id    string
	at    int64
	units int64
}

// A windowBook is all that was charged to a key of a window.
type windowBook struct {
	limit penstock.Limit
	lots  []chargedLot
	start int64 // of the windows that begin with the first unit
	ids   map[string]*bookedID
}

// A bookedID is what is charged under an ID.
type bookedID struct {
	units    int64
	refunded bool  // which is possible once
	until    int64 // when those that were charged last count no more
	apart    bool  // whether others were charged in a group before those, and counted then
}

// group numbers the parts of time that a window counts as one: its windows, its buckets, or
// instants.
func (b *windowBook) group(at int64) int64 {
	period := int64(b.limit.Period)
	switch b.limit.Algorithm {
	case penstock.FixedWindow, penstock.SlidingWindow:
		return (at - b.start) / period
	case penstock.RollingWindow:
		buckets := int64(b.limit.Buckets)
		return at / ((period + buckets - 1) / buckets)
	}
	return at
}

// until returns when units count no more that are charged now.
func (b *windowBook) until(now int64) int64 {
	period := int64(b.limit.Period)
	switch b.limit.Algorithm {
	case penstock.FixedWindow:
		return b.start + (b.group(now)+1)*period
	case penstock.SlidingWindow:
		return b.start + (b.group(now)+2)*period
	case penstock.RollingWindow:
		buckets := int64(b.limit.Buckets)
		return (b.group(now) + buckets + 1) * ((period + buckets - 1) / buckets)
	}
	return now + period
}

// in returns the units of a group.
func (b *windowBook) in(group int64) (units int64) {
	for _, l := range b.lots {
		if b.group(l.at) == group {
			units += l.units
		}
	}
	return units
}

// used returns how many units count at an instant.
func (b *windowBook) used(now int64) (units int64) {
	period := int64(b.limit.Period)
	switch b.limit.Algorithm {
	case penstock.FixedWindow:
		return b.in(b.group(now))
	case penstock.SlidingWindow:
		rest := period - (now-b.start)%period
		return b.in(b.group(now)) + (b.in(b.group(now)-1)*rest+period-1)/period
	}
	for _, l := range b.lots {
		if b.counts(l.at, now) {
			units += l.units
		}
	}
	return units
}

// counts reports whether units of a rolling window or a log count at an instant.
func (b *windowBook) counts(at, now int64) bool {
	if b.limit.Algorithm == penstock.RollingWindow {
		return b.group(now)-b.group(at) <= int64(b.limit.Buckets)
	}
	return now-at < int64(b.limit.Period)
}

// charge charges units. Those that the ID was charged in another group stay where they are.
func (b *windowBook) charge(now int64, id string, units int64) {
	if units == 0 {
		return
	}
	if b.used(now) == 0 {
		b.lots, b.start = nil, now
	}
	if booked := b.ids[id]; booked != nil {
		elsewhere := booked.until != b.until(now) && b.ofID(id) > 0
		booked.apart = (booked.apart || elsewhere) && now < booked.until
		booked.until = b.until(now)
	}
	for i := range b.lots {
		if l := &b.lots[i]; id != "" && l.id == id && b.group(l.at) != b.group(now) {
			l.id = ""
		}
	}
	b.lots = append(b.lots, chargedLot{id, now, units})
}

// refund removes units of an ID that still count.
func (b *windowBook) refund(now int64, id string, units int64) {
	for i := range b.lots {
		l := &b.lots[i]
		if l.id != id || !b.stillCounts(l.at, now) {
			continue
		}
		back := min(units, l.units)
		l.units, units = l.units-back, units-back
	}
}

// stuck returns how many units of an ID no refund finds, because they were charged in earlier groups.
func (b *windowBook) stuck(now int64, id string) int64 {
	booked := b.ids[id]
	if !booked.apart || now >= booked.until {
		return 0
	}
	return booked.units - b.ofID(id)
}

// ofID returns the units of an ID in the group where it was charged last.
func (b *windowBook) ofID(id string) (units int64) {
	for _, l := range b.lots {
		if l.id == id {
			units += l.units
		}
	}
	return units
}

func (b *windowBook) stillCounts(at, now int64) bool {
	switch b.limit.Algorithm {
	case penstock.FixedWindow:
		return b.group(at) == b.group(now)
	case penstock.SlidingWindow:
		return b.group(now)-b.group(at) <= 1
	}
	return b.counts(at, now)
}

// room returns how many more units can be charged, as a debt where the limit can owe.
func (b *windowBook) room(now int64) int64 {
	return max(b.limit.Count+b.limit.MaxDebt()-b.used(now), 0)
}

// decide returns what a request is granted, and whether its ID is known.
func (b *windowBook) decide(now int64, r penstock.Request) (granted int64, known bool) {
	booked, known := b.ids[r.ID]
	switch {
	case r.Settle && !known, r.Cost < 0 && (!known || booked.refunded):
		return 0, known
	case r.Settle && r.Cost > booked.units:
		more := min(r.Cost-booked.units, b.room(now))
		b.charge(now, r.ID, more)
		booked.units += more
		return booked.units, true
	case r.Settle:
		amount := max(r.Cost, b.stuck(now, r.ID))
		b.refund(now, r.ID, booked.units-amount)
		booked.units = amount
		return booked.units, true
	case r.Cost < 0:
		return b.reverse(now, r, booked), true
	case known:
		return booked.units, true
	case r.Cost > b.limit.Count-b.used(now):
		return 0, false
	}
	b.charge(now, r.ID, r.Cost)
	if r.ID != "" {
		b.ids[r.ID] = &bookedID{units: r.Cost, until: b.until(now)}
	}
	return r.Cost, true
}

// reverse refunds what was taken under an ID. Granted is what came back to the key.
func (b *windowBook) reverse(now int64, r penstock.Request, booked *bookedID) int64 {
	before := b.total()
	units := min(-r.Cost, booked.units-b.stuck(now, r.ID))
	b.refund(now, r.ID, units)
	booked.units, booked.refunded = booked.units-units, true
	if booked.units == 0 {
		delete(b.ids, r.ID)
	}
	return b.total() - before
}

func (b *windowBook) total() (units int64) {
	for _, l := range b.lots {
		units += l.units
	}
	return units
}

// anySettleRequest draws a take, a take under an ID, a settlement or a refund.
func anySettleRequest(t *rapid.T, limit penstock.Limit, ids []string) penstock.Request {
	r := penstock.Request{Key: "key", Limit: limit, Hold: 24 * time.Hour, ID: rapid.SampledFrom(ids).Draw(t, "id")}
	r.Cost = rapid.Int64Range(0, 2*limit.Count+5).Draw(t, "cost")
	switch rapid.IntRange(0, 6).Draw(t, "verb") {
	case 0, 1, 2:
		r.Settle = true
	case 3:
		r.Cost = -max(r.Cost, 1)
	case 4:
		r.ID, r.Hold = "", 0
		r.Cost = min(r.Cost, 3)
	default:
		r.Cost = min(max(r.Cost, 1), limit.Count)
	}
	return r
}

// Whatever the order of takes, repeats, settlements and refunds under some IDs, and however
// much time passes, what a window charges under each ID and to the key is what the oracle
// counts unit by unit.
func TestWindowSettlementsMatchOracle(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"10/1m fixed-window", "10/1m fixed-window debt=3", "10/1m sliding-window debt=0", "10/1m rolling-window buckets=6", "10/1m sliding-log",
	} {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { windowSettlementsMatchOracle(t, limit) })
		})
	}
}

func windowSettlementsMatchOracle(t *rapid.T, limit penstock.Limit) {
	clock := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return clock }})
	book := &windowBook{limit: limit, ids: map[string]*bookedID{}}
	for range 30 {
		clock = clock.Add(time.Duration(rapid.SampledFrom([]int64{0, 0, 1, 7, 20, 61}).Draw(t, "seconds")) * time.Second)
		r := anySettleRequest(t, limit, []string{"a", "b", "c"})
		want, known := book.decide(clock.UnixNano(), r)
		d, err := store.Take(t.Context(), r)
		if unknown := errors.Is(err, penstock.ErrUnknownID); err != nil && !unknown || unknown != (r.Settle && !known) || d.Granted != want {
			t.Fatalf("at %v %+v:\ngot %v, %v\nwant %d granted", clock, r, d, err, want)
		}
		peek, err := store.Take(t.Context(), penstock.Request{Key: "key", Limit: limit})
		if left := max(limit.Count-book.used(clock.UnixNano()), 0); err != nil || peek.Remaining != left {
			t.Fatalf("after %+v at %v: got %v, %v, want %d left", r, clock, peek, err, left)
		}
	}
}

// A bucketBook is all that was charged to a bucket. Its lots are in the order of time.
type bucketBook struct {
	interval int64
	lots     []chargedLot
}

// backlog returns how long a bucket needs at an instant to pay what the lots charge: one
// interval for each unit, from the instant at which it was charged.
func (b *bucketBook) backlog(now int64) int64 {
	left, at := int64(0), int64(0)
	for _, l := range b.lots {
		left = max(left-(l.at-at), 0) + l.units*b.interval
		at = l.at
	}
	return max(left-(now-at), 0)
}

// without returns the book as if so many of the last units of an ID had never been charged.
func (b *bucketBook) without(id string, units int64) *bucketBook {
	less := &bucketBook{b.interval, slices.Clone(b.lots)}
	for i := len(less.lots) - 1; i >= 0; i-- {
		if l := &less.lots[i]; l.id == id {
			back := min(units, l.units)
			l.units, units = l.units-back, units-back
		}
	}
	return less
}

// A bucket is charged under an ID what was settled, as far as its debt allows, and after a
// settlement it is never emptier than before, and never fuller than if only that had been
// taken in the first place: what time has paid back is not refunded. If no time has passed,
// it is exactly as full.
func TestBucketSettlementsMatchOracle(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10/1m", "10/1m debt=4", "10/1m leaky-bucket"} {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { bucketSettlementsMatchOracle(t, limit) })
		})
	}
}

func bucketSettlementsMatchOracle(t *rapid.T, limit penstock.Limit) {
	clock := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return clock }})
	book := &bucketBook{interval: int64(limit.Period) / limit.Count}
	most := limit.Capacity() + limit.MaxDebt()
	charged, known := int64(0), false
	hasPassed := false // whether time has, since the first unit
	for range 30 {
		wait := rapid.SampledFrom([]int64{0, 0, 0, 1, 7, 20, 61}).Draw(t, "seconds")
		clock = clock.Add(time.Duration(wait) * time.Second)
		now := clock.UnixNano()
		hasPassed = hasPassed || wait > 0 && len(book.lots) > 0
		r := anySettleRequest(t, limit, []string{"a"})
		if r.Cost < 0 {
			continue
		}
		before := backlogOf(t, store, limit)
		d, err := store.Take(t.Context(), r)
		if unknown := errors.Is(err, penstock.ErrUnknownID); err != nil && !unknown || unknown != (r.Settle && !known) {
			t.Fatalf("%+v: %v, %v", r, d, err)
		}
		after := backlogOf(t, store, limit)
		switch {
		case err != nil:
		case r.Settle:
			room := (most*book.interval - before) / book.interval
			if want := min(r.Cost, charged+max(room, 0)); d.Granted != want {
				t.Fatalf("%+v with %d charged and room for %d: got %v, want %d", r, charged, room, d, want)
			}
			if d.Granted > charged {
				book.lots = append(book.lots, chargedLot{"a", now, d.Granted - charged})
			} else {
				book.lots = book.without("a", charged-d.Granted).lots
			}
			charged = d.Granted
		case r.ID == "":
			book.lots = append(book.lots, chargedLot{"", now, d.Granted})
		case !known && d.Allowed:
			book.lots = append(book.lots, chargedLot{"a", now, d.Granted})
			charged, known = d.Granted, true
		case known && d.Granted != charged:
			t.Fatalf("%+v again: got %v, want the %d charged", r, d, charged)
		}
		least := book.backlog(now)
		if after < least || !hasPassed && after != least || r.Settle && d.Granted < charged && after > before {
			t.Fatalf("after %+v: a backlog of %v, before %v, want %v or more", r, time.Duration(after), time.Duration(before), time.Duration(least))
		}
	}
}

// backlogOf returns how long the bucket needs to be full.
func backlogOf(t *rapid.T, store penstock.Store, limit penstock.Limit) int64 {
	d, err := store.Take(t.Context(), penstock.Request{Key: "key", Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return int64(d.ResetAfter)
}

// Whatever the order of takes, repeats, settlements and refunds under some IDs, what is
// charged to a key is the sum of what is charged under each of them. The clock stands
// still, so that time pays nothing back.
func TestSettlementsAddUpToWhatIsCharged(t *testing.T) {
	for _, a := range []penstock.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.RollingWindow, penstock.SlidingLog,
	} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkBooks(t, penstock.PerHour(50).WithAlgorithm(a)) })
		})
	}
}

func checkBooks(t *rapid.T, limit penstock.Limit) {
	now := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	charged := map[string]int64{} // by ID
	sum, most := int64(0), limit.Capacity()+limit.MaxDebt()
	for range rapid.IntRange(1, 30).Draw(t, "requests") {
		r := penstock.Request{Key: "key", Limit: limit, ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
		before, known := charged[r.ID]
		want := before
		switch r.Cost = rapid.Int64Range(1, 60).Draw(t, "cost"); rapid.IntRange(0, 2).Draw(t, "verb") {
		case 0:
			if !known && sum+r.Cost <= limit.Capacity() {
				want = r.Cost
			}
		case 1:
			r.Settle = true
			if known {
				want = min(r.Cost, before+most-sum)
			}
		case 2:
			r.Cost = -60 // all of it, which ends the record
			want = 0
		}
		d, err := store.Take(ctx, r)
		if err != nil && (known || !r.Settle) {
			t.Fatalf("%+v: %v", r, err)
		}
		if r.Cost > 0 && err == nil && d.Granted != want {
			t.Fatalf("%+v: got %v, want %d charged under the ID", r, d, want)
		}
		if charged[r.ID] = want; want == 0 && (r.Cost < 0 || !known) {
			delete(charged, r.ID)
		}
		sum += want - before
		peek, err := store.Take(ctx, penstock.Request{Key: "key", Limit: limit})
		if err != nil || peek.Remaining != max(limit.Capacity()-sum, 0) {
			t.Fatalf("after %+v: got %v, %v, want %d units charged, by ID %v", r, peek, err, sum, charged)
		}
	}
}
