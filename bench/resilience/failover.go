package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

func (b *bench) sentinelFailover() error {
	s, err := startSentinel()
	if err != nil {
		return err
	}
	defer s.stop()
	old := s.servers[0].Addr[strings.LastIndex(s.servers[0].Addr, ":")+1:]
	return b.failover("Sentinel", s, s.allowSentinelFailover, func() bool {
		for _, sentinel := range s.sentinels {
			named, err := sentinel.Command("SENTINEL", "get-master-addr-by-name", masterName)
			if err == nil && !strings.Contains(named, old) {
				return true
			}
		}
		return false
	})
}

func (b *bench) clusterFailover() error {
	s, err := startCluster()
	if err != nil {
		return err
	}
	defer s.stop()
	return b.failover("Cluster", s, s.allowClusterFailover, func() bool {
		role, err := s.servers[shards].Command("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
}

// stableFor is how long all shards must be up to count as recovered.
const stableFor = 500 * time.Millisecond

// awaitRecovery waits until all shards have been up for a while.
func awaitRecovery(f *penstock.Fallback) error {
	since := time.Now()
	return waitUntil("all shards are up", func() bool {
		if down, _ := f.Down(); down > 0 {
			since = time.Now()
		}
		return time.Since(since) >= stableFor
	})
}

// failover kills the first server under load, and measures the time from its replacement
// until all shards are up. In a Cluster the replica reports its promotion itself; with
// Sentinel the sentinels do, up to a second later. The replacement is allowed when callers have met
// the outage: a machine that stalls must not be taken for one, nor hide it.
func (b *bench) failover(title string, s *servers, allow func() error, replaced func() bool) error {
	store, err := s.open(usual)
	if err != nil {
		return err
	}
	w := &outageTimer{}
	fallback := penstock.WithFallback(store, nil, nil)
	lim, err := limiter(fallback, "1000000/1s")
	if err != nil {
		return err
	}
	var stop atomic.Bool
	done := make(chan *counts)
	go func() {
		total := &counts{}
		total.run(16, func(caller int, _ time.Time) {
			rng := rand.New(rand.NewPCG(uint64(caller), 3))
			for !stop.Load() {
				total.record(w.take(lim, strconv.Itoa(rng.IntN(1000))))
				<-time.After(2 * time.Millisecond)
			}
		})
		done <- total
	}()
	<-time.After(b.span / 5)
	s.servers[0].Kill()
	killed := time.Now()
	err = waitUntil("the fallback decides", func() bool { return w.fallback.Load() >= killed.UnixNano() })
	if err == nil {
		err = allow()
	}
	if err == nil {
		err = waitUntil("another primary is promoted", replaced)
	}
	promoted := time.Now()
	if err == nil {
		err = awaitRecovery(fallback)
	}
	back := time.Since(promoted) - stableFor
	stop.Store(true)
	t := <-done
	if err != nil {
		return err
	}
	b.findings.Add("failover, "+title, "exact again ≤ 1 s after the new primary, no caller sees an error",
		back <= time.Second && t.errors.Load() == 0,
		"%.2f s after it, %.1f s after the old one was killed; %d errors in %d calls",
		max(back, 0).Seconds(), promoted.Sub(killed).Seconds()+max(back, 0).Seconds(), t.errors.Load(), t.decisions.Load())
	return nil
}
