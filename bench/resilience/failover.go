package main

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

func (b *bench) sentinelFailover() error {
	s, err := startWatched()
	if err != nil {
		return err
	}
	defer s.stop()
	old := s.servers[0].Addr[strings.LastIndex(s.servers[0].Addr, ":")+1:]
	return b.failover("Sentinel", s, func() bool {
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
	return b.failover("Cluster", s, func() bool {
		role, err := s.servers[shards].Command("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
}

// steadily is for how long no shard may be away to count as back.
const steadily = 500 * time.Millisecond

// awaitBack waits until no shard has been away for a while.
func awaitBack(f *penstock.Fallback) error {
	since := time.Now()
	return until("no shard is away", func() bool {
		if away, _ := f.Down(); away > 0 {
			since = time.Now()
		}
		return time.Since(since) >= steadily
	})
}

// failover kills the first server under load, and sees how long after it was replaced
// no shard is away any more. A replica of a Cluster says so by itself. With Sentinel it
// is the sentinels who say it, up to a second after the replica knows.
func (b *bench) failover(title string, s *site, replaced func() bool) error {
	store, err := s.open(usual)
	if err != nil {
		return err
	}
	w := &watch{}
	fallback := penstock.WithFallback(store, nil, nil)
	lim, err := limiter(fallback, "1000000/1s")
	if err != nil {
		return err
	}
	var stop atomic.Bool
	done := make(chan *tally)
	go func() {
		total := &tally{}
		total.run(16, func(caller int, _ time.Time) {
			rng := rand.New(rand.NewPCG(uint64(caller), 3))
			for !stop.Load() {
				total.note(w.ask(lim, strconv.Itoa(rng.IntN(1000))))
				<-time.After(2 * time.Millisecond)
			}
		})
		done <- total
	}()
	<-time.After(b.span / 5)
	s.servers[0].Kill()
	killed := time.Now()
	err = until("there is another primary", replaced)
	promoted := time.Now()
	if err == nil {
		err = awaitBack(fallback)
	}
	back := time.Since(promoted) - steadily
	stop.Store(true)
	t := <-done
	switch {
	case err != nil:
		return err
	case w.fallback.Load() < killed.UnixNano():
		return errors.New("the fallback has decided nothing: there was no outage")
	}
	b.findings.Add("failover, "+title, "back to exact ≤ 1 s after the new primary, no caller sees an error",
		back <= time.Second && t.errors.Load() == 0,
		"%.2f s after it, %.1f s after the old one was killed; %d errors in %d calls",
		max(back, 0).Seconds(), promoted.Sub(killed).Seconds()+max(back, 0).Seconds(), t.errors.Load(), t.decisions.Load())
	return nil
}
