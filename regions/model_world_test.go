package regions

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// A world is a home, regions that are some way from it, and what all of them together granted. Its time is that of a
// synctest bubble, and home's clock is right.
type world struct {
	limit    penstock.Limit
	settings Settings
	regions  []*region
	home     *penstock.Memory
	rng      *rand.Rand
	batches  bool // some requests come in batches
	mutation

	mu       sync.Mutex
	granted  []grant
	asked    int
	allowed  int
	errors   int
	delays   []time.Duration
	homeGot  int // calls that arrived
	restored int // pools that came back with an older state
}

// A grant is what was spent, and when.
type grant struct {
	at    time.Time
	units int64
}

// A mutation takes out a safeguard. All regions have it.
type mutation struct {
	nothingFree  bool // home keeps nothing free
	lateDeposits bool // a lot is accepted whatever its claim
	pendingFree  bool // a claim asks for a whole pool, whatever is left
	endless      bool // units outlive their window
	absentIsFull bool // a lost pool is a full one
	eachProcess  bool // every process has its own pool
}

// A region has processes, which share pools, and a clock of its own.
type region struct {
	world                     *world
	pools                     *MemoryPools
	toHome, toPool, toDeposit link
	stores                    []*Store

	offset time.Duration // of its clock
	drift  float64
	began  time.Time
}

func (r *region) now() time.Time {
	since := time.Since(r.began)
	return time.Now().Add(r.offset + time.Duration(float64(since)*r.drift))
}

// A link is a network: calls take their time, and are lost.
type link struct {
	rng       *rand.Rand
	mu        *sync.Mutex
	roundTrip time.Duration
	loss      float64 // of requests, and of responses
	late      float64 // of requests that arrive after their caller has given up
	cut       bool    // nothing arrives
	deaf      bool    // requests arrive, responses do not
}

// lateBy is how long a late request takes: longer than a claim is valid.
const lateBy = 3 * time.Second

// call performs a call, if it arrives, and returns an error if the response does not.
func (l *link) call(ctx context.Context, timeout time.Duration, perform func()) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.mu.Lock()
	way := time.Duration(float64(l.roundTrip) / 2 * (0.9 + l.rng.Float64()/5))
	lost, unanswered := l.cut || l.rng.Float64() < l.loss, l.deaf || l.rng.Float64() < l.loss
	late := l.rng.Float64() < l.late
	l.mu.Unlock()
	unavailable := fmt.Errorf("link: %w", penstock.ErrUnavailable)
	switch {
	case lost:
		<-ctx.Done()
		return unavailable
	case late:
		go func() {
			sleep(lateBy)
			perform()
		}()
		<-ctx.Done()
		return unavailable
	}
	sleep(way)
	perform()
	if unanswered {
		<-ctx.Done()
		return unavailable
	}
	sleep(way)
	return nil
}

// farHome is home as a region sees it.
type farHome struct{ *region }

func (h farHome) Take(ctx context.Context, r penstock.Request) (d penstock.Decision, err error) {
	// The response is shared with a call that may be performed after this one has returned.
	var answer struct {
		sync.Mutex
		d   penstock.Decision
		err error
	}
	w := h.world
	if w.nothingFree {
		r.KeepFree = 0
	}
	perform := func() {
		d, err := w.home.Take(context.Background(), r)
		w.mu.Lock()
		w.homeGot++
		if !r.AtMost && d.Granted > 0 && r.Limit == w.limit { // otherwise it is a lot, which is spent later, or a probe
			w.granted = append(w.granted, grant{time.Now(), d.Granted})
		}
		w.mu.Unlock()
		answer.Lock()
		answer.d, answer.err = d, err
		answer.Unlock()
	}
	if err := h.toHome.call(ctx, HomeTimeout, perform); err != nil {
		return d, err
	}
	answer.Lock()
	defer answer.Unlock()
	return answer.d, answer.err
}

// regionPools are the pools as a process of the region sees them.
type regionPools struct {
	*region
	pools *MemoryPools
}

func (p regionPools) Spend(ctx context.Context, key string, a Ask) (Spent, error) {
	var mu sync.Mutex
	var s Spent
	err := p.toPool.call(ctx, defaultPoolTimeout, func() {
		found := p.spend(ctx, key, a)
		mu.Lock()
		defer mu.Unlock()
		s = found
	})
	mu.Lock()
	defer mu.Unlock()
	return s, err
}

func (p regionPools) spend(ctx context.Context, key string, a Ask) Spent {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.absentIsFull && p.pools.pools[key] == nil {
		p.pools.pools[key] = &memoryPool{pool: pool{left: a.Hold, fill: a.Hold}, idle: p.now().Add(poolIdle)}
	}
	s, _ := p.pools.Spend(ctx, key, a)
	if s.Want > 0 && w.pendingFree {
		s.Want = a.Hold
		p.pools.pools[key].want = a.Hold
	}
	if s.Granted > 0 {
		w.granted = append(w.granted, grant{time.Now(), s.Granted})
	}
	return s
}

func (p regionPools) Deposit(ctx context.Context, key string, l Lot) (ok bool, err error) {
	err = p.toDeposit.call(ctx, defaultPoolTimeout, func() {
		w := p.world
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.endless {
			l.End = 0
		}
		accepted, _ := p.pools.Deposit(context.Background(), key, l)
		if known := p.pools.pools[key]; !accepted && w.lateDeposits && known != nil {
			known.left += l.Units
		}
	})
	return err == nil, err
}

// newWorld returns a world in which each region is so far from home.
func newWorld(t testing.TB, seed uint64, l penstock.Limit, s Settings, m mutation, processes int, roundTrips ...time.Duration) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{limit: l, settings: s, mutation: m, rng: rng, home: penstock.NewMemory(nil)}
	for _, d := range roundTrips {
		r := &region{world: w, began: time.Now()}
		r.pools = NewMemoryPools(r.now)
		r.toHome = link{rng: rng, mu: &w.mu, roundTrip: d}
		r.toPool = link{rng: rng, mu: &w.mu, roundTrip: 500 * time.Microsecond}
		r.toDeposit = r.toPool
		for range processes {
			pools := r.pools
			if m.eachProcess {
				pools = NewMemoryPools(r.now)
			}
			store, err := New(penstock.NewMemory(nil), regionPools{r, pools}, farHome{r}, &Options{
				Regions: len(roundTrips), RoundTrip: maxOf(roundTrips),
				Global: func(penstock.Limit) (Settings, bool) { return s, true },
			})
			if err != nil {
				t.Fatal(err)
			}
			r.stores = append(r.stores, store)
		}
		w.regions = append(w.regions, r)
	}
	return w
}

func maxOf(ds []time.Duration) (most time.Duration) {
	for _, d := range ds {
		most = max(most, d)
	}
	return most
}

// request sends a request to a process of a region.
func (w *world) request(r *region, cost int64) {
	store := r.stores[w.intN(len(r.stores))]
	began := time.Now()
	if w.batches && w.intN(4) == 0 { // it may spend what it finds twice
		r := penstock.Request{Key: "key", Limit: w.limit, Cost: cost}
		_ = store.TakeEach(context.Background(), []penstock.Request{r, r, r}, make([]penstock.Decision, 3))
	}
	d, err := store.Take(context.Background(), penstock.Request{Key: "key", Limit: w.limit, Cost: cost})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	w.delays = append(w.delays, time.Since(began))
	switch {
	case err != nil:
		w.errors++
	case d.Allowed:
		w.allowed += int(cost)
	}
}

func (w *world) intN(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (w *world) exp() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.ExpFloat64()
}

// load sends requests to the regions until an instant, at rates a second that may change. It returns when all were
// answered.
func (w *world) load(until time.Time, cost int64, rate func(region int, at time.Duration) float64) {
	var all sync.WaitGroup
	began := time.Now()
	for i, r := range w.regions {
		all.Go(func() {
			for time.Now().Before(until) {
				now := rate(i, time.Since(began))
				if now <= 0 {
					sleep(100 * time.Millisecond)
					continue
				}
				sleep(min(time.Duration(w.exp()/now*1e9), time.Second))
				all.Go(func() { w.request(r, cost) })
			}
		})
	}
	all.Wait()
}

// keepPools returns what the pools of a region have now, and restorePools brings that back.
func (r *region) keepPools() map[string]*memoryPool {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	kept := maps.Clone(r.pools.pools)
	for key, p := range kept {
		copied := *p
		kept[key] = &copied
	}
	return kept
}

func (r *region) restorePools(kept map[string]*memoryPool) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.pools.pools = kept
}

// over returns by how much the grants exceeded the bound of the limit on one store, in units.
func (w *world) over() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.limit.Normal()
	switch {
	case n.IsBucket():
		return overBucket(n, w.granted)
	case n.Algorithm == penstock.FixedWindow:
		return overWindows(n, w.granted)
	case n.Algorithm == penstock.SlidingWindow:
		return overPeriod(n.Period, 2*n.Count-2, w.granted)
	}
	return overPeriod(n.Period, n.Count, w.granted)
}

// overBucket is for Burst + rate·T in any time T: a bucket that never denies must not overflow.
func overBucket(n penstock.Limit, all []grant) (most int64) {
	interval := n.Period / time.Duration(n.Count)
	var full time.Time // when the bucket is full again
	for _, g := range all {
		if full.Before(g.at) {
			full = g.at
		}
		full = full.Add(time.Duration(g.units) * interval)
		used := int64((full.Sub(g.at) + interval - 1) / interval)
		most = max(most, used-n.Burst)
	}
	return most
}

// overWindows is for Count in each window of home's clock.
func overWindows(n penstock.Limit, all []grant) (most int64) {
	used := map[time.Time]int64{}
	for _, g := range all {
		start, _ := n.Window(g.at)
		used[start] += g.units
		most = max(most, used[start]-n.Count)
	}
	return most
}

// overPeriod is for a bound on any period.
func overPeriod(period time.Duration, bound int64, all []grant) (most int64) {
	first, sum := 0, int64(0)
	for _, g := range all {
		for sum += g.units; g.at.Sub(all[first].at) >= period; first++ {
			sum -= all[first].units
		}
		most = max(most, sum-bound)
	}
	return most
}
