package regions

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// Pools hold the units that a region has of each key. [RedisPools] keeps them for all processes of a
// region, and [NewMemoryPools] for one.
//
// A pool is what is left of the lots that home granted, and at most one claim: the right to ask home for
// more. A process that got a claim asks home and deposits what it was granted. A deposit counts only while
// its claim is the pool's last one, and no claim asks for more than the pool lacks. So what is left and what
// a claim may still bring never exceed Ask.Hold, whichever processes die and whichever messages are late.
//
// An absent pool is empty: losing pools loses units, and never grants any.
type Pools interface {
	// Spend takes units from a pool, and claims more if less than half of the last filling is left, or if none is
	// left and that half would not last for Ask.Trip: a claim of an empty pool asks for most.
	Spend(ctx context.Context, key string, a Ask) (Spent, error)

	// Deposit ends a claim with what home granted. It reports whether the claim was still valid.
	Deposit(ctx context.Context, key string, l Lot) (bool, error)
}

// An Ask asks for units of a pool.
type Ask struct {
	Cost   int64         // 0 peeks, and claims nothing
	AtMost bool          // take what is left if that is less
	Dry    bool          // take nothing, but claim what is missing
	Hold   int64         // the most that the pool may have
	Age    time.Duration // for how long a lot should last
	Trip   time.Duration // a round trip to home, if the rate brings more in two than the pool may have

	Claim    string        // the name of the claim, if one is due: never used before
	ClaimFor time.Duration // after this time another claim may replace it
	Keep     time.Duration // so long after its last claim the pool is forgotten
}

// A Spent is the answer to an Ask.
type Spent struct {
	Granted int64
	Left    int64         // in the pool, after it
	Want    int64         // above 0: the Claim was accepted, to ask home for so much
	At      time.Duration // the time on the pool's clock, whose zero has no meaning
	Age     time.Duration // since the last lot arrived, if one did

	Scarce bool          // home had too little when it was last asked
	Asked  bool          // another claim is in flight
	Wait   time.Duration // until the next claim, unless one is accepted

	HomeLeft  int64         // what home had left when it last granted
	HomeReset time.Duration // until the key is idle at home
}

// A Lot is what home granted to a claim.
type Lot struct {
	Claim     string
	Units     int64
	End       time.Duration // on the pool's clock, until when all of the pool can be spent; 0: no end
	Scarce    bool          // home had too little
	Pause     time.Duration // before the next claim
	HomeLeft  int64
	HomeReset time.Duration
}

// poolIdle is how long a pool is kept without a claim, at least.
const poolIdle = 10 * time.Minute

// A pool is the state of one key, with times in milliseconds.
type pool struct {
	left, end    int64 // units, and until when; 0: no end
	fill, filled int64 // what was left after the last deposit, and when that was
	next         int64 // no claim before
	scarce       bool
	claim        string // in flight
	want         int64  // what it may bring
	homeLeft     int64
	homeReset    int64 // when
}

// expire forgets units whose window has ended.
func (p *pool) expire(now int64) {
	if p.end != 0 && now >= p.end {
		p.left, p.end, p.fill = 0, 0, 0
	}
}

// spend is [Pools.Spend].
func (p *pool) spend(now int64, a Ask) (s Spent) {
	p.expire(now)
	short := a.Cost > p.left
	if (!short || a.AtMost) && !a.Dry {
		s.Granted = min(a.Cost, p.left)
		p.left -= s.Granted
	}
	s.Scarce = p.scarce
	next := p.next
	if next-now > max(a.ClaimFor, maxPause).Milliseconds() { // the clock went back
		next = now
	}
	if a.Cost > 0 && (short || 2*p.left < p.fill && p.lasts(now, a.Trip)) && now >= next {
		if s.Want = p.wants(now, a, short); s.Want > 0 {
			next = now + a.ClaimFor.Milliseconds()
			p.claim, p.want, p.next = a.Claim, s.Want, next
		}
	}
	s.Left, s.At = p.left, time.Duration(now)*time.Millisecond
	if p.filled > 0 {
		s.Age = time.Duration(max(now-p.filled, 0)) * time.Millisecond
	}
	s.Asked = p.claim != "" && s.Want == 0 && now < next
	s.Wait = time.Duration(max(next-now, 0)) * time.Millisecond
	s.HomeLeft, s.HomeReset = p.homeLeft, time.Duration(max(p.homeReset-now, 0))*time.Millisecond
	return s
}

// lasts reports whether what is left would last for so long, if it is spent as what was spent since the last filling.
func (p *pool) lasts(now int64, trip time.Duration) bool {
	return float64(p.left)*float64(max(now-p.filled, 1)) >= float64(p.fill-p.left)*float64(trip.Milliseconds())
}

// The first lot of a pool is this part of what it may hold.
const firstLot = 8

// wants returns what to ask home for: what was spent since the last filling, for as long as a lot should
// last, or twice the last filling if that was too little.
func (p *pool) wants(now int64, a Ask, short bool) int64 {
	rate := float64(p.fill-p.left) / float64(max(now-p.filled, 1))
	want := int64(math.Ceil(rate * float64(a.Age.Milliseconds())))
	if short {
		want = max(want, 2*p.fill, a.Cost)
	}
	want = max(want, (a.Hold+firstLot-1)/firstLot)
	return max(min(want, a.Hold-p.left), 0)
}

// deposit is [Pools.Deposit].
func (p *pool) deposit(now int64, l Lot) bool {
	if p.claim != l.Claim || l.Claim == "" {
		return false
	}
	p.expire(now)
	if units := min(l.Units, p.want); units > 0 {
		p.left += units
		p.end, p.fill, p.filled = l.End.Milliseconds(), p.left, now
	}
	p.claim, p.want, p.next, p.scarce = "", 0, now+l.Pause.Milliseconds(), l.Scarce
	p.homeLeft, p.homeReset = l.HomeLeft, now+l.HomeReset.Milliseconds()
	return true
}

// MemoryPools are pools in this process, for a region that consists of it alone, and for tests. There are at most
// 262,144: home decides for the keys of others.
type MemoryPools struct {
	now func() time.Time

	mu    sync.Mutex
	pools map[string]*memoryPool
	sweep time.Time
}

const maxMemoryPools = 1 << 18

var errFull = fmt.Errorf("regions: %w: no room for another pool", penstock.ErrUnavailable)

type memoryPool struct {
	pool
	idle time.Time // forgotten then
}

// NewMemoryPools returns pools in this process. A nil clock is the machine's.
func NewMemoryPools(now func() time.Time) *MemoryPools {
	if now == nil {
		now = time.Now
	}
	return &MemoryPools{now: now, pools: map[string]*memoryPool{}}
}

// Spend implements [Pools].
func (m *MemoryPools) Spend(_ context.Context, key string, a Ask) (Spent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.forget(now)
	p := m.pools[key]
	if p == nil && len(m.pools) >= maxMemoryPools {
		return Spent{}, errFull
	}
	if p == nil {
		p = &memoryPool{}
	}
	s := p.spend(now.UnixMilli(), a)
	if s.Want > 0 {
		p.idle, m.pools[key] = now.Add(a.Keep), p
	}
	return s, nil
}

// Deposit implements [Pools].
func (m *MemoryPools) Deposit(_ context.Context, key string, l Lot) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pools[key]
	return p != nil && p.deposit(m.now().UnixMilli(), l), nil
}

// forget removes idle pools, once in a while.
func (m *MemoryPools) forget(now time.Time) {
	if now.Before(m.sweep) {
		return
	}
	m.sweep = now.Add(poolIdle)
	for key, p := range m.pools {
		if !now.Before(p.idle) {
			delete(m.pools, key)
		}
	}
}
