// The race detector empties pools at random, so that allocations cannot be counted.

//go:build !race

package redisstore_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

func TestStoreAllowAllocations(t *testing.T) {
	store := open(t, liveServer, redisstore.Options{Timeout: time.Minute})
	lim, err := penstock.New(store, penstock.PerHour(1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 100 { // connections are opened on first use
		if _, err := lim.Allow(cancelable, "user:42"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		ctx  context.Context
		most float64
	}{
		{"any context", context.Background(), 2},
		{"a cancelable context", cancelable, 5},
	} {
		got := math.Inf(1)
		for range 10 { // other goroutines allocate too, but not all the time
			got = min(got, testing.AllocsPerRun(500, func() {
				if d, err := lim.Allow(c.ctx, "user:42"); err != nil || !d.Allowed {
					t.Fatalf("Allow: got %+v, %v, want it allowed", d, err)
				}
			}))
		}
		if got > c.most {
			t.Errorf("Allow under %s: got %v allocations, want at most %v", c.name, got, c.most)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	store := open(b, liveServer, redisstore.Options{})
	lim, err := penstock.New(store, penstock.PerHour(1_000_000_000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := lim.Allow(context.Background(), "user:42"); err != nil {
				b.Error(err)
			}
		}
	})
}
