package penstock_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
	"pgregory.net/rapid"
)

// untrustedLimiter returns a limiter for a limit that a remote caller chose.
func untrustedLimiter(t testing.TB, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	limit.Untrusted = true
	lim, err := penstock.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// An untrustedStore takes under the untrusted form of every limit.
type untrustedStore struct{ *penstock.Memory }

func (s untrustedStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	r.Limit.Untrusted = true
	return s.Memory.Take(ctx, r)
}

func (s untrustedStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	all := append([]penstock.Request(nil), rs...)
	for i := range all {
		all[i].Limit.Untrusted = true
	}
	return s.Memory.TakeAll(ctx, all, ds)
}

// Untrusted limits decide as all others do.
func TestMemoryUntrustedLimitsPassStoretest(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return untrustedStore{penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 13})}
	})
}

// Equal limits of which one is untrusted share no state, nor do the records of their IDs.
func TestMemoryUntrustedLimitHasOwnState(t *testing.T) {
	for _, text := range append(everyAlgorithm, "5/1h name=shop/user", "0/1h name=shop/user") {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now})
			ours, theirs := limiter(t, store, text), untrustedLimiter(t, store, text)
			for _, pair := range [][2]*penstock.Limiter{{ours, theirs}, {theirs, ours}} {
				r := pair[0].Request("key")
				r.ID = "id"
				if d, err := store.Take(ctx, r); err != nil || d.Allowed != (ours.Limit().Count > 0) {
					t.Fatal(d, err)
				}
				before, err := pair[0].Peek(ctx, "key")
				if err != nil {
					t.Fatal(err)
				}
				r = pair[1].Request("key")
				r.ID, r.Cost = "id", -1
				if d, err := store.Take(ctx, r); err != nil || pair[1] == theirs && d.Granted != 0 {
					t.Errorf("a refund under the other limit: %+v, %v", d, err)
				}
				if err := pair[1].Reset(ctx, "key"); err != nil {
					t.Fatal(err)
				}
				expectRemaining(t, pair[0], "key", before.Remaining)
			}
		})
	}
}

// Keys of untrusted limits that stay active for a year leave new keys of all other limits
// their places, and so do their overflow buckets.
func TestMemoryUntrustedFloodLeavesRoomForOthers(t *testing.T) {
	const maxKeys = 1000
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: maxKeys, Now: newFakeClock().now})
			for i := range 3 * maxKeys {
				lim := untrustedLimiter(t, store, fmt.Sprintf("1/366d name=%d", i%1100))
				if _, err := lim.Allow(ctx, strconv.Itoa(i)); err != nil {
					t.Fatal(err)
				}
			}
			before := store.Stats()
			if before.UntrustedKeys != maxKeys/2 || before.Keys != maxKeys/2 || before.OverflowDecisions == 0 {
				t.Fatalf("after the flood: %+v, want %d keys", before, maxKeys/2)
			}
			ours := limiter(t, store, text)
			for i := range maxKeys / 2 {
				takeFive(t, ours, strconv.Itoa(i))
			}
			if got := store.Stats(); got.Keys != maxKeys || got.OverflowDecisions != before.OverflowDecisions {
				t.Errorf("after %d others: %+v, want a slot for each", maxKeys/2, got)
			}
			takeFive(t, ours, "the overflow bucket")
			expectDenied(t, ours, "the overflow bucket again")
		})
	}
}

// Other limits may fill the whole store.
func TestMemoryTrustedLimitsFillTheStore(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 100, Now: newFakeClock().now})
	ours, theirs := limiter(t, store, "5/1h"), untrustedLimiter(t, store, "5/1h")
	for i := range 100 {
		takeFive(t, ours, strconv.Itoa(i))
	}
	if got := store.Stats(); got.Keys != 100 || got.UntrustedKeys != 0 || got.OverflowDecisions != 0 {
		t.Errorf("%+v, want a slot for each of 100 keys", got)
	}
	takeFive(t, theirs, "the overflow bucket")
	expectDenied(t, theirs, "the overflow bucket again")
	takeFive(t, ours, "our overflow bucket")
}

// Logs of untrusted limits leave room for the logs of others.
func TestMemoryUntrustedLogsLeaveBytesForOthers(t *testing.T) {
	const maxBytes = 1 << 20
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 4096, MaxBytes: maxBytes, Now: newFakeClock().now})
	theirs, ours := untrustedLimiter(t, store, "1000/24d sliding-log"), limiter(t, store, "1000/1h sliding-log")
	for i := range 500 {
		if _, err := theirs.AllowN(ctx, strconv.Itoa(i), 1000); err != nil {
			t.Fatal(err)
		}
	}
	if got := store.Stats(); got.Bytes > maxBytes*5/8 {
		t.Errorf("untrusted logs have %d bytes, want at most half of %d, and a quarter of that for overflow", got.Bytes, maxBytes)
	}
	for i := range 40 {
		if d, err := ours.AllowN(ctx, strconv.Itoa(i), 1000); err != nil || !d.Allowed {
			t.Fatalf("log %d: %v, %v", i, d, err)
		}
	}
}

// The share is never exceeded, whatever is taken, and both kinds of keys survive a
// snapshot.
func TestMemoryUntrustedShareIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := newFakeClock()
		o := &penstock.MemoryOptions{
			MaxKeys: rapid.IntRange(1, 60).Draw(rt, "max keys"), UntrustedShare: rapid.Float64Range(0.01, 1.5).Draw(rt, "share"),
			Now: clock.now, Durable: true,
		}
		most := int64(min(o.UntrustedShare, 1) * float64(o.MaxKeys))
		store := penstock.NewMemory(o)
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				l, err := penstock.ParseLimit(rapid.SampledFrom(everyAlgorithm).Draw(rt, "limit"))
				if err != nil {
					rt.Fatal(err)
				}
				l.Untrusted = rapid.Bool().Draw(rt, "untrusted")
				r := penstock.Request{Key: strconv.Itoa(rapid.IntRange(0, 99).Draw(rt, "key")), Limit: l, Cost: 1}
				if rapid.Bool().Draw(rt, "with an ID") {
					r.ID = "id"
				}
				_, _ = store.Take(ctx, r) // a full store cannot record the ID
			},
			"advance": func(rt *rapid.T) {
				clock.advance(time.Duration(rapid.IntRange(0, 90).Draw(rt, "minutes")) * time.Minute)
			},
			"restore": func(rt *rapid.T) {
				before := store.Stats()
				store = restoreMemory(t, snapshot(t, store), o)
				if after := store.Stats(); after.Keys > before.Keys || after.UntrustedKeys > before.UntrustedKeys {
					rt.Fatalf("before a restart %+v, after it %+v", before, after)
				}
			},
			"": func(rt *rapid.T) {
				if got := store.Stats(); got.UntrustedKeys > most || got.Keys > int64(o.MaxKeys) || got.UntrustedKeys > got.Keys {
					rt.Fatalf("%+v, want at most %d keys, of which %d untrusted", got, o.MaxKeys, most)
				}
			},
		})
	})
}

// A snapshot restores the states of equal limits of which one is untrusted.
func TestRestoreMemoryKeepsUntrustedLimitsApart(t *testing.T) {
	o := &penstock.MemoryOptions{Now: newFakeClock().now, Durable: true, MaxKeys: 100}
	for _, text := range everyAlgorithm {
		store := penstock.NewMemory(o)
		takeFive(t, limiter(t, store, text), "a")
		takeFive(t, untrustedLimiter(t, store, text), "b")
		restored := restoreMemory(t, snapshot(t, store), o)
		if got := restored.Stats(); got.Keys != 2 || got.UntrustedKeys != 1 {
			t.Errorf("%s: %+v, want two keys, one untrusted", text, got)
		}
		expectDenied(t, limiter(t, restored, text), "a")
		expectRemaining(t, untrustedLimiter(t, restored, text), "a", 5)
		expectDenied(t, untrustedLimiter(t, restored, text), "b")
		expectRemaining(t, limiter(t, restored, text), "b", 5)
	}
}
