package regions_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/regions"
)

// A poolTest has pools in memory and on Redis, on the same clock.
type poolTest struct {
	*testing.T
	memory, redis regions.Pools
	now           time.Time
}

func newPoolTest(t *testing.T) *poolTest {
	p := &poolTest{T: t, now: time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)}
	server.Clock.Set(p.now)
	store, err := redisstore.Open(ctx, "redis://"+server.Addr, &redisstore.Options{Prefix: newPrefix(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	p.memory, p.redis = regions.NewMemoryPools(func() time.Time { return p.now }), regions.RedisPools(store, 10*time.Second)
	return p
}

func (p *poolTest) wait(d time.Duration) {
	p.now = p.now.Add(d)
	server.Clock.Set(p.now)
}

// spend spends from both pools, which must agree.
func (p *poolTest) spend(a regions.Ask) regions.Spent {
	p.Helper()
	a.ClaimFor, a.Keep = 2*time.Second, time.Hour
	got, err := p.redis.Spend(ctx, "key", a)
	want, _ := p.memory.Spend(ctx, "key", a)
	if err != nil || got != want {
		p.Fatalf("%+v at %v:\n redis %+v, %v\nmemory %+v", a, p.now, got, err, want)
	}
	return got
}

func (p *poolTest) deposit(l regions.Lot) bool {
	p.Helper()
	got, err := p.redis.Deposit(ctx, "key", l)
	if want, _ := p.memory.Deposit(ctx, "key", l); err != nil || got != want {
		p.Fatalf("%+v at %v: redis %v, %v, memory %v", l, p.now, got, err, want)
	}
	return got
}

// claim names a claim that is made now.
func (p *poolTest) claim() string { return "claim " + p.now.String() }

// newFilledPool is a poolTest in which a first take was granted nothing, and the lot that it claimed was deposited.
func newFilledPool(t *testing.T, l regions.Lot) *poolTest {
	p := newPoolTest(t)
	p.expectGrant(1, 0, 0)
	l.Claim = p.claim()
	p.deposit(l)
	return p
}

func (p *poolTest) expectGrant(cost, granted, left int64) regions.Spent {
	p.Helper()
	s := p.spend(regions.Ask{Cost: cost, Hold: 80, Age: 10 * time.Second, Claim: p.claim()})
	if s.Granted != granted || s.Left != left {
		p.Fatalf("a cost of %d at %v was granted %d and left %d, want %d and %d", cost, p.now, s.Granted, s.Left, granted, left)
	}
	return s
}

func TestPoolIsEmptyUntilADeposit(t *testing.T) {
	p := newPoolTest(t)
	if s := p.expectGrant(1, 0, 0); s.Want != 10 {
		t.Fatalf("the first claim asks for %d, want an eighth of 80", s.Want)
	}
	claim := p.claim()
	if s := p.expectGrant(1, 0, 0); s.Want != 0 || !s.Asked {
		t.Fatalf("a second claim was accepted: %+v", s)
	}
	if p.deposit(regions.Lot{Claim: "another", Units: 10}) {
		t.Fatal("a lot without a claim was accepted")
	}
	if !p.deposit(regions.Lot{Claim: claim, Units: 10}) || p.deposit(regions.Lot{Claim: claim, Units: 10}) {
		t.Fatal("want a lot to be accepted once")
	}
	p.expectGrant(4, 4, 6)
}

// A process that died with its claim delays the next one, and what it left at home is never deposited.
func TestPoolClaimIsReplacedAfterItsTime(t *testing.T) {
	p := newPoolTest(t)
	p.expectGrant(1, 0, 0)
	late := p.claim()
	p.wait(1999 * time.Millisecond)
	if s := p.expectGrant(1, 0, 0); s.Want != 0 {
		t.Fatalf("replaced after %v", 1999*time.Millisecond)
	}
	p.wait(time.Millisecond)
	if s := p.expectGrant(1, 0, 0); s.Want == 0 {
		t.Fatal("not replaced after two seconds")
	}
	if p.deposit(regions.Lot{Claim: late, Units: 10}) {
		t.Fatal("the lot of a replaced claim was accepted")
	}
}

func TestPoolUnitsEndWithTheirWindow(t *testing.T) {
	p := newPoolTest(t)
	s := p.expectGrant(1, 0, 0)
	p.deposit(regions.Lot{Claim: p.claim(), Units: 10, End: s.At + time.Second})
	p.wait(999 * time.Millisecond)
	p.expectGrant(1, 1, 9)
	p.wait(time.Millisecond)
	if s := p.expectGrant(1, 0, 0); s.Want == 0 {
		t.Fatal("no claim after the window's end")
	}
}

// A clock that goes back keeps a region from asking home for no longer than the longest pause.
func TestPoolAsksAfterItsClockWentBack(t *testing.T) {
	p := newFilledPool(t, regions.Lot{Scarce: true, Pause: 5 * time.Second})
	p.wait(-time.Second)
	if s := p.expectGrant(1, 0, 0); s.Want == 0 {
		t.Errorf("one second back: %+v, want a claim", s)
	}
	p.wait(-time.Hour)
	if s := p.expectGrant(1, 0, 0); s.Want == 0 || s.Asked {
		t.Errorf("an hour back, with a claim in flight: %+v, want another one", s)
	}
}

func TestPoolAsksForWhatIsSpent(t *testing.T) {
	p := newFilledPool(t, regions.Lot{Units: 10})
	p.wait(2 * time.Second)
	if s := p.expectGrant(5, 5, 5); s.Want != 0 {
		t.Fatalf("asks for %d with half of it left", s.Want)
	}
	if s := p.expectGrant(1, 1, 4); s.Want != 30 { // 6 in two seconds, for ten
		t.Fatalf("asks for %d, want 30", s.Want)
	}
	p.deposit(regions.Lot{Claim: p.claim(), Units: 20, Scarce: true, Pause: time.Second})
	if s := p.expectGrant(24, 24, 0); s.Want != 0 || !s.Scarce || s.Wait != time.Second {
		t.Fatalf("asks within the pause: %+v", s)
	}
}

// A dry run spends nothing, and claims what is missing.
func TestPoolDryRun(t *testing.T) {
	p := newPoolTest(t)
	dry := func(cost int64, claim string) regions.Spent {
		return p.spend(regions.Ask{Cost: cost, Dry: true, Hold: 80, Age: time.Second, Claim: claim})
	}
	if s := dry(20, "a"); s.Granted != 0 || s.Want != 20 || s.Age != 0 {
		t.Fatalf("an empty pool: %+v", s)
	}
	p.deposit(regions.Lot{Claim: "a", Units: 20})
	p.wait(3 * time.Second)
	if s := dry(20, "b"); s.Granted != 0 || s.Left != 20 || s.Want != 0 || s.Age != 3*time.Second {
		t.Fatalf("a pool that has enough: %+v", s)
	}
	if s := dry(21, "c"); s.Left != 20 || s.Want != 40 {
		t.Fatalf("a pool that has too little: %+v", s)
	}
}

// A pool is kept for a time after its last claim, whether it is used or not.
func TestPoolIsKept(t *testing.T) {
	p := newFilledPool(t, regions.Lot{Units: 10})
	p.wait(59 * time.Minute)
	p.expectGrant(1, 1, 9)
	p.wait(10 * time.Minute)
	p.expectGrant(1, 0, 0)
}

// Pools in memory and on Redis agree, and never hold more than they may, whatever is asked and
// deposited in whatever order.
func TestPoolsAgree(t *testing.T) {
	p := newPoolTest(t)
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 2))
	const hold = 50
	var pending []regions.Lot
	for i := range fixedseed.FewerUnderRace(3000) {
		p.wait(time.Duration(rng.IntN(900)) * time.Millisecond)
		if len(pending) > 0 && rng.IntN(3) == 0 {
			n := rng.IntN(len(pending))
			p.deposit(pending[n])
			continue // and perhaps again
		}
		s := p.spend(regions.Ask{
			Cost: rng.Int64N(20), AtMost: rng.IntN(3) == 0, Dry: rng.IntN(4) == 0, Trip: time.Duration(rng.IntN(3)) * 300 * time.Millisecond, Hold: hold, Age: time.Duration(rng.IntN(10)) * time.Second,
			Claim: strconv.Itoa(i),
		})
		if s.Left < 0 || s.Left+s.Want > hold {
			t.Fatalf("step %d: holds %d and asks for %d of %d", i, s.Left, s.Want, hold)
		}
		if s.Want > 0 {
			pending = append(pending, randomLot(rng, strconv.Itoa(i), s))
		}
	}
}

func randomLot(rng *rand.Rand, claim string, s regions.Spent) regions.Lot {
	l := regions.Lot{
		Claim: claim, Units: rng.Int64N(s.Want + 3), Scarce: rng.IntN(2) == 0, Pause: time.Duration(rng.IntN(3)) * time.Second,
		HomeLeft: rng.Int64N(100), HomeReset: time.Duration(rng.IntN(9)) * time.Second,
	}
	if rng.IntN(2) == 0 {
		l.End = s.At + time.Duration(rng.IntN(5000))*time.Millisecond
	}
	return l
}

func TestMemoryPoolsAreBounded(t *testing.T) {
	now := time.Now()
	pools := regions.NewMemoryPools(func() time.Time { return now })
	full := false
	for i := range 300_000 {
		_, err := pools.Spend(ctx, strconv.Itoa(i), regions.Ask{Cost: 1, Hold: 8, Claim: "c", Keep: 10 * time.Minute})
		if full = full || err != nil; full && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("key %d: %v", i, err)
		}
	}
	if !full {
		t.Fatal("there is room for any number of keys")
	}
	if _, err := pools.Spend(ctx, "0", regions.Ask{Cost: 1, Hold: 8}); err != nil {
		t.Errorf("a key that has a pool: %v", err)
	}
	now = now.Add(11 * time.Minute)
	if _, err := pools.Spend(ctx, "new", regions.Ask{Cost: 1, Hold: 8, Claim: "c"}); err != nil {
		t.Errorf("after all pools were idle: %v", err)
	}
}
