package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Whatever is taken, refunded and settled while the primary goes down and up: in the end it has
// charged what is in use, at least. Its limits are too large to deny, and too slow to refill.
func TestFallbackChargesWhatIsInUse(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 2))
	for i := range fixedseed.FewerUnderRace(250) {
		seed := rng.Uint64()
		synctest.Test(t, func(t *testing.T) {
			m := newFallbackModel(seed)
			m.run()
			if err := m.audit(); err != nil {
				t.Fatalf("case %d: %v\n%s", i, err, m.log)
			}
		})
	}
}

// A fallbackModel is a fallback whose primary fails now and then, and what its callers use.
type fallbackModel struct {
	seed     uint64
	isLossy  bool // responses are lost, and callers leave early
	primary  *lossyStore
	memory   *penstock.Memory
	fallback *penstock.Fallback
	limits   []penstock.Limit

	mu       sync.Mutex
	rng      *rand.Rand
	isEnding bool
	used     map[string]int64 // by key, without those under an ID
	log      string
}

func newFallbackModel(seed uint64) *fallbackModel {
	m := &fallbackModel{seed: seed, memory: penstock.NewMemory(nil), used: map[string]int64{}}
	m.primary = &lossyStore{store: m.memory, responseDelay: 3 * time.Millisecond}
	m.rng = rand.New(rand.NewPCG(seed, 1))
	if m.isLossy = seed%2 == 0; m.isLossy {
		m.primary.loseResponse = func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.isEnding && m.rng.IntN(6) == 0
		}
	}
	m.primary.onRequest = func(rs ...penstock.Request) {
		for _, r := range rs {
			m.mu.Lock()
			m.log += fmt.Sprintf("%v  primary %s %d id=%q overdraw=%v settle=%v\n", time.Now().Format("05.000"), stateName(r), r.Cost, r.ID, r.Overdraw, r.Settle)
			m.mu.Unlock()
		}
	}
	m.fallback = penstock.WithFallback(m.primary, nil, &penstock.FallbackOptions{Failures: 2, Retry: 20 * time.Millisecond})
	m.limits = []penstock.Limit{
		{Algorithm: penstock.FixedWindow, Count: 100_000, Period: time.Hour},
		{Algorithm: penstock.TokenBucket, Count: 100_000, Burst: 100_000, Period: 300 * 24 * time.Hour, Name: "bucket"},
	}
	return m
}

func (m *fallbackModel) run() {
	rng := rand.New(rand.NewPCG(m.seed, 0))
	var wg sync.WaitGroup
	for i := range 2 {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() { m.call(own, i) })
	}
	for range 6 {
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
		m.primary.down.Store(!m.primary.down.Load())
	}
	m.primary.down.Store(false)
	wg.Wait()
	m.mu.Lock()
	m.isEnding = true
	m.mu.Unlock()
	for range 20 {
		time.Sleep(100 * time.Millisecond)
		m.fallback.Down()
		_, _ = m.fallback.Take(context.Background(), penstock.Request{Key: "other", Limit: m.limits[0]})
	}
	synctest.Wait()
}

// A grantUnderID is what one ID of a caller has.
type grantUnderID struct {
	r       penstock.Request
	units   int64
	ended   bool
	settled bool
}

func (m *fallbackModel) call(rng *rand.Rand, caller int) {
	var grants []*grantUnderID
	for n := range 25 {
		time.Sleep(time.Duration(rng.IntN(12)) * time.Millisecond)
		r := penstock.Request{Key: []string{"x", "y"}[rng.IntN(2)], Limit: m.limits[rng.IntN(2)], Cost: 1 + rng.Int64N(9)}
		var g *grantUnderID
		if len(grants) > 0 {
			g = grants[rng.IntN(len(grants))]
		}
		batch := rng.IntN(3) == 0
		switch kind := rng.IntN(8); {
		case kind == 0:
			m.take(r, batch)
		case kind == 1:
			r.Overdraw = true
			m.take(r, batch)
		case kind == 2:
			r.Key = "z" // of which nothing is under an ID
			m.takeOrRefund(rng, r, batch)
		case kind == 3 || kind == 4 || g == nil || g.ended:
			r.ID = fmt.Sprint("id ", caller, n)
			r.Overdraw = rng.IntN(3) == 0
			g = &grantUnderID{r: r}
			grants = append(grants, g)
			m.takeID(g, batch)
		case g.settled:
			m.settle(g, rng.Int64N(12), batch)
		case kind == 5:
			m.takeID(g, batch)
		case kind == 6:
			m.refundID(g, batch)
		case kind == 7:
			m.settle(g, rng.Int64N(12), batch)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range grants {
		m.used[stateName(g.r)] += g.units
	}
}

func stateName(r penstock.Request) string { return r.Key + " " + r.Limit.Algorithm.String() }

// decide makes a call, alone or as a batch.
func (m *fallbackModel) decide(r penstock.Request, batch bool) (d penstock.Decision, err error) {
	ctx := context.Background()
	m.mu.Lock()
	if m.isLossy && m.rng.IntN(8) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(1+m.rng.IntN(5))*time.Millisecond)
		defer cancel()
		ctx = short
	}
	m.mu.Unlock()
	if batch {
		ds := make([]penstock.Decision, 1)
		err = penstock.TakeEach(ctx, m.fallback, []penstock.Request{r}, ds)
		d = ds[0]
	} else {
		d, err = m.fallback.Take(ctx, r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log += fmt.Sprintf("%v batch=%v %s %d id=%q overdraw=%v settle=%v: %v, %v\n",
		time.Now().Format("05.000"), batch, stateName(r), r.Cost, r.ID, r.Overdraw, r.Settle, d, err)
	return d, err
}

func (m *fallbackModel) take(r penstock.Request, batch bool) {
	d, _ := m.decide(r, batch)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Cost < 0 && m.isLossy {
		d.Granted = r.Cost // it may have been made
	}
	m.used[stateName(r)] += d.Granted
}

func (m *fallbackModel) takeOrRefund(rng *rand.Rand, r penstock.Request, batch bool) {
	m.mu.Lock()
	used := m.used[stateName(r)]
	m.mu.Unlock()
	switch {
	case rng.IntN(2) == 0:
		r.Overdraw = rng.IntN(2) == 0
	case used > 0:
		r.Cost = -min(r.Cost, used)
	}
	m.take(r, batch)
}

func (m *fallbackModel) takeID(g *grantUnderID, batch bool) {
	if d, err := m.decide(g.r, batch); err == nil && d.Allowed {
		g.units = d.Granted
	}
}

func (m *fallbackModel) refundID(g *grantUnderID, batch bool) {
	r := g.r
	r.Cost, r.Overdraw = -g.units, false
	if g.units == 0 {
		return
	}
	d, err := m.decide(r, batch)
	if m.isLossy {
		d.Granted, err = r.Cost, nil
	}
	if err == nil && d.Granted < 0 {
		g.units += d.Granted
		g.ended = true
	}
}

func (m *fallbackModel) settle(g *grantUnderID, amount int64, batch bool) {
	r := g.r
	r.Cost, r.Settle, r.Overdraw = amount, true, false
	d, err := m.decide(r, batch)
	g.settled = true
	switch {
	case err == nil:
		g.units = amount
	case errors.Is(err, penstock.ErrUnknownID):
	case errors.Is(err, context.DeadlineExceeded) || m.isLossy && errors.Is(err, penstock.ErrUnavailable):
		g.units = min(g.units, amount)
	default:
		panic(fmt.Sprint(d, err))
	}
	g.r.Cost = max(amount, 1)
}

// audit compares what the primary has charged with what is in use.
func (m *fallbackModel) audit() error {
	for _, key := range []string{"x", "y", "z"} {
		for _, limit := range m.limits {
			r := penstock.Request{Key: key, Limit: limit}
			d, err := m.memory.Take(context.Background(), r)
			if err != nil {
				return err
			}
			if charged := d.Limit - d.Remaining; charged < m.used[stateName(r)] {
				return fmt.Errorf("%s: %d charged, %d used", stateName(r), charged, m.used[stateName(r)])
			}
		}
	}
	return nil
}
