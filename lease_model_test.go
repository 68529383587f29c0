package penstock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Whatever callers take, refund and cancel, and whichever responses are lost: the store has charged
// what is in use, at least, at the end and after Close.
func TestLeaseStoreHasChargedWhatIsInUse(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 4))
	leased := int64(0)
	for i := range 150 {
		seed := rng.Uint64()
		withLease(t, "2000/300d", 1, func(l *leaseFixture) {
			m := &leaseModel{leaseFixture: l, rng: rand.New(rand.NewPCG(seed, 0))}
			l.store.responseDelay = fixedDelay(2 * time.Millisecond)
			l.store.loseResponse = func([]penstock.Request) bool { return m.draw(20) == 0 && !m.ended.Load() }
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { m.call(120) })
			}
			wg.Wait()
			m.ended.Store(true)
			for _, after := range []string{"the calls", "Close"} {
				if charged := 2000 - l.left("key"); charged < m.used {
					l.Fatalf("case %d: after %s %d are charged, and %d in use", i, after, charged, m.used)
				}
				if err := l.nodes[0].Close(ctx); err != nil {
					l.Fatal(err)
				}
				time.Sleep(2 * leaseAge)
				synctest.Wait()
			}
			leased += m.leased
		})
	}
	if leased < 1000 {
		t.Errorf("%d units were leased, want many", leased)
	}
}

// A leaseModel counts what the callers of a lease use.
type leaseModel struct {
	*leaseFixture
	mu           sync.Mutex
	rng          *rand.Rand
	used, leased int64
	ended        atomic.Bool // no more responses are lost
}

func (m *leaseModel) draw(n int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rng.Int64N(n)
}

func (m *leaseModel) call(times int) {
	busy, other := m.limiter(0), limiter(m.T, m.nodes[0], "30/1h sliding-log")
	for range times {
		time.Sleep(time.Duration(m.draw(5)) * time.Millisecond * time.Duration(max(m.draw(60)-58, 0)*100+1))
		short, cancel := context.WithTimeout(ctx, time.Duration(1+m.draw(40))*time.Millisecond)
		r := busy.Request("key")
		r.Cost = 1 + max(m.draw(8)-4, 0)
		ds := make([]penstock.Decision, 2)
		var err error
		switch m.draw(12) {
		case 0:
			r.Cost = -m.take(r.Cost)
			if r.Cost < 0 {
				_, _ = m.nodes[0].Take(short, r)
			}
		case 1:
			both := []penstock.Request{r, other.Request("key")}
			if err = penstock.TakeAll(short, m.nodes[0], both, ds); err == nil && ds[0].Allowed && ds[1].Allowed {
				m.grant(ds[0])
			}
		case 2:
			r.AtMost = true
			if err = penstock.TakeEach(short, m.nodes[0], []penstock.Request{r, r}, ds); err == nil {
				m.grant(ds[0])
				m.grant(ds[1])
			}
		default:
			if ds[0], err = m.nodes[0].Take(short, r); err == nil {
				m.grant(ds[0])
			}
		}
		cancel()
	}
}

func (m *leaseModel) grant(d penstock.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += d.Granted
	if d.Source == penstock.SourceLease {
		m.leased += d.Granted
	}
}

// take takes units out of use, before they are refunded.
func (m *leaseModel) take(most int64) (units int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	units = min(most, m.used)
	m.used -= units
	return units
}
