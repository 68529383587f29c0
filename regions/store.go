package regions

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/inflight"
)

// Options are the settings of a [Store]. All regions must have the same Regions, RoundTrip and Settings.
type Options struct {
	// Regions is how many regions share home, this one included. Required.
	Regions int

	// RoundTrip is the longest round trip to home of all regions. Default: 250 milliseconds.
	RoundTrip time.Duration

	// Timeout is how long a call to home may take. Default: 1 second.
	Timeout time.Duration

	// Global returns the settings of a limit that holds over all regions together, or false if each region
	// counts for itself. It must be safe for concurrent use. Default: all limits are global, but those that
	// remote callers chose.
	Global func(l penstock.Limit) (Settings, bool)

	// OnChange is called when home goes down or comes up, as that of a [penstock.Fallback].
	OnChange func(penstock.FallbackChange)
}

// HomeTimeout is the default of [Options.Timeout]. A home on Redis should have the same timeout, which is longer
// than the default of package redisstore.
const HomeTimeout = time.Second

const (
	defaultRoundTrip = 250 * time.Millisecond

	homeFailures = 2           // consecutive calls without an answer after which home counts as down
	homeRetry    = time.Second // between probes, and before a claim that follows a failed one
)

// A Store decides global limits in its region, with units of home, and all other limits by the region's own
// store. [New] makes one. It is safe for concurrent use and needs no Close.
type Store struct {
	penstock.BatchFunc
	local, home penstock.Store // home without the fallback
	pools       Pools
	fallback    *penstock.Fallback

	regions            int
	roundTrip, timeout time.Duration
	global             func(penstock.Limit) (Settings, bool)
	limits             limitCache
	claims             inflight.Keys[string] // of pools, which this process has in flight
	stats              counters
}

// New returns a store of one region. Limits that are not global are decided by local. The pools are shared by
// all processes of the region. Home owns the global limits of all regions; every region must reach the same one.
func New(local penstock.Store, pools Pools, home penstock.Store, o *Options) (*Store, error) {
	if local == nil || pools == nil || home == nil {
		return nil, errors.New("regions: want a local store, pools and a home store")
	}
	if o == nil || o.Regions < 1 {
		return nil, errors.New("regions: Options.Regions: want how many regions share home, this one included")
	}
	home = answering(home)
	s := &Store{
		local: local, home: home, pools: pools,
		regions: o.Regions, global: o.Global,
		roundTrip: defaults.Or(o.RoundTrip, defaultRoundTrip), timeout: defaults.Or(o.Timeout, HomeTimeout),
	}
	s.fallback = penstock.WithFallback(home, local, &penstock.FallbackOptions{
		Timeout: s.timeout, Failures: homeFailures, Retry: homeRetry,
		Share: 1 / float64(o.Regions), OnFailure: s.onFailure, OnChange: o.OnChange,
	})
	s.BatchFunc = s.decide
	return s, nil
}

// answering returns home such that what a daemon decides without its own store is no answer. The shards of a Redis
// never decide so.
func answering(home penstock.Store) penstock.Store {
	if _, ok := penstock.StoreAs[penstock.ShardedStore](home); ok {
		return home
	}
	return new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		err := penstock.TakeBatch(ctx, home, rs, ds, all)
		for i := range ds[:len(rs)] {
			if ds[i].Source == penstock.SourceFallback {
				ds[i], err = penstock.Decision{}, fmt.Errorf("regions: home decides without its store: %w", penstock.ErrUnavailable)
			}
		}
		return err
	}))
}

// onFailure is that of the fallback of home.
func (s *Store) onFailure(l penstock.Limit) (penstock.FailureMode, float64) {
	settings, _ := s.settingsOf(l)
	return failureModes[settings.OnPartition], 0
}

func (s *Store) settingsOf(l penstock.Limit) (Settings, bool) {
	switch {
	case l.Untrusted:
		return Settings{}, false
	case s.global == nil:
		return Settings{}, true
	}
	return s.global(l)
}

// A place is where a request is decided.
type place uint8

const (
	inStore place = iota // the region's own store: the limit is not global
	inPool
	atHome
)

// A target is where a request is decided, and by which sizes.
type target struct {
	place
	*globalLimit
}

// targetOf returns where a request is decided. Whatever needs more of a key than its units, such as an ID, a
// refund or a reset, needs home.
func (s *Store) targetOf(r *penstock.Request) (target, error) {
	settings, ok := s.settingsOf(r.Limit)
	if !ok {
		return target{}, nil
	}
	g, err := s.limits.of(r.Limit, settings, s.regions, s.roundTrip)
	if err != nil {
		return target{}, err
	}
	plain := r.ID == "" && !r.Overdraw && !r.Settle && r.MaxDelay == 0 && r.KeepFree == 0
	fits := r.Cost >= 0 && r.Cost <= g.Hold || r.AtMost && g.Hold > 0
	if plain && fits && g.Hold > 0 {
		return target{inPool, g}, nil
	}
	return target{atHome, g}, nil
}

// decide decides requests, each for itself or all or nothing.
func (s *Store) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	if err := penstock.ValidateBatch(rs, ds, all); err != nil {
		return err
	}
	b := &batch{rs, ds, make([]target, len(rs))}
	global := false
	for i := range rs {
		var err error
		if b.targets[i], err = s.targetOf(&rs[i]); err != nil {
			return &penstock.RequestError{Index: i, Err: err}
		}
		global = global || b.targets[i].place != inStore
	}
	switch {
	case !global:
		return penstock.TakeBatch(ctx, s.local, rs, ds, all)
	case all && len(rs) > 1:
		return s.takeAll(ctx, b)
	}
	return s.takeEach(ctx, b)
}

// takeEach decides requests independently, and waits for home no more often than one of them would.
func (s *Store) takeEach(ctx context.Context, b *batch) error {
	if err := s.spendEach(ctx, b, false); err != nil {
		return err
	}
	if err := s.takeAtHome(ctx, b.group(atHome), false); err != nil {
		return err
	}
	return b.group(inStore).take(ctx, s.local, false)
}

// takeAtHome lets home decide, or what replaces it while it does not answer.
func (s *Store) takeAtHome(ctx context.Context, g *group, all bool) error {
	for n, r := range g.rs {
		if r.Cost > 0 {
			s.stats.atHome.Add(1)
		}
		g.rs[n] = g.targets[n].keptFree(r)
	}
	return g.take(ctx, s.fallback, all)
}

// homeDown reports whether home does not answer.
func (s *Store) homeDown() bool {
	down, _ := s.fallback.Down()
	return down > 0
}

// Held returns what the region's pool has of a key under a global limit, and how long ago its last lot came.
func (s *Store) Held(ctx context.Context, key string, l penstock.Limit) (units int64, age time.Duration, err error) {
	t, err := s.targetOf(&penstock.Request{Key: key, Limit: l})
	if err != nil || t.place != inPool {
		return 0, 0, err
	}
	spent, err := s.pools.Spend(ctx, t.poolKey(key), Ask{Hold: t.Hold})
	return spent.Left, spent.Age, err
}

// Stats are what a [Store] counted since it was made, in this process.
type Stats struct {
	Spent  int64 // units that pools granted
	AtHome int64 // requests that home decided, or what replaced it
	Claims int64 // lots that home was asked for
	Short  int64 // … and had too little for
	Failed int64 // … and that got no answer
	Units  int64 // of the lots
	Lost   int64 // … that were spent in vain, or could not be put into a pool, and stay charged

	Age time.Duration // sum over all claims: how long before the pool had got its last lot

	HomeDown bool // whether home does not answer now
}

type counters struct{ spent, atHome, claims, short, failed, units, lost, age atomic.Int64 }

func (c *counters) claim(s Spent, l Lot, ok bool) {
	c.claims.Add(1)
	c.age.Add(int64(s.Age))
	c.units.Add(l.Units)
	switch {
	case !ok:
		c.failed.Add(1)
	case l.Scarce:
		c.short.Add(1)
	}
}

// Stats returns what the store counted.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{ // claims last: they are counted first, so that no fewer are seen than were short or failed
		Spent: c.spent.Load(), AtHome: c.atHome.Load(), Short: c.short.Load(), Failed: c.failed.Load(),
		Claims: c.claims.Load(), Units: c.units.Load(), Lost: c.lost.Load(), Age: time.Duration(c.age.Load()), HomeDown: s.homeDown(),
	}
}
