//go:build integration

package regions_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/regions"
)

// A realRegion is a Redis, two processes on it, and the way to home, which a test breaks.
type realRegion struct {
	server *redistest.Server
	toHome *redistest.Proxy
	stores []*regions.Store
	dying  *dyingPools // of the second process
}

// dyingPools are those of a process that dies with what home granted it, while it is dead.
type dyingPools struct {
	regions.Pools
	dead atomic.Bool
	lost atomic.Int64
}

func (p *dyingPools) Deposit(ctx context.Context, key string, l regions.Lot) (bool, error) {
	if p.dead.Load() {
		p.lost.Add(l.Units)
		return true, nil
	}
	return p.Pools.Deposit(ctx, key, l)
}

func openRedis(t *testing.T, address string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(ctx, "redis://"+address, &redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// startRegions starts a home and three regions, which are 1, 80 and 200 ms from it.
func startRegions(t *testing.T) (all []*realRegion) {
	home := redistest.StartForTest(t, redistest.Options{})
	for _, trip := range []time.Duration{1, 80, 200} {
		r := &realRegion{server: redistest.StartForTest(t, redistest.Options{}), toHome: redistest.StartProxy(t, home.Addr)}
		for range 2 {
			local := openRedis(t, r.server.Addr, 5*time.Second)
			r.dying = &dyingPools{Pools: regions.RedisPools(local, 5*time.Second)}
			s, err := regions.New(local, r.dying, openRedis(t, r.toHome.Addr, regions.HomeTimeout), &regions.Options{Regions: 3, RoundTrip: 200 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			r.stores = append(r.stores, s)
		}
		r.toHome.Delay(trip * time.Millisecond)
		all = append(all, r)
	}
	return all
}

// A realLoad counts what requests to regions were granted.
type realLoad struct {
	limit   penstock.Limit
	asked   atomic.Int64
	granted atomic.Int64
	mu      sync.Mutex
	delays  []time.Duration
}

// run has callers in each region for a time, and then waits for their last answers.
func (l *realLoad) run(t *testing.T, length time.Duration, all ...*realRegion) (granted int64) {
	t.Helper()
	before := l.granted.Load()
	end := time.Now().Add(length)
	var callers sync.WaitGroup
	for _, r := range all {
		for n := range 4 * len(r.stores) {
			callers.Go(func() {
				for pace := time.NewTicker(20 * time.Millisecond); time.Now().Before(end); <-pace.C {
					l.take(t, r.stores[n%len(r.stores)])
				}
			})
		}
	}
	callers.Wait()
	return l.granted.Load() - before
}

func (l *realLoad) take(t *testing.T, s *regions.Store) {
	began := time.Now()
	d, err := s.Take(ctx, penstock.Request{Key: "key", Limit: l.limit, Cost: 1})
	if err != nil {
		t.Error(err)
		return
	}
	l.asked.Add(1)
	l.granted.Add(d.Granted)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delays = append(l.delays, time.Since(began))
}

// Real servers, links that are cut and half open, a process that dies between charge and deposit, and a region that
// loses its state: all regions together keep the limit, and go on granting.
func TestIntegrationRegionsKeepTheBoundOnRedis(t *testing.T) {
	all := startRegions(t)
	near, middle, far := all[0], all[1], all[2]
	l := &realLoad{limit: penstock.PerMinute(6000).WithBurst(1200)} // each region holds 48
	began := time.Now()
	l.run(t, 2*time.Second, all...)

	if frozen := far.toHome.Freeze(); frozen == 0 {
		t.Error("no connection was frozen")
	}
	l.run(t, 3*time.Second, all...)
	far.toHome.Thaw()
	far.toHome.CutAll()

	for range 5 {
		middle.toHome.CutReplyAfter(0, true)
		l.run(t, 500*time.Millisecond, all...)
	}
	if middle.toHome.Cuts() == 0 {
		t.Error("no answer of home was cut")
	}

	near.dying.dead.Store(true)
	l.run(t, 4*time.Second, near)
	near.dying.dead.Store(false)
	if near.dying.lost.Load() == 0 {
		t.Error("no lot was lost with a process")
	}

	redistest.MustCommand(t, middle.server, "FLUSHALL")
	if granted := l.run(t, 5*time.Second, all...); granted < 100 {
		t.Errorf("regions granted %d units in the last five seconds, of 500", granted)
	}
	most := 1200 + int64(time.Since(began).Seconds()*100) + 1
	if granted := l.granted.Load(); granted > most {
		t.Errorf("granted %d, which is more than %d", granted, most)
	}
	slices.Sort(l.delays)
	t.Logf("%d requests, %d granted of at most %d; median %v, p99 %v; far region: %+v",
		l.asked.Load(), l.granted.Load(), most, l.delays[len(l.delays)/2], l.delays[len(l.delays)*99/100], far.stores[0].Stats())
}

// Twice the limit in the farthest of three regions uses the limit, by few calls to home, most of which no request waits for.
// How many requests there are in the time depends on the machine, so the figures are those of the requests that there were.
func TestIntegrationRegionsUseTheLimitOnRedis(t *testing.T) {
	all := startRegions(t)
	far := all[2]
	l := &realLoad{limit: penstock.PerMinute(6000)}
	for began := time.Now(); time.Since(began) < time.Minute; { // what an idle key has at first
		d, err := far.stores[0].Take(ctx, penstock.Request{Key: "key", Limit: l.limit, Cost: 200})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			break
		}
	}
	calls := func() (n int64) {
		for _, s := range far.stores {
			n += s.Stats().Claims + s.Stats().AtHome
		}
		return n
	}
	before, began := calls(), time.Now()
	granted := l.run(t, 20*time.Second, far)
	const lot = 240 // which home may still have, until the region asks again
	asked, due := l.asked.Load(), 100*time.Since(began).Seconds()
	per100 := 100 * float64(calls()-before) / float64(asked)
	slices.Sort(l.delays)
	t.Logf("%d requests; %d granted of %.0f; %.2f calls to home for 100 requests; median %v, p99 %v",
		asked, granted, due, per100, l.delays[len(l.delays)/2], l.delays[len(l.delays)*99/100])
	if asked >= 200*20 && (float64(granted+lot) < 0.95*due || per100 > 1) {
		t.Errorf("want 0.95 of the limit, and one call for 100 requests")
	}
}
