package penstock_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// permits is a concurrency limit as text.
func permits(text string) penstock.Limit {
	l, err := penstock.ParseLimit(text)
	if err != nil {
		panic(err)
	}
	return l
}

// takePermits takes, renews or releases under an ID, and checks what is granted.
func takePermits(t *testing.T, s penstock.Store, l penstock.Limit, key, id string, cost, want int64) penstock.Decision {
	t.Helper()
	d, err := s.Take(ctx, penstock.Request{Key: key, Limit: l, Cost: cost, ID: id})
	if err != nil || d.Granted != want {
		t.Fatalf("%d permits of %q under %q: %v, %v, want %d granted", cost, key, id, d, err, want)
	}
	return d
}

// New keys of a full store share the permits of one key. Theirs stay where they were
// granted, even if the key has a slot by the time they are renewed or released.
func TestMemoryOverflowBucketHoldsPermits(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: clock.now})
	l := permits("2/30s concurrent")
	takePermits(t, store, l, "first", "a", 1, 1)
	takePermits(t, store, l, "second", "a", 1, 1)
	takePermits(t, store, l, "third", "a", 1, 1)
	takePermits(t, store, l, "fourth", "a", 1, 0)

	takePermits(t, store, l, "first", "a", -1, -1)
	takePermits(t, store, l, "second", "b", 2, 2) // has a slot now, and two permits of its own
	takePermits(t, store, l, "fourth", "a", 1, 0)
	clock.advance(20 * time.Second)
	takePermits(t, store, l, "second", "a", 1, 1) // renews the one in the overflow bucket
	clock.advance(20 * time.Second)
	takePermits(t, store, l, "second", "c", 2, 2) // those of b have expired
	takePermits(t, store, l, "second", "a", -1, -1)
	takePermits(t, store, l, "second", "a", -1, 0)
}

// Permits that find no room are denied, and never granted by the overflow bucket beside
// the key's own.
func TestMemoryMaxBytesBoundsPermits(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 4096, MaxBytes: 64 << 10, Now: newFakeClock().now})
	l := permits("1000/1h concurrent")
	takePermits(t, store, l, "victim", "held", 1, 1)
	for i := range 3000 {
		r := penstock.Request{Key: strconv.Itoa(i % 20), Limit: l, Cost: 1, ID: strconv.Itoa(i)}
		if _, err := store.Take(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	granted := 0
	for i := range 1000 {
		d, err := store.Take(ctx, penstock.Request{Key: "victim", Limit: l, Cost: 1, ID: strconv.Itoa(i)})
		if err != nil || !d.Allowed && d.RetryAfter <= 0 {
			t.Fatalf("one more permit: %v, %v, want a grant or a RetryAfter", d, err)
		}
		if d.Allowed {
			granted++
		}
	}
	if granted > 10 {
		t.Errorf("a block with room for a few grants held %d more", granted)
	}
	if used := store.Stats().Bytes; used > 80<<10 {
		t.Errorf("permits hold %d bytes, want 64 kB, and at most a quarter more for overflow buckets", used)
	}
	takePermits(t, store, l, "victim", "held", 1, 1)
	takePermits(t, store, l, "victim", "held", -1, -1)
}

func TestMemorySnapshotKeepsPermits(t *testing.T) {
	clock := newFakeClock()
	o := &penstock.MemoryOptions{Durable: true, Now: clock.now}
	store := penstock.NewMemory(o)
	l := permits("3/30s concurrent")
	takePermits(t, store, l, "key", "a", 2, 2)
	clock.advance(10 * time.Second)
	takePermits(t, store, l, "key", "b", 1, 1)
	restored := restoreMemory(t, snapshot(t, store), o)
	if d := takePermits(t, restored, l, "key", "c", 1, 0); d.RetryAfter != 20*time.Second {
		t.Errorf("a permit of a restored store: %v, want one in 20 s", d)
	}
	takePermits(t, restored, l, "key", "a", 1, 2)
	takePermits(t, restored, l, "key", "b", -1, -1)
}

// Permits of an overflow bucket are found in a store that has not used one itself.
func TestMemorySnapshotKeepsPermitsOfOverflowBucket(t *testing.T) {
	o := &penstock.MemoryOptions{MaxKeys: 1, Durable: true, Now: newFakeClock().now}
	store := penstock.NewMemory(o)
	l := permits("2/30s concurrent")
	takePermits(t, store, l, "first", "a", 1, 1)
	takePermits(t, store, l, "second", "b", 2, 2)
	restored := restoreMemory(t, snapshot(t, store), o)
	takePermits(t, restored, l, "first", "a", -1, -1)
	takePermits(t, restored, l, "second", "b", 1, 2)
	takePermits(t, restored, l, "second", "b", -2, -2)
	takePermits(t, restored, l, "second", "b", -2, 0)
}

// Memory returns with the permits: they are no records that live for a whole period.
func TestMemoryReleasedPermitsLeaveNothing(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now})
	l := permits("10/1h concurrent")
	for i := range fixedseed.FewerUnderRace(100_000) {
		id := strconv.Itoa(i)
		takePermits(t, store, l, "key", id, 1, 1)
		takePermits(t, store, l, "key", id, -1, -1)
	}
	if got := store.Stats(); got.Keys > 1 || got.Bytes > 1<<16 {
		t.Errorf("nothing is held, and the store holds %d keys and %d bytes", got.Keys, got.Bytes)
	}
}

// A release anywhere ends a denial, so denials are not cached; and permits are not taken
// in advance.
func TestWrappersPassConcurrencyLimitsBy(t *testing.T) {
	for name, wrap := range map[string]func(penstock.Store) penstock.Store{
		"deny cache": func(s penstock.Store) penstock.Store { return penstock.WithDenyCache(s, nil) },
		"lease":      func(s penstock.Store) penstock.Store { return penstock.WithLease(s, nil) },
	} {
		memory := penstock.NewMemory(nil)
		remote := &remoteStore{store: memory}
		store := wrap(remote)
		l := permits("100/1h concurrent")
		for i := range 100 {
			takePermits(t, store, l, "key", strconv.Itoa(i), 1, 1)
		}
		takePermits(t, store, l, "key", "one more", 1, 0)
		takePermits(t, memory, l, "key", "7", -1, -1) // as another process would
		takePermits(t, store, l, "key", "one more", 1, 1)
		if calls := remote.calls.Load(); calls != 102 {
			t.Errorf("%s: 102 requests made %d calls", name, calls)
		}
	}
}

func TestFallbackGrantsShareOfPermits(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.5}, func(s *fallbackFixture) {
		l := permits("4/30s concurrent")
		take := func(id string, cost, want int64, by penstock.Source) {
			s.Helper()
			if d := takePermits(s.T, s.fallback, l, "key", id, cost, want); d.Source != by {
				s.Errorf("%d under %q: %v, want the %v", cost, id, d, by)
			}
		}
		take("a", 3, 3, penstock.SourceStore)
		s.goDown()
		take("b", 1, 1, penstock.SourceFallback)
		take("c", 1, 1, penstock.SourceFallback)
		take("d", 1, 0, penstock.SourceFallback) // a half of four are held
		take("b", 1, 1, penstock.SourceFallback) // renewed
		take("a", -3, 0, penstock.SourceFallback)
		s.comeUp()

		// The primary store still holds those of a. Nothing was charged to it afterwards:
		// b takes a permit there when it renews, and c finds none.
		take("b", 1, 1, penstock.SourceStore)
		take("c", 1, 0, penstock.SourceStore)
		take("c", -1, -1, penstock.SourceStore) // the one that the secondary store granted
		take("a", -3, -3, penstock.SourceStore)
	})
}

// A repeated TakeAll renews permits of the overflow bucket and, in a full store, also
// looks there for the state of a key that has no slot any more.
func TestMemoryTakeAllRepeatsInFullStore(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 3, Now: clock.now})
	rate := penstock.Request{Key: "rate", Limit: penstock.PerSecond(5), Cost: 1, ID: "id", Hold: time.Hour}
	if d, err := store.Take(ctx, rate); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	takeFive(t, limiter(t, store, "5/24h"), "busy")
	l := permits("2/1h concurrent")
	takePermits(t, store, l, "held", "id", 1, 1) // by the overflow bucket
	clock.advance(time.Minute)
	takeFive(t, limiter(t, store, "5/24h"), "takes the slot of rate")

	rs := []penstock.Request{rate, {Key: "held", Limit: l, Cost: 1, ID: "id"}}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[0].Granted != 1 || ds[1].Granted != 1 {
		t.Errorf("got %v, %v, want the recorded grants", ds, err)
	}
}

// A TakeAll that is denied releases the permits that it took, and none that its ID held before.
func TestTakeAllDeniedKeepsPermitsThatItOnlyRenewed(t *testing.T) {
	one := permits("5/1h concurrent")
	leaky := penstock.Request{Key: "leaky", Limit: penstock.Per(2, time.Second).WithAlgorithm(penstock.LeakyBucket), Cost: 1, MaxDelay: time.Millisecond}
	for name, wrap := range map[string]func(penstock.Store) penstock.Store{
		"memory": func(s penstock.Store) penstock.Store { return s },
		"plain":  func(s penstock.Store) penstock.Store { return penstock.StoreFunc(s.Take) },
	} {
		t.Run(name, func(t *testing.T) {
			store := wrap(penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now}))
			takePermits(t, store, one, "full", "others", 5, 5)
			takePermits(t, store, one, "key", "held", 2, 2)
			permit := func(key, id string) penstock.Request {
				return penstock.Request{Key: key, Limit: one, Cost: 1, ID: id}
			}
			for _, rs := range [][]penstock.Request{
				{permit("key", "held"), permit("full", "more")},
				{permit("key", "new"), permit("full", "more")},
				{permit("key", "held"), leaky, leaky}, // the second would wait for too long
				{permit("key", "new"), leaky, leaky},
				{permit("full", "more"), permit("key", "held")},
			} {
				ds := make([]penstock.Decision, len(rs))
				if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || penstock.Tightest(ds).Allowed {
					t.Errorf("%v: %v, %v, want a denial", rs, ds, err)
				}
				expectRemaining(t, limiter(t, store, "5/1h concurrent"), "key", 3)
			}
			rs := []penstock.Request{permit("key", "held"), permit("other", "new"), leaky}
			ds := make([]penstock.Decision, len(rs))
			if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[0].Granted != 2 || ds[1].Granted != 1 || ds[2].Granted != 1 {
				t.Errorf("all fit: %v, %v", ds, err)
			}
		})
	}
}

// A TakeAll renews permits where they are held, and takes no others beside them.
func TestMemoryTakeAllRenewsPermitsOfOverflowBucket(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
	l := permits("2/30s concurrent")
	takePermits(t, store, l, "first", "a", 1, 1)
	takePermits(t, store, l, "second", "a", 1, 1) // by the overflow bucket
	takePermits(t, store, l, "first", "a", -1, -1)
	rs := []penstock.Request{{Key: "second", Limit: l, Cost: 1, ID: "a"}, {Key: "peek", Limit: penstock.PerHour(1)}}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[0].Granted != 1 {
		t.Fatal(ds, err)
	}
	takePermits(t, store, l, "second", "a", -1, -1)
	takePermits(t, store, l, "second", "a", -1, 0)
}
