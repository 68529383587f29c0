package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// Once the breaker is open no caller waits for a store that hangs, and before that no
// longer than the timeout.
func TestFallbackHungStoreOpensBreaker(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("1000000/1h")
		s.primary.hung.Store(true)
		var longest, total time.Duration
		for range 1000 {
			start := time.Now()
			allowOne(s.T, lim, "key")
			took := time.Since(start)
			longest, total = max(longest, took), total+took
			time.Sleep(10 * time.Millisecond)
		}
		if longest != 50*time.Millisecond || total != 5*longest {
			s.Errorf("1000 calls took %v together and %v at most, want five of 50ms", total, longest)
		}
		if n := s.primary.calls.Load(); n < 30 || n > 60 {
			s.Errorf("%d calls in ten seconds, want five and then about four a second", n)
		}
		s.comeUp()
	})
}

func TestFallbackRecoversWithinASecond(t *testing.T) {
	for _, outageLasts := range []time.Duration{700 * time.Millisecond, 3 * time.Second, time.Minute} {
		withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
			lim := s.limiter("1000000/1h")
			s.goDown()
			for start := time.Now(); time.Since(start) < outageLasts; {
				time.Sleep(7 * time.Millisecond)
				allowOne(s.T, lim, "key")
			}
			s.primary.down.Store(false)
			start := time.Now()
			for d := (penstock.Decision{Source: penstock.SourceFallback}); d.Source == penstock.SourceFallback; {
				time.Sleep(7 * time.Millisecond)
				d, _ = lim.Allow(ctx, "key")
			}
			if took := time.Since(start); took > time.Second {
				s.Errorf("down for %v: up after %v", outageLasts, took)
			}
		})
	}
}

// A caller whose context ends early proves nothing about the store, so the store is
// verified: one that hangs goes down even if no caller waits for the timeout, and one
// that answers stays up, whatever the callers do.
func TestFallbackShortDeadlinesVerifyStore(t *testing.T) {
	cancelled := func(after time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(after, cancel)
		return ctx, cancel
	}
	late := func(after time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, after)
	}
	for name, c := range map[string]struct {
		ctx   func(after time.Duration) (context.Context, context.CancelFunc)
		after time.Duration
	}{
		"cancelled":       {cancelled, 20 * time.Millisecond},
		"cancelled early": {cancelled, time.Millisecond},
		"deadline early":  {late, time.Millisecond},
		"deadline":        {late, 20 * time.Millisecond},
	} {
		for _, takeAll := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " TakeAll ", takeAll), func(t *testing.T) {
				withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
					lim := s.limiter("1000000/1h")
					take := func() (err error) {
						ctx, cancel := c.ctx(c.after)
						defer cancel()
						if takeAll {
							return penstock.TakeAll(ctx, s.fallback, []penstock.Request{lim.Request("key")}, make([]penstock.Decision, 1))
						}
						_, err = lim.Allow(ctx, "key")
						return err
					}
					s.primary.requestDelay = fixedDelay(40 * time.Millisecond) // slow, but up
					for range 100 {
						_ = take()
					}
					if down, _ := s.fallback.Down(); down != 0 {
						s.Error("short deadlines made a store go down that answers")
					}
					time.Sleep(time.Second)
					s.primary.hung.Store(true)
					start := time.Now()
					for take() != nil {
						if time.Since(start) > 400*time.Millisecond {
							s.Errorf("a hung store is still called after %v", time.Since(start))
							break
						}
					}
				})
			})
		}
	}
}

// Down probes the primary store, so a caller that polls it and sends no requests
// learns when the store is up.
func TestFallbackDownProbesPrimary(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		s.goDown()
		s.primary.down.Store(false)
		time.Sleep(time.Second)
		_, _ = s.fallback.Down()
		synctest.Wait()
		if down, _ := s.fallback.Down(); down != 0 {
			s.Error("the primary store is up, and still counts as down")
		}
	})
}

// The last call of OnChange reports the current state, even if the store goes down
// again during a call.
func TestFallbackLastChangeIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := &remoteStore{store: penstock.NewMemory(nil)}
		var changes []bool
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{OnChange: func(c penstock.FallbackChange) {
			changes = append(changes, c.Down)
			if !c.Down {
				time.Sleep(time.Second) // long enough for everything else
			}
		}})
		lim := limiter(t, fallback, "1000/1h")
		for range 8 {
			primary.down.Store(true)
			for range 5 {
				allowOne(t, lim, "key")
			}
			primary.down.Store(false)
			time.Sleep(600 * time.Millisecond)
			allowOne(t, lim, "key")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		down, _ := fallback.Down()
		for i, isDown := range changes {
			if isDown != (i%2 == 0) {
				t.Fatalf("reported %v: want down and up in turn", changes)
			}
		}
		if len(changes) < 4 || changes[len(changes)-1] != (down == 1) {
			t.Errorf("reported %v, and %d are down", changes, down)
		}
	})
}

func TestFallbackMalformedRequestsAreNotFailures(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		malformed := []penstock.Request{
			{Limit: penstock.PerHour(1), Cost: 1},
			{Key: "key", Limit: penstock.PerHour(-1), Cost: 1},
			{Key: "key", Limit: penstock.PerHour(1), Cost: 1, MaxDelay: -1},
		}
		check := func(when string) {
			s.Helper()
			for _, r := range malformed {
				for range 10 {
					_, one := s.fallback.Take(ctx, r)
					each := s.fallback.TakeEach(ctx, []penstock.Request{r}, make([]penstock.Decision, 1))
					all := s.fallback.TakeAll(ctx, []penstock.Request{r}, make([]penstock.Decision, 1))
					var field *penstock.FieldError
					if !errors.As(one, &field) || !errors.As(each, &field) || !errors.As(all, &field) {
						s.Fatalf("%s: %+v: got %v, %v, %v, want errors that name the field", when, r, one, each, all)
					}
				}
			}
		}
		check("up")
		if down, _ := s.fallback.Down(); down != 0 {
			s.Error("malformed requests made the store go down")
		}
		s.goDown()
		check("down")
	})
}

// A primary store that answers peeks and cannot write stays down, even if there are no
// debts to settle.
func TestFallbackProbeWrites(t *testing.T) {
	for _, mode := range []penstock.FailureMode{penstock.FailLocal, penstock.FailOpen, penstock.FailClosed} {
		onFailure := func(penstock.Limit) (penstock.FailureMode, float64) { return mode, 0 }
		withFallback(t, penstock.FallbackOptions{OnFailure: onFailure}, func(s *fallbackFixture) {
			lim := s.limiter("1000/1h")
			s.primary.refuse = func(r penstock.Request) bool { return r.Cost > 0 }
			for range 500 {
				if _, err := lim.Allow(ctx, "key"); err != nil {
					s.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			if len(s.changes) != 1 {
				s.Errorf("mode %d: %d changes in five seconds, want one, down", mode, len(s.changes))
			}
		})
	}
}

// A shardedStore has three shards that can go down independently.
type shardedStore struct {
	*remoteStore
	down [3]atomic.Bool
}

func newShardedStore() *shardedStore {
	s := &shardedStore{remoteStore: &remoteStore{store: penstock.NewMemory(nil)}}
	return s
}

func (s *shardedStore) Shards() int            { return len(s.down) }
func (s *shardedStore) ShardOf(key string) int { return int(key[0] - '0') }

func (s *shardedStore) reach(rs ...penstock.Request) error {
	for i, r := range rs {
		if s.down[s.ShardOf(r.Key)].Load() {
			return &penstock.RequestError{Index: i, Err: fmt.Errorf("shard: %w", penstock.ErrUnavailable)}
		}
	}
	return nil
}

func (s *shardedStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := s.reach(r); err != nil {
		return penstock.Decision{}, err
	}
	return s.remoteStore.Take(ctx, r)
}

func (s *shardedStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(rs...); err != nil {
		return err
	}
	return s.remoteStore.TakeEach(ctx, rs, ds)
}

func (s *shardedStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(rs...); err != nil {
		return err
	}
	return s.remoteStore.TakeAll(ctx, rs, ds)
}

// A foreignStore cannot decide about the key "1", whose value another program wrote. It
// decides all other requests of a call.
type foreignStore struct{ *shardedStore }

func (s foreignStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if r.Key == "1" {
		return penstock.Decision{}, &penstock.KeyError{Key: r.Key, Err: fmt.Errorf("foreign: %w", penstock.ErrUnavailable)}
	}
	return s.shardedStore.Take(ctx, r)
}

func (s foreignStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (first error) {
	for i, r := range rs {
		var err error
		if ds[i], err = s.Take(ctx, r); err != nil && first == nil {
			first = &penstock.RequestError{Index: i, Err: err}
		}
	}
	return first
}

// A key that the primary store cannot decide about is decided by the fallback. All other
// requests of the call are decided, and charged, by the primary alone.
func TestFallbackKeyErrorConcernsOneRequest(t *testing.T) {
	for name, wrap := range map[string]func(penstock.Store) penstock.Store{
		"none":      func(s penstock.Store) penstock.Store { return s },
		"DenyCache": func(s penstock.Store) penstock.Store { return penstock.WithDenyCache(s, nil) },
		"Lease":     func(s penstock.Store) penstock.Store { return penstock.WithLease(s, nil) },
	} {
		synctest.Test(t, func(t *testing.T) {
			primary, secondary := foreignStore{newShardedStore()}, penstock.NewMemory(nil)
			fallback := penstock.WithFallback(wrap(primary), secondary, nil)
			lim := limiter(t, fallback, "20/1h")
			if d, err := lim.AllowN(ctx, "2", 20); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if d, err := lim.Allow(ctx, "2"); err != nil || d.Allowed { // a DenyCache answers the next ones
				t.Fatal(d, err)
			}
			for _, keys := range []string{"01", "10", "2010", "0112"} {
				got := sourcesOf(t, lim, keys)
				for i, source := range strings.Fields(got) {
					if (keys[i] == '1') != (source == "fallback") {
						t.Errorf("wrapper %s: %s by %s, want only key 1 by the fallback", name, keys, got)
					}
				}
			}
			synctest.Wait()
			for key, want := range map[string][2]int64{"0": {15, 20}, "1": {20, 15}, "2": {0, 20}} {
				at, _ := limiter(t, primary.remoteStore, "20/1h").Peek(ctx, key)
				by, _ := limiter(t, secondary, "20/1h").Peek(ctx, key)
				if got := [2]int64{at.Remaining, by.Remaining}; got != want {
					t.Errorf("wrapper %s, key %s: %d left at the stores, want %d", name, key, got, want)
				}
			}
			if down, _ := fallback.Down(); down != 0 {
				t.Errorf("wrapper %s: %d shards are down, want none", name, down)
			}
		})
	}
}

// Of the shards that are up, a key that cannot be decided concerns no other request.
func TestFallbackKeyErrorWhileAShardIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := foreignStore{newShardedStore()}
		primary.down[2].Store(true)
		lim := limiter(t, penstock.WithFallback(primary, nil, nil), "100/1h")
		for range 5 {
			sourcesOf(t, lim, "2")
		}
		if got := sourcesOf(t, lim, "2100"); got != "fallback fallback store store" {
			t.Errorf("by %s, want the requests on key 0 by the store", got)
		}
	})
}

// Beside another error than a KeyError, nothing is known about the decisions.
func TestFallbackIgnoresDecisionsOfAStoreThatFailed(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		s.primary.loseResponse = func([]penstock.Request) bool { return true }
		if got := sourcesOf(s.T, s.limiter("100/1h"), "01"); got != "fallback fallback" {
			s.Errorf("by %s, want all by the fallback", got)
		}
	})
}

// sourcesOf takes one unit of each key in a batch, and returns the sources of the
// decisions. Each key is one letter.
func sourcesOf(t *testing.T, lim *penstock.Limiter, keys string) string {
	t.Helper()
	var rs []penstock.Request
	for _, key := range keys {
		rs = append(rs, lim.Request(string(key)))
	}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeEach(ctx, lim.Store(), rs, ds); err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, d := range ds {
		sources = append(sources, d.Source.String())
	}
	return strings.Join(sources, " ")
}

// A shard that is down affects only its own keys.
func TestFallbackShardsFailIndependently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newShardedStore()
		var changes []penstock.FallbackChange
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{
			OnChange: func(c penstock.FallbackChange) { changes = append(changes, c) },
		})
		lim := limiter(t, fallback, "100/1h")
		sources := func(keys string) string {
			t.Helper()
			return sourcesOf(t, lim, keys)
		}
		primary.down[1].Store(true)
		for range 5 {
			if got := sources("0121"); got != "fallback fallback fallback fallback" {
				t.Errorf("one request failed: by %s, want all by the fallback", got)
			}
		}
		synctest.Wait()
		if down, shards := fallback.Down(); down != 1 || shards != 3 || len(changes) != 1 || changes[0].Shard != 1 {
			t.Errorf("%d of %d down, reported %+v, want shard 1 alone", down, shards, changes)
		}
		if got := sources("0121"); got != "store fallback store fallback" {
			t.Errorf("by %s, want only shard 1's by the fallback", got)
		}
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, fallback, []penstock.Request{lim.Request("0"), lim.Request("1")}, ds); err != nil ||
			ds[0].Source != penstock.SourceFallback || ds[1].Source != penstock.SourceFallback {
			t.Errorf("TakeAll: %v, %v, want one store to decide both", ds, err)
		}
		primary.down[2].Store(true)
		for range 5 {
			sources("012")
		}
		synctest.Wait()
		if down, shards := fallback.Down(); down != 2 || shards != 3 || len(changes) != 2 || changes[1].Shard != 2 {
			t.Errorf("%d of %d down, reported %+v, want shards 1 and 2", down, shards, changes)
		}
		primary.down[1].Store(false)
		primary.down[2].Store(false)
		time.Sleep(time.Second)
		sources("12")
		synctest.Wait()
		if got := sources("0121"); got != "store store store store" {
			t.Errorf("up again: by %s, want the store", got)
		}
		synctest.Wait()
		// Each of twelve batches took one unit, and so did the TakeAll.
		if d, err := lim.Peek(ctx, "0"); err != nil || d.Remaining != 100-13 {
			t.Errorf("shard 0 after all was settled: %v, %v, want 13 taken", d, err)
		}
	})
}
