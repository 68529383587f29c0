package penstock

import (
	"cmp"
	"context"
	"crypto/rand"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/quota"
	"github.com/penstock-io/penstock/internal/siphash"
	"github.com/penstock-io/penstock/internal/snapshot"
)

// MemoryOptions are the settings of a [Memory]. A number of zero or less means
// its default.
type MemoryOptions struct {
	// MaxKeys bounds the keys held at once, counting each pair of key and
	// limit, and each remembered [Request.ID]. Default: 1,000,000.
	MaxKeys int

	// MaxBytes bounds the states of sliding logs, rolling windows and
	// concurrency limits. Their overflow buckets may take a quarter more. The
	// other algorithms need less than 64 bytes per key, which MaxKeys bounds.
	// Default: 1 GiB.
	MaxBytes int64

	// UntrustedShare is how much of MaxKeys and MaxBytes the states of limits
	// with [Limit.Untrusted] can fill, from 0 to 1. When they have filled it,
	// only their own new keys use overflow buckets. Default: 0.5.
	UntrustedShare float64

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use, and must not call the store. Times before 1970 or after
	// 2116 are clamped to those years. [Limiter.Wait] still sleeps on the
	// machine's clock; to test it, use testing/synctest and leave Now nil.
	// Default: the machine's monotonic clock, and its wall clock for windows
	// that are aligned to the time of day.
	Now func() time.Time

	// Tick is the resolution of the clock, for comparisons with a store whose
	// clock is coarser. If it is set, all limits use the wall clock. Default:
	// one nanosecond.
	Tick time.Duration

	// Durable enables [Memory.Snapshot]. It hashes keys in a way that later
	// processes can repeat, which takes about 20 ns longer. Default: state
	// ends with the process.
	Durable bool

	// HashKey is the key of the hash function of a Durable store, which it then is. Processes that
	// exchange states by [Memory.State] need the same; keep it secret if callers choose keys or IDs.
	// Default: a random one.
	HashKey [16]byte
}

// Memory is a store in the memory of this process. It is safe for concurrent use,
// runs no goroutine, needs no Close, and is bounded: see [MemoryOptions]. The
// zero Memory is not usable. To use a Memory in a testing/synctest bubble, make
// it inside the bubble; otherwise its clock stands still.
//
// Idle keys, whose bucket is full or whose window is empty, take no room. When
// the store is full, active keys are never evicted. Instead, all new keys of a
// limit share one overflow bucket with that limit's numbers, until there is room
// again. [Memory.Stats] counts how often that happens.
type Memory struct {
	shards []shard
	shift  uint8 // the top bits of a hash select its shard: hash >> shift
	base   time.Time
	offset int64        // reading of the monotonic clock at base
	clock  func() int64 // nil for the machine's clocks
	tick   int64
	key    *siphash.Key // of the hash function, if Durable; nil for maphash

	slots, bytes      [trusts]*quota.Quota // shared by all shards
	overflow          shard                // holds the overflow buckets
	overflowDecisions atomic.Int64
	overflowRestored  bool                 // whether a snapshot had overflow buckets
	lastSwept         atomic.Uint32        // index of the shard that sweepNext swept last
	sweepBackoff      [trusts]atomic.Int32 // how many more failed allocations sweep only one shard
	limits            compiledCache
}

// MemoryStats are the numbers of a [Memory].
type MemoryStats struct {
	// Keys is the number of keys and IDs held. Expired ones count until they
	// are swept.
	Keys int64

	// UntrustedKeys is how many of the Keys are of limits with
	// [Limit.Untrusted].
	UntrustedKeys int64

	// Bytes is the size of the states of sliding logs, rolling windows and
	// concurrency limits.
	Bytes int64

	// OverflowDecisions is the number of requests that an overflow bucket
	// decided, because the store was full.
	OverflowDecisions int64
}

const (
	defaultMaxKeys        = 1_000_000
	defaultMaxBytes       = 1 << 30
	defaultUntrustedShare = 0.5
	keysPerShard          = 4096
	maxShardBits          = snapshot.MaxShardBits // more shards cost memory and gain nothing
	maxOverflow           = 1024                  // overflow buckets, one per limit
)

// NewMemory returns an empty store. Nil options mean all defaults.
func NewMemory(o *MemoryOptions) *Memory {
	o = cmp.Or(o, &MemoryOptions{})
	maxKeys := int64(defaults.Or(o.MaxKeys, defaultMaxKeys))
	return newMemory(o, maxKeys, min(bits.Len64(uint64(maxKeys-1)/keysPerShard), maxShardBits))
}

// newMemory returns a store for maxKeys keys, in 2^shardBits shards.
func newMemory(o *MemoryOptions, maxKeys int64, shardBits int) *Memory {
	m := &Memory{base: time.Now(), tick: max(int64(o.Tick), 1)}
	m.setHash(o)
	m.setClock(o)
	m.setShards(maxKeys, defaults.Or(o.MaxBytes, defaultMaxBytes), shardBits, min(defaults.Or(o.UntrustedShare, defaultUntrustedShare), 1))
	return m
}

// setHash sets the hash function, unless it is that of the process.
func (m *Memory) setHash(o *MemoryOptions) {
	key := o.HashKey
	switch {
	case key != [siphash.KeySize]byte{}:
	case o.Durable:
		_, _ = rand.Read(key[:]) // never fails
	default:
		return
	}
	m.key = siphash.NewKey(key)
}

// setShards makes the shards, and the quotas that they share. The overflow buckets of
// untrusted limits have quotas of their own, so that they leave room for the others.
func (m *Memory) setShards(maxKeys, maxBytes int64, shardBits int, share float64) {
	m.slots = withShare(quota.New(maxKeys, nil), maxKeys, share)
	m.bytes = withShare(quota.New(maxBytes, nil), maxBytes, share)
	m.shards = make([]shard, 1<<shardBits)
	m.shift = uint8(64 - shardBits)
	for i := range m.shards {
		m.shards[i].init(m, m.slots, m.bytes)
	}
	extra := maxBytes / 4
	m.overflow.init(m, withShare(quota.New(maxOverflow, nil), maxOverflow, share),
		withShare(m.bytes[trusted].WithMax(maxBytes+extra), extra, share))
}

// withShare returns a quota for all limits, and below it a quota for untrusted limits:
// a share of n.
func withShare(all *quota.Quota, n int64, share float64) [trusts]*quota.Quota {
	return [trusts]*quota.Quota{trusted: all, untrusted: quota.New(int64(float64(n)*share), all)}
}

// setClock sets the clock of the options, if it is not the machine's.
func (m *Memory) setClock(o *MemoryOptions) {
	now := o.Now
	switch {
	case now == nil && m.tick == 1:
		return
	case now == nil:
		now = time.Now
	}
	m.clock = func() int64 {
		t := min(max(now().UnixNano(), 0), algorithm.MaxTime)
		return algorithm.RoundDown(t, m.tick)
	}
}

// now reads the wall clock or the monotonic clock. Callers hold the lock of the
// key's shard, so the decisions about a key are in the order of their times.
func (m *Memory) now(wall bool) int64 {
	switch {
	case m.clock != nil:
		return m.clock()
	case wall:
		return min(max(time.Now().UnixNano(), 0), algorithm.MaxTime)
	}
	return max(int64(time.Since(m.base)), 0) + m.offset
}

// clocks reads the clock of a table, and the monotonic clock at the same instant.
func (m *Memory) clocks(k tableKind) (now, mono int64) {
	if m.clock != nil || !k.onWallClock() {
		now = m.now(false)
		return now, now
	}
	t := time.Now()
	return min(max(t.UnixNano(), 0), algorithm.MaxTime), int64(t.Sub(m.base)) + m.offset
}

// Take decides one request. It ignores ctx, because it never blocks.
func (m *Memory) Take(_ context.Context, r Request) (d Decision, err error) {
	if err = r.validateShape(); err != nil {
		return d, err
	}
	cl, err := m.compile(&r)
	if err != nil {
		return d, err
	}
	if r.isRecorded() || r.ID != "" && r.Cost < 0 {
		if cl.limit.hasPermits() {
			return m.takePermits(cl, &r), nil
		}
		err = m.takeWithID(cl, &r, &d)
		return d, err
	}
	req := r.forAlgorithm()
	m.take(cl, r.Key, &req, &d)
	return d, nil
}

// compile returns the request's limit, compiled for this store.
func (m *Memory) compile(r *Request) (*compiledLimit, error) {
	if cl := r.compiled; cl != nil && cl.tick == m.tick && cl.key == m.key && cl.limit.equal(&r.Limit) {
		return cl, nil
	}
	return m.limits.get(r.Limit, m.tick, m.key)
}

// take decides a request of one key. The most frequent case, one available unit
// of a token bucket, is inlined: function calls would cost more than the
// decision.
func (m *Memory) take(cl *compiledLimit, key string, req *algorithm.Request, d *Decision) {
	h := m.hashOf(cl, key)
	s := m.shard(h)
	s.mu.Lock()
	t := &s.tables[cl.table]
	if cl.limit.Algorithm == SlidingLog {
		m.takeLog(s, cl, h, req, d)
		s.mu.Unlock()
		return
	}
	if t.Large() { // small tables are in the cache anyway
		t.Prefetch(h)
	}
	now := m.now(cl.onWallClock)
	if cl.limit.Algorithm == TokenBucket && *req == (algorithm.Request{Cost: 1}) {
		if word := t.Word(h, expiryWord); word != nil {
			if full, ok := cl.token.SpendOne(int64(*word), now); ok {
				*word = uint64(full)
				d.set(cl, algorithm.Outcome{Allowed: true, Granted: 1}, cl.token.Balance(full-now))
				s.mu.Unlock()
				return
			}
		}
	}
	s.takeSlot(cl, t.Slot(h), h, now, req, d) // take would pass all of these on once more
	s.mu.Unlock()
}

// takeLog decides a request of a sliding log. The part of its block that it needs arrives in
// the cache while the clock is read.
func (m *Memory) takeLog(s *shard, cl *compiledLimit, h uint64, req *algorithm.Request, d *Decision) {
	slot := s.tables[cl.table].Slot(h)
	if slot == nil || blockOf(slot) == 0 {
		s.takeSlot(cl, slot, h, m.now(false), req, d)
		return
	}
	l := s.log(cl, slot)
	prefetchLog(&l)
	now := m.now(false)
	if !req.IsTake() || !cl.spendLog(slot, &l, now, req.Cost, d) {
		s.takeSlot(cl, slot, h, now, req, d)
	}
}

// Stats returns the current numbers of the store.
func (m *Memory) Stats() MemoryStats {
	return MemoryStats{
		Keys:              m.slots[trusted].Used(),
		UntrustedKeys:     m.slots[untrusted].Used(),
		Bytes:             m.bytes[trusted].Used(),
		OverflowDecisions: m.overflowDecisions.Load(),
	}
}

// KeysAreTransient marks a Memory as a [TransientKeyStore]: it stores the hash of
// a key, never the key.
func (m *Memory) KeysAreTransient() {}

// hashOf returns the hash of a key under a limit; never 0.
func (m *Memory) hashOf(cl *compiledLimit, key string) uint64 {
	if m.key != nil {
		return max(m.key.Sum(key)^cl.identityHash, 1)
	}
	return hashOf(cl, key)
}

// sum returns the hash of a Request.ID.
func (m *Memory) sum(text string) uint64 {
	if m.key != nil {
		return m.key.Sum(text)
	}
	return maphash.String(seed, text)
}

func (m *Memory) shard(hash uint64) *shard { return &m.shards[hash>>m.shift] }
