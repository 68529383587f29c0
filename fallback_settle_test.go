package penstock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A settlement goes to the store that granted the ID. What the primary does not get is
// kept in the ledger, and charged when it is up again.
func TestFallbackSettlesAtTheStoreThatGranted(t *testing.T) {
	limit := penstock.PerHour(100)
	take := penstock.Request{Key: "key", Limit: limit, Cost: 40, ID: "x"}
	settle := penstock.Request{Key: "key", Limit: limit, Cost: 10, ID: "x", Settle: true}
	for _, c := range []struct {
		name            string
		takeDown        bool // whether the primary is down at the take
		settleDown      bool // and at the settlement
		loseTakeAnswer  bool
		wantSource      penstock.Source
		wantPrimaryUsed int64
	}{
		{name: "both up", wantPrimaryUsed: 10},
		{name: "settled while down", settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
		{name: "taken while down", takeDown: true, wantPrimaryUsed: 10},
		{name: "both down", takeDown: true, settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
		{name: "answer lost, settled while down", loseTakeAnswer: true, settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := penstock.NewMemory(nil)
				primary := &remoteStore{store: memory}
				fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
				primary.down.Store(c.takeDown)
				if c.loseTakeAnswer {
					primary.loseResponse = func([]penstock.Request) bool { return true }
				}
				if d, err := fallback.Take(ctx, take); err != nil || d.Granted != 40 {
					t.Fatalf("take: got %v, %v", d, err)
				}
				primary.loseResponse = nil
				primary.down.Store(c.settleDown)
				if !c.settleDown {
					waitUntilUp(t, fallback)
				} else {
					_, _ = fallback.Take(ctx, penstock.Request{Key: "key", Limit: limit}) // notices that it is down
				}
				d, err := fallback.Take(ctx, settle)
				if err != nil || !d.Allowed || d.Granted != 10 || d.Source != c.wantSource {
					t.Errorf("settle: got %v, %v, want 10 granted by the %v", d, err, c.wantSource)
				}
				primary.down.Store(false)
				waitUntilUp(t, fallback)
				peek, err := memory.Take(ctx, penstock.Request{Key: "key", Limit: limit})
				if used := peek.Limit - peek.Remaining; err != nil || used != c.wantPrimaryUsed {
					t.Errorf("the primary has %d units used, %v, want %d", used, err, c.wantPrimaryUsed)
				}
			})
		})
	}
}

// waitUntilUp lets the fallback find out that the primary is up, and charge its ledger.
func waitUntilUp(t *testing.T, f *penstock.Fallback) {
	t.Helper()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if down, _ := f.Down(); down == 0 {
			synctest.Wait()
			return
		}
	}
	t.Fatal("the primary stays down")
}

// If neither store knows the ID, the error is ErrUnknownID, and the store is not down.
func TestFallbackReturnsUnknownID(t *testing.T) {
	primary := &remoteStore{store: penstock.NewMemory(nil)}
	fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
	settle := penstock.Request{Key: "key", Limit: penstock.PerHour(100), Cost: 10, ID: "x", Settle: true}
	for range 10 {
		if d, err := fallback.Take(ctx, settle); !errors.Is(err, penstock.ErrUnknownID) {
			t.Fatalf("settle: got %v, %v, want ErrUnknownID", d, err)
		}
		if err := penstock.SettleAll(ctx, fallback, []penstock.Request{settle}, make([]penstock.Decision, 1)); !errors.Is(err, penstock.ErrUnknownID) {
			t.Fatalf("settle all: got %v, want ErrUnknownID", err)
		}
	}
	if down, _ := fallback.Down(); down > 0 {
		t.Error("unknown IDs count as failures of the store")
	}
}

// A settlement that refunds units drops the denial of its key.
func TestDenyCacheDropsDenialAfterSettlement(t *testing.T) {
	cache := penstock.WithDenyCache(penstock.NewMemory(nil), nil)
	limit := penstock.PerHour(10)
	for _, amount := range []int64{0, 3} {
		key := string(rune('a' + amount))
		take := penstock.Request{Key: key, Limit: limit, Cost: 10, ID: "x"}
		one := penstock.Request{Key: key, Limit: limit, Cost: 1}
		settle := take
		settle.Cost, settle.Settle = amount, true
		for i, r := range []penstock.Request{take, one, one, settle, one} {
			d, err := cache.Take(ctx, r)
			if wantDenied := i == 1 || i == 2; err != nil || d.Allowed == wantDenied {
				t.Errorf("settled to %d: request %d: got %v, %v", amount, i, d, err)
			}
		}
	}
}

// A settlement passes a lease, and is not answered from leased units.
func TestLeasePassesSettlements(t *testing.T) {
	memory := penstock.NewMemory(nil)
	lease := penstock.WithLease(memory, nil)
	limit := penstock.PerHour(1000)
	take := penstock.Request{Key: "key", Limit: limit, Cost: 100, ID: "x"}
	settle := take
	settle.Cost, settle.Settle = 30, true
	for _, r := range []penstock.Request{take, {Key: "key", Limit: limit, Cost: 1}, settle} {
		if d, err := lease.Take(ctx, r); err != nil || !d.Allowed {
			t.Fatalf("%+v: got %v, %v", r, d, err)
		}
	}
	if err := lease.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := memory.Take(ctx, penstock.Request{Key: "key", Limit: limit}); err != nil || d.Remaining != 1000-31 {
		t.Errorf("got %v, %v, want 31 units used", d, err)
	}
}
