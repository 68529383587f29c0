package penstock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// withPermits runs a test of a limiter on a store behind a simulated network.
func withPermits(t *testing.T, text string, test func(t *testing.T, remote *remoteStore, lim *penstock.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		remote := &remoteStore{store: penstock.NewMemory(nil), hang: time.Hour}
		test(t, remote, limiter(t, remote, text))
		time.Sleep(time.Hour) // for timers and calls in flight
	})
}

func mustAcquire(t *testing.T, lim *penstock.Limiter, key string) *penstock.Permit {
	t.Helper()
	p, d, err := lim.Acquire(ctx, key)
	if err != nil || p == nil || !d.Allowed {
		t.Fatalf("Acquire(%q) = %v, %v, %v, want a permit", key, p, d, err)
	}
	return p
}

func remaining(t *testing.T, lim *penstock.Limiter, key string) int64 {
	t.Helper()
	d, err := lim.Peek(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func TestAcquireHoldsPermitUntilRelease(t *testing.T) {
	withPermits(t, "2/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		first, second := mustAcquire(t, lim, "key"), mustAcquire(t, lim, "key")
		if p, d, err := lim.Acquire(ctx, "key"); p != nil || d.Allowed || d.RetryAfter != 30*time.Second || err != nil {
			t.Errorf("a third of two: %v, %v, %v, want a denial for 30 s", p, d, err)
		}
		calls := remote.callsDuring(func() {
			first.Release()
			first.Release()
		})
		if calls != 1 || remaining(t, lim, "key") != 1 {
			t.Errorf("%d calls to release a permit twice, and %d are free, want one call and one permit", calls, remaining(t, lim, "key"))
		}
		if first.Context().Err() == nil || second.Context().Err() != nil {
			t.Error("a context must end with the release of its permit, and no other")
		}
		second.Release()
		if remaining(t, lim, "key") != 2 {
			t.Error("two permits were released, and are not free")
		}
	})
}

// A short call costs two requests. One that takes longer is renewed at each third of the
// period, and holds its permit for as long as it likes.
func TestPermitIsRenewedFromAThirdOfThePeriodOn(t *testing.T) {
	withPermits(t, "1/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		calls := remote.callsDuring(func() {
			p := mustAcquire(t, lim, "short")
			time.Sleep(9 * time.Second)
			p.Release()
			time.Sleep(time.Minute)
		})
		if calls != 2 {
			t.Errorf("a call of 9 s made %d requests, want two", calls)
		}
		p := mustAcquire(t, lim, "long")
		calls = remote.callsDuring(func() { time.Sleep(5*time.Minute + time.Second) })
		if calls != 30 || p.Context().Err() != nil {
			t.Errorf("in 5 minutes there were %d renewals, context %v, want one each 10 s", calls, p.Context().Err())
		}
		p.Release()
		if remaining(t, lim, "long") != 1 {
			t.Error("the permit is still held after its release")
		}
	})
}

// If the store does not answer, the context ends one period after the last request that
// was answered had been sent, which is before the store lets another have the permit.
func TestPermitContextEndsBeforePermitExpires(t *testing.T) {
	for name, fail := range map[string]func(*remoteStore){
		"down": func(s *remoteStore) { s.down.Store(true) },
		"hung": func(s *remoteStore) { s.hung.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			withPermits(t, "1/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
				remote.requestDelay, remote.responseDelay = fixedDelay(time.Second), fixedDelay(2*time.Second)
				sent := time.Now()
				p := mustAcquire(t, lim, "key")
				fail(remote)
				<-p.Context().Done()
				if held := time.Since(sent); held != 30*time.Second {
					t.Errorf("the context ended after %v, want 30 s", held)
				}
				if cause := context.Cause(p.Context()); !errors.Is(cause, penstock.ErrPermitLost) {
					t.Errorf("the context ended because of %v, want %v", cause, penstock.ErrPermitLost)
				}
				if d, err := remote.store.Take(ctx, penstock.Request{Key: "key", Limit: lim.Limit()}); err != nil || d.Remaining != 0 {
					t.Errorf("the store holds the permit for another second: %v, %v", d, err)
				}
				p.Release()
			})
		})
	}
}

// If the store has lost the permit, and others have taken its place, the next renewal
// tells.
func TestPermitIsLostWhenRenewalIsDenied(t *testing.T) {
	withPermits(t, "1/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		p := mustAcquire(t, lim, "key")
		if err := lim.Reset(ctx, "key"); err != nil {
			t.Fatal(err)
		}
		other := mustAcquire(t, lim, "key")
		start := time.Now()
		<-p.Context().Done()
		if after := time.Since(start); after != 10*time.Second || other.Context().Err() != nil {
			t.Errorf("the context ended after %v, and the other's is %v", after, other.Context().Err())
		}
		p.Release() // has no effect on the other
		if remaining(t, lim, "key") != 0 {
			t.Error("the release of a lost permit released another")
		}
		other.Release()
	})
}

// A renewal in flight must not take the permit again after its release.
func TestReleaseWaitsForRenewalInFlight(t *testing.T) {
	withPermits(t, "1/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		var slow atomic.Bool
		remote.requestDelay = func(r penstock.Request) time.Duration {
			if r.Cost > 0 && slow.Load() {
				return 3 * time.Second // renewals are slow, releases fast
			}
			return 0
		}
		p := mustAcquire(t, lim, "key")
		slow.Store(true)
		time.Sleep(11 * time.Second)
		p.Release()
		time.Sleep(10 * time.Second)
		if remaining(t, lim, "key") != 1 {
			t.Error("a renewal that was in flight took the permit again")
		}
	})
}

// A caller that gives up while the store decides releases what it may have been granted.
func TestAcquireReleasesWhenCallerGivesUp(t *testing.T) {
	withPermits(t, "1/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		remote.responseDelay = fixedDelay(time.Second)
		remote.loseResponse = func(rs []penstock.Request) bool { return rs[0].Cost > 0 }
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		if p, d, err := lim.Acquire(ctx, "key"); err == nil {
			t.Errorf("got %v, %v without an answer", p, d)
		}
		time.Sleep(5 * time.Second)
		if remaining(t, lim, "key") != 1 {
			t.Error("a permit is held by a caller that gave up")
		}
	})
}

func TestAcquireWaitGetsReleasedPermit(t *testing.T) {
	withPermits(t, "1/1h concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		p := mustAcquire(t, lim, "key")
		time.AfterFunc(10*time.Second, p.Release)
		start := time.Now()
		calls := remote.callsDuring(func() {
			second, err := lim.AcquireWait(ctx, "key")
			if err != nil {
				t.Fatal(err)
			}
			defer second.Release()
		})
		if waited := time.Since(start); waited < 10*time.Second || waited > 10*time.Second+375*time.Millisecond || calls > 120 {
			t.Errorf("the permit was released after 10 s, and got after %v and %d calls", waited, calls)
		}
	})
}

func TestAcquireWaitEndsWithContext(t *testing.T) {
	withPermits(t, "1/1h concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		p := mustAcquire(t, lim, "key")
		defer p.Release()
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if _, err := lim.AcquireWait(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the error of the context", err)
		}
		if _, err := lim.AcquireWaitN(ctx, "key", 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the error of the context", err)
		}
		if _, err := lim.AcquireWaitN(context.Background(), "key", 2); !errors.Is(err, penstock.ErrNever) {
			t.Errorf("two of one: got %v, want %v", err, penstock.ErrNever)
		}
	})
}

func TestAcquireRejectsWhatItCannotDo(t *testing.T) {
	store := penstock.NewMemory(nil)
	rate, held := limiter(t, store, "10/1s"), limiter(t, store, "200/30s concurrent")
	if _, _, err := rate.Acquire(ctx, "key"); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("a permit of a rate: got %v, want %v", err, penstock.ErrBadLimit)
	}
	for _, n := range []int64{-1, 0, 101} {
		if _, _, err := held.AcquireN(ctx, "key", n); !errors.Is(err, penstock.ErrBadCost) {
			t.Errorf("%d permits: got %v, want %v", n, err, penstock.ErrBadCost)
		}
	}
	if _, _, err := held.Acquire(ctx, ""); !errors.Is(err, penstock.ErrBadKey) {
		t.Errorf("a permit of no key: got %v, want %v", err, penstock.ErrBadKey)
	}
	for name, call := range map[string]func() error{
		"Allow":   func() error { _, err := held.Allow(ctx, "key"); return err },
		"Wait":    func() error { return held.Wait(ctx, "key") },
		"Reserve": func() error { _, err := held.Reserve(ctx, "key"); return err },
		"Refund":  func() error { _, err := held.Refund(ctx, "key", 1); return err },
		"Charge":  func() error { _, err := held.Charge(ctx, "key", 1); return err },
	} {
		if err := call(); !errors.Is(err, penstock.ErrBadCost) {
			t.Errorf("%s without an ID: got %v, want %v", name, err, penstock.ErrBadCost)
		}
	}
}

// Holders that work, die, stall and lose answers, on a store that is unavailable from time
// to time: at no instant do more than Count of them hold a permit whose context has not
// ended. If the store fails over and loses all writes, Count more do, for one period.
func TestPermitsHeldNeverExceedCount(t *testing.T) {
	acquired, lost := 0, 0
	for seed := range uint64(permitSimulations) {
		withPermits(t, "4/10s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
			a, l := simulatePermits(t, rand.New(rand.NewPCG(seed, 0)), remote, lim)
			acquired, lost = acquired+a, lost+l
		})
	}
	if acquired < 100 || lost == 0 {
		t.Errorf("%d permits were acquired and %d lost: the simulations show nothing", acquired, lost)
	}
}

// A store that loses all permits grants them once more. Each holder's next renewal is
// decided anew, so a period later no more than Count are held.
func TestPermitsAreDecidedAnewAfterFailover(t *testing.T) {
	withPermits(t, "4/30s concurrent", func(t *testing.T, remote *remoteStore, lim *penstock.Limiter) {
		store := &failoverStore{}
		store.failOver()
		remote.store = store
		var held []*penstock.Permit
		for range 2 {
			for range 4 {
				held = append(held, mustAcquire(t, lim, "key"))
			}
			store.failOver()
		}
		time.Sleep(15 * time.Second)
		working := 0
		for _, p := range held {
			if p.Context().Err() == nil {
				working++
			}
			p.Release()
		}
		if working != 4 || remaining(t, lim, "key") != 4 {
			t.Errorf("%d of 8 holders have one of 4 permits, and after their release %d are free", working, remaining(t, lim, "key"))
		}
	})
}

// permitSimulations is how many simulations there are, of ten minutes each.
const permitSimulations = 4

// A failoverStore is replaced by an empty one when it fails over.
type failoverStore struct {
	current atomic.Pointer[penstock.Memory]
}

func (s *failoverStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	return s.current.Load().Take(ctx, r)
}

func (s *failoverStore) failOver() { s.current.Store(penstock.NewMemory(nil)) }

func simulatePermits(t *testing.T, random *rand.Rand, remote *remoteStore, lim *penstock.Limiter) (acquired, lost int) {
	type holder struct {
		permit *penstock.Permit
		dead   bool // it works on, and never releases its permit
	}
	store := &failoverStore{}
	store.failOver()
	remote.store = store
	failedOver := time.Time{}
	network := rand.New(rand.NewPCG(random.Uint64(), 0))
	var mu sync.Mutex // renewals and the simulation use the network at the same time
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return network.IntN(n)
	}
	remote.requestDelay = func(penstock.Request) time.Duration { return time.Duration(draw(800)) * time.Millisecond }
	remote.loseResponse = func([]penstock.Request) bool { return draw(10) == 0 }
	var holders []holder
	end := time.Now().Add(10 * time.Minute)
	for time.Now().Before(end) {
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		switch n := random.IntN(20); {
		case n < 8:
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			if p, _, err := lim.Acquire(context.WithoutCancel(ctx), "key"); err == nil && p != nil {
				holders, acquired = append(holders, holder{permit: p}), acquired+1
			}
			cancel()
		case n < 14 && len(holders) > 0:
			i := random.IntN(len(holders))
			if !holders[i].dead {
				holders[i].permit.Release()
			}
		case n < 15 && len(holders) > 0:
			holders[random.IntN(len(holders))].dead = true
		case n == 15:
			remote.down.Store(!remote.down.Load())
		}
		working := holders[:0]
		for _, h := range holders {
			switch cause := context.Cause(h.permit.Context()); {
			case cause == nil:
				working = append(working, h)
			case errors.Is(cause, penstock.ErrPermitLost):
				lost++
			}
		}
		holders = working
		sinceFailover := time.Since(failedOver)
		if len(holders) > 8 || len(holders) > 4 && sinceFailover > 10*time.Second {
			t.Fatalf("%d holders of 4 permits, %v after a failover", len(holders), sinceFailover)
		}
		if random.IntN(100) == 0 && sinceFailover > 20*time.Second {
			store.failOver()
			failedOver = time.Now()
		}
		if random.IntN(100) == 0 {
			for _, h := range holders { // all of them crash: the dead must not hold permits for ever
				h.permit.Release()
			}
		}
	}
	remote.down.Store(false)
	for _, h := range holders {
		h.permit.Release()
	}
	return acquired, lost
}

// A key about which the store cannot decide does not cost the permits of other keys.
func TestPermitIsRenewedBesideAKeyThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, broken := penstock.NewMemory(nil), atomic.Bool{}
		lim := limiter(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if broken.Load() && r.Key == "broken" {
				return penstock.Decision{}, &penstock.KeyError{Key: r.Key, Err: errors.New("another program wrote it")}
			}
			return memory.Take(ctx, r)
		}), "1/30s concurrent")
		lost, kept := mustAcquire(t, lim, "broken"), mustAcquire(t, lim, "key")
		broken.Store(true)
		time.Sleep(5 * time.Minute)
		if !errors.Is(context.Cause(lost.Context()), penstock.ErrPermitLost) || kept.Context().Err() != nil {
			t.Errorf("contexts %v and %v, want the first alone to be lost", lost.Context().Err(), kept.Context().Err())
		}
		lost.Release()
		kept.Release()
	})
}
