package simulation

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
		synctest.Test(t, func(t *testing.T) {
			m := newLeaseModel(t, seed)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { m.call(120) })
			}
			wg.Wait()
			m.ended.Store(true)
			for _, after := range []string{"the calls", "Close"} {
				if charged := m.charged(); charged < m.used {
					t.Fatalf("case %d: after %s %d are charged, and %d in use", i, after, charged, m.used)
				}
				if err := m.lease.Close(ctx); err != nil {
					t.Fatal(err)
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
	*testing.T
	memory *penstock.Memory
	lease  *penstock.Lease

	mu           sync.Mutex
	rng          *rand.Rand
	used, leased int64
	ended        atomic.Bool // no more responses are lost
}

// leaseModelLimit refills too slowly to matter.
const leaseModelLimit = "2000/300d"

func newLeaseModel(t *testing.T, seed uint64) *leaseModel {
	m := &leaseModel{T: t, memory: penstock.NewMemory(nil), rng: rand.New(rand.NewPCG(seed, 0))}
	m.lease = penstock.WithLease(&lossyStore{
		store: m.memory, responseDelay: 2 * time.Millisecond,
		loseResponse: func() bool { return m.draw(20) == 0 && !m.ended.Load() },
	}, &penstock.LeaseOptions{Nodes: 1, MaxKeys: 1 << 10})
	return m
}

// charged returns what the store has charged to the key.
func (m *leaseModel) charged() int64 {
	d, err := limiter(m.T, m.memory, leaseModelLimit).Peek(ctx, "key")
	if err != nil {
		m.Fatal(err)
	}
	return d.Limit - d.Remaining
}

func (m *leaseModel) draw(n int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rng.Int64N(n)
}

func (m *leaseModel) call(times int) {
	busy, other := limiter(m.T, m.lease, leaseModelLimit), limiter(m.T, m.lease, "30/1h sliding-log")
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
				_, _ = m.lease.Take(short, r)
			}
		case 1:
			both := []penstock.Request{r, other.Request("key")}
			if err = penstock.TakeAll(short, m.lease, both, ds); err == nil && ds[0].Allowed && ds[1].Allowed {
				m.grant(ds[0])
			}
		case 2:
			r.AtMost = true
			if err = penstock.TakeEach(short, m.lease, []penstock.Request{r, r}, ds); err == nil {
				m.grant(ds[0])
				m.grant(ds[1])
			}
		default:
			if ds[0], err = m.lease.Take(short, r); err == nil {
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
