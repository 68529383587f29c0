package regions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
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
	claims             claims
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
		regions: o.Regions, roundTrip: o.RoundTrip, timeout: o.Timeout, global: o.Global,
	}
	if s.roundTrip <= 0 {
		s.roundTrip = defaultRoundTrip
	}
	if s.timeout <= 0 {
		s.timeout = HomeTimeout
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
	if _, ok := home.(penstock.ShardedStore); ok {
		return home
	}
	return penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		err := penstock.TakeBatch(ctx, home, rs, ds, all)
		for i := range ds[:len(rs)] {
			if err == nil && ds[i].Source == penstock.SourceFallback {
				err = fmt.Errorf("regions: home decides without its store: %w", penstock.ErrUnavailable)
			}
		}
		return err
	})
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
	targets := make([]target, len(rs))
	global := false
	for i := range rs {
		var err error
		if targets[i], err = s.targetOf(&rs[i]); err != nil {
			return &penstock.RequestError{Index: i, Err: err}
		}
		global = global || targets[i].place != inStore
	}
	switch {
	case !global:
		return penstock.TakeBatch(ctx, s.local, rs, ds, all)
	case all && len(rs) > 1:
		return s.takeAll(ctx, rs, ds, targets)
	}
	return s.takeEach(ctx, rs, ds, targets)
}

func (s *Store) takeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, targets []target) error {
	for i := range rs {
		if targets[i].place == inStore {
			continue // all together, below
		}
		if err := s.takeOne(ctx, &rs[i], &ds[i], targets[i]); err != nil {
			return &penstock.RequestError{Index: i, Err: err}
		}
	}
	return newGroup(rs, ds, targets, inStore).take(ctx, s.local, false)
}

// takeOne decides a request under a global limit.
func (s *Store) takeOne(ctx context.Context, r *penstock.Request, d *penstock.Decision, t target) (err error) {
	if t.place == inPool {
		*d, err = s.spend(ctx, r, t.globalLimit)
	} else {
		*d, err = s.takeAtHome(ctx, *r, t.globalLimit)
	}
	return err
}

// takeAtHome lets home decide, or what replaces it while it does not answer.
func (s *Store) takeAtHome(ctx context.Context, r penstock.Request, g *globalLimit) (penstock.Decision, error) {
	if r.Cost > 0 {
		s.stats.atHome.Add(1)
	}
	return s.fallback.Take(ctx, g.keptFree(r))
}

// maxWaits is how many lots a request waits for. Lots double while they are too small, so after so many the pool
// is as large as it may be.
const maxWaits = 4

// spend takes units from the pool. A request that finds too few waits for a lot, unless home had too little when it
// was last asked: then it is denied at once.
func (s *Store) spend(ctx context.Context, r *penstock.Request, g *globalLimit) (penstock.Decision, error) {
	key := g.poolKey(r.Key)
	var spent Spent
	var err error
	for waits := 0; waits < maxWaits && !(g.Slow && waits == 2); waits++ {
		claim := newClaim()
		spent, err = s.pools.Spend(ctx, key, Ask{
			Cost: r.Cost, AtMost: r.AtMost, Hold: g.Hold, Age: g.settings.Age,
			Claim: claim, ClaimFor: 2 * s.timeout,
		})
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return penstock.Decision{}, err // it would never work
		case err != nil: // the region's store is down, and home need not be
			return s.takeAtHome(ctx, *r, g)
		}
		s.stats.spent.Add(spent.Granted)
		var lot <-chan struct{}
		if spent.Want > 0 {
			own := strings.Clone(r.Key) // the caller may reuse the memory of its request
			lot = s.claims.start(key, func() { s.refill(own, key, g, claim, spent) })
		} else if spent.Asked {
			lot = s.claims.inFlight(key, s.roundTrip)
		}
		switch {
		case spent.Granted == r.Cost && (r.Cost > 0 || spent.known()) || spent.Granted > 0:
			return s.granted(g, spent), nil
		case r.Cost > 0 && spent.Scarce && !s.homeDown():
			return s.denied(g, spent), nil
		case lot == nil || r.Cost == 0 || s.homeDown():
			return s.takeAtHome(ctx, *r, g)
		}
		select {
		case <-lot:
		case <-ctx.Done():
			return penstock.Decision{}, fmt.Errorf("regions: wait for units of home: %w", ctx.Err())
		}
	}
	if g.Slow { // pools cannot carry its rate
		return s.takeAtHome(ctx, *r, g)
	}
	return s.denied(g, spent), nil
}

// known reports whether a pool knows anything of its key.
func (s Spent) known() bool { return s.Left > 0 || s.Scarce || s.HomeReset > 0 }

// homeDown reports whether home does not answer.
func (s *Store) homeDown() bool {
	down, _ := s.fallback.Down()
	return down > 0
}

func (s *Store) granted(g *globalLimit, spent Spent) penstock.Decision {
	return penstock.Decision{
		Allowed: true, Granted: spent.Granted, Limit: g.capacity,
		Remaining: g.remaining(spent), ResetAfter: spent.HomeReset,
	}
}

func (s *Store) denied(g *globalLimit, spent Spent) penstock.Decision {
	retry := max(spent.Wait, time.Millisecond)
	if spent.Asked || spent.Want > 0 {
		retry = s.roundTrip
	}
	return penstock.Decision{Limit: g.capacity, Remaining: g.remaining(spent), RetryAfter: retry, ResetAfter: max(spent.HomeReset, retry)}
}

// refill asks home for a lot, and puts it into the pool. Nothing is repeated: what is lost on the way stays charged, and
// is never spent.
func (s *Store) refill(key, poolKey string, g *globalLimit, claim string, spent Spent) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	lot, ok := s.ask(ctx, key, g, spent)
	lot.Claim = claim
	s.stats.claim(lot, ok)
	accepted, err := s.pools.Deposit(context.Background(), poolKey, lot)
	if lot.Units > 0 && (err != nil || !accepted) {
		s.stats.lost.Add(lot.Units)
	}
	if !ok { // the breaker learns of it by a request that charges nothing
		go func() { _, _ = s.fallback.Take(context.Background(), penstock.Request{Key: key, Limit: g.limit}) }()
	}
}

// ask asks home for a lot. It is not ok if home did not answer: then nothing is asked for while home is down, because
// it may have granted what does not arrive.
func (s *Store) ask(ctx context.Context, key string, g *globalLimit, spent Spent) (lot Lot, ok bool) {
	lot = Lot{Scarce: spent.Scarce, Pause: homeRetry, HomeLeft: spent.HomeLeft, HomeReset: spent.HomeReset}
	if s.homeDown() {
		return lot, false
	}
	d, err := s.home.Take(ctx, g.keptFree(penstock.Request{Key: key, Limit: g.limit, Cost: spent.Want, AtMost: true}))
	if err != nil {
		return lot, false
	}
	lot.Units, lot.HomeLeft, lot.HomeReset = d.Granted, d.Remaining, min(d.ResetAfter, poolIdle)
	lot.Scarce, lot.Pause = d.Granted < spent.Want, 0
	if lot.Scarce {
		lot.Pause = g.Pause
	}
	if d.Granted == 0 {
		lot.Pause = max(min(d.RetryAfter, maxPause), g.Pause)
	}
	if g.Ends {
		lot.End = spent.At + endOf(d.ResetAfter)
	}
	return lot, true
}

// maxPause is how long a region does not ask a home that had nothing: so much later it notices a refund or a reset there.
const maxPause = 5 * time.Second

// endOf returns for how long units of a window can be spent, from before home was asked: until the window ends, less what
// home rounds up, and less what the region's clock may run slow.
func endOf(resetAfter time.Duration) time.Duration {
	const drift = 1000
	rest := resetAfter - time.Millisecond
	return max(rest-rest/drift, 1)
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

	HomeDown bool // whether home does not answer now
}

type counters struct{ spent, atHome, claims, short, failed, units, lost atomic.Int64 }

func (c *counters) claim(l Lot, ok bool) {
	c.claims.Add(1)
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
		Claims: c.claims.Load(), Units: c.units.Load(), Lost: c.lost.Load(), HomeDown: s.homeDown(),
	}
}

// remaining returns what could be granted now, as far as the region knows.
func (g *globalLimit) remaining(spent Spent) int64 {
	free := max(spent.HomeLeft-g.KeepFree, 0)
	return min(spent.Left+min(free, math.MaxInt64-spent.Left), g.capacity)
}
