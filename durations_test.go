package penstock_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A time that is as long as can be is meant to be endless. One below zero means the default.
const (
	endless  = time.Duration(math.MaxInt64)
	negative = time.Duration(math.MinInt64)
	longTime = 360 * 24 * time.Hour // shorter than what is meant to be endless
)

func TestFallbackBearsEndlessAndNegativeTimes(t *testing.T) {
	for d, want := range map[time.Duration]int{endless: 1, negative: 0} {
		withFallback(t, penstock.FallbackOptions{Timeout: d, Retry: d}, func(s *fallbackFixture) {
			s.goDown()
			s.primary.down.Store(false)
			for range 4 { // calls, of which one begins a probe
				s.sleep(longTime / 4)
				allowOne(s.T, s.limiter("1000/1h"), "key")
				synctest.Wait()
			}
			if down, _ := s.fallback.Down(); down != want {
				s.Errorf("Retry %v: %d shards are down after %v, want %d", d, down, longTime, want)
			}
		})
	}
}

func TestLeaseBearsEndlessAndNegativeMaxAge(t *testing.T) {
	for _, d := range []time.Duration{endless, negative} {
		synctest.Test(t, func(t *testing.T) {
			store := &remoteStore{store: penstock.NewMemory(nil)}
			l := &leaseFixture{T: t, store: store, nodes: []*penstock.Lease{penstock.WithLease(store, &penstock.LeaseOptions{MaxAge: d})}}
			l.limit = "10000/1s burst=1500"
			if granted, leased := l.request(l.limiter(0), "key", 5000, 5000); granted != 5000 || leased < 4000 {
				t.Errorf("MaxAge %v: %d of 5000 were granted, %d by leases, want all, most by leases", d, granted, leased)
			}
			if err := l.nodes[0].Close(ctx); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * leaseAge) // for calls in flight
		})
	}
}

func TestDenyCacheBearsEndlessAndNegativeMaxAge(t *testing.T) {
	for d, want := range map[time.Duration]penstock.Source{endless: penstock.SourceDenyCache, negative: penstock.SourceStore} {
		synctest.Test(t, func(t *testing.T) {
			lim := limiter(t, penstock.WithDenyCache(penstock.NewMemory(nil), &penstock.DenyCacheOptions{MaxAge: d}), "1/8784h")
			allowOne(t, lim, "key")
			expectDenial(t, lim, penstock.SourceDenyCache)
			time.Sleep(longTime)
			expectDenial(t, lim, want)
		})
	}
}

func expectDenial(t *testing.T, lim *penstock.Limiter, by penstock.Source) {
	t.Helper()
	if d, err := lim.Allow(ctx, "key"); err != nil || d.Allowed || d.Source != by {
		t.Errorf("got %v, %v, want a denial by the %v", d, err, by)
	}
}

func TestWarmUpBearsEndlessAndNegativeTime(t *testing.T) {
	for d, want := range map[time.Duration]int64{endless: 3, negative: 9} {
		synctest.Test(t, func(t *testing.T) {
			lim := limiter(t, penstock.WithWarmUp(penstock.NewMemory(nil), d), "9/1s")
			expectGrants(t, lim, "cold", want)
			time.Sleep(longTime / 4)
			expectGrants(t, lim, "still cold", want)
		})
	}
}
