package penstock

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// MemoryOptions are the settings of a [Memory]. The zero value is good for
// nearly everyone; a number that is not above zero means its default.
type MemoryOptions struct {
	// MaxKeys is how many keys may be held at once, counting each pair of key
	// and limit, and each remembered [Request.ID]. Default: 1,000,000.
	MaxKeys int

	// MaxBytes is how much the states of sliding logs and rolling windows may
	// occupy; those that new keys share when the store is full may take a
	// quarter more. The other algorithms need less than 64 bytes a key, which
	// MaxKeys bounds. Default: 1 GiB.
	MaxBytes int64

	// Now is the clock, for tests and simulations, between the years 1970 and
	// 2116: outside of them it stands still. It must be safe for concurrent
	// use, and must not call the store.
	// [Limiter.Wait] sleeps on the machine's clock all the same; to test that,
	// use testing/synctest and leave this nil. Default: the machine's monotonic
	// clock, and its wall clock for windows that follow the time of day.
	Now func() time.Time

	// Tick is the step in which the clock moves, for comparing with a store
	// whose clock is coarser. With a tick of one's own, all limits go by the
	// wall clock. Default: a nanosecond.
	Tick time.Duration

	// Durable makes [Memory.Snapshot] possible. Keys are then known by hashes
	// that mean the same in the next process, which take some 20 ns longer to
	// work out. Default: what is in memory ends with the process.
	Durable bool
}

// Memory is the store inside this process. It is safe for concurrent use, runs
// no goroutine, needs no closing, and is bounded: see [MemoryOptions]. One that is
// used in a bubble of testing/synctest must be made in it, or else its time stands
// still. The zero Memory is not usable.
//
// A key that is as good as new takes no room. When every place is held by a key
// that is not, nobody's debt is forgotten to make room: new keys under the same
// limit share one bucket, with that limit's own numbers, until places become
// free. [Memory.Stats] counts how often that happens.
type Memory struct {
	shards []shard
	shift  int // a key's shard is in the top bits of its hash
	base   time.Time
	offset int64        // what the steady clock showed at the base
	clock  func() int64 // nil for the machine's own
	tick   int64
	secret *secret // of the hashes; nil for the process's own

	places   places // that the shards share
	bytes    atomic.Int64
	overflow shard
	shared   atomic.Int64  // decisions made by the overflow shard
	swept    atomic.Uint32 // the shard that was last swept for another's sake
	barren   atomic.Int32  // how many requests for bytes need not look everywhere
	meters   compiledCache
}

// MemoryStats describes what a [Memory] holds.
type MemoryStats struct {
	// Keys is how many places are taken, by keys that are not as good as new
	// or have not been found out to be.
	Keys int64

	// Bytes is what the states of sliding logs and rolling windows occupy.
	Bytes int64

	// OverflowDecisions is how many requests were decided by a bucket that new keys
	// share, because the store was full.
	OverflowDecisions int64
}

const (
	defaultMaxKeys  = 1_000_000
	defaultMaxBytes = 1 << 30
	keysPerShard    = 4096
	maxShardBits    = 14   // more shards than that gain nothing, and cost memory
	maxOverflow     = 1024 // buckets for those who find the store full, one a limit
)

// NewMemory returns an empty store. Nil options are all defaults.
func NewMemory(o *MemoryOptions) *Memory {
	if o == nil {
		o = &MemoryOptions{}
	}
	most := int64(orDefault(o.MaxKeys, defaultMaxKeys))
	return newMemory(o, most, min(bits.Len64(uint64(most-1)/keysPerShard), maxShardBits))
}

// newMemory returns a store for so many keys, in 2^shardBits shards.
func newMemory(o *MemoryOptions, maxKeys int64, shardBits int) *Memory {
	m := &Memory{base: time.Now(), tick: max(int64(o.Tick), 1)}
	m.places.most = maxKeys
	if o.Durable {
		var b [secretLen]byte
		_, _ = rand.Read(b[:]) // which never fails
		m.secret = newSecret(b)
	}
	m.setClock(o)
	m.setShards(o, shardBits)
	return m
}

func (m *Memory) setShards(o *MemoryOptions, shardBits int) {
	maxBytes := int64(defaultMaxBytes)
	if o.MaxBytes > 0 {
		maxBytes = o.MaxBytes
	}
	m.shards = make([]shard, 1<<shardBits)
	m.shift = 64 - shardBits
	for i := range m.shards {
		m.shards[i].open(m, &m.places)
		m.shards[i].blocks.held, m.shards[i].blocks.most = &m.bytes, maxBytes
	}
	m.overflow.open(m, &places{most: maxOverflow})
	m.overflow.blocks.held, m.overflow.blocks.most = &m.bytes, maxBytes+maxBytes/4
}

// setClock installs the caller's clock, or one that moves in the caller's tick.
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

// now reads the clock: the wall's, or the one that never steps. It is called
// with the key's shard locked, so that decisions about a key are in the order
// of their times.
func (m *Memory) now(wall bool) int64 {
	switch {
	case m.clock != nil:
		return m.clock()
	case wall:
		return min(max(time.Now().UnixNano(), 0), algorithm.MaxTime)
	}
	return max(int64(time.Since(m.base)), 0) + m.offset
}

// clocks reads the clock that a kind of table goes by, and the one that never
// steps, at the same instant.
func (m *Memory) clocks(k kind) (now, steady int64) {
	if m.clock != nil || k != clockTable {
		now = m.now(false)
		return now, now
	}
	t := time.Now()
	return min(max(t.UnixNano(), 0), algorithm.MaxTime), int64(t.Sub(m.base)) + m.offset
}

// Take decides one request. It never blocks, and so does not look at ctx.
func (m *Memory) Take(_ context.Context, r Request) (d Decision, err error) {
	if err = r.validateShape(); err != nil {
		return d, err
	}
	cl, err := m.meter(&r)
	if err != nil {
		return d, err
	}
	if r.ID != "" && r.Cost != 0 {
		return m.takeOnce(cl, &r)
	}
	m.take(cl, r.Key, r.ask(), &d)
	return d, nil
}

// meter returns the request's limit, made ready for this store's clock.
func (m *Memory) meter(r *Request) (*compiledLimit, error) {
	if cl := r.compiled; cl != nil && cl.tick == m.tick && cl.secret == m.secret && cl.limit == r.Limit {
		return cl, nil
	}
	return m.meters.get(r.Limit, m.tick, m.secret)
}

// take decides about one key. What happens most, that one unit of a token bucket
// is taken and was there, is decided on the spot: calling others for it would
// cost more than the decision.
func (m *Memory) take(cl *compiledLimit, key string, ask algorithm.Ask, d *Decision) {
	h := m.hashOf(cl, key)
	s := m.shard(h)
	s.mu.Lock()
	t := &s.tables[cl.kind]
	if t.large() || cl.kind == runTable { // small tables are at hand anyway
		s.warm(cl.kind, h)
	}
	now := m.now(cl.kind == clockTable)
	if cl.limit.Algorithm == TokenBucket && ask == (algorithm.Ask{Cost: 1}) {
		if at, held := t.find(h); held && t.words[at+1] < signBit {
			if full, ok := cl.token.SpendOne(int64(t.words[at+1]), now); ok {
				t.words[at+1] = uint64(full)
				d.set(cl, algorithm.Verdict{Allowed: true, Granted: 1}, cl.token.Standing(full-now))
				s.mu.Unlock()
				return
			}
		}
	}
	s.take(cl, h, now, ask, d)
	s.mu.Unlock()
}

// Stats returns what the store holds now.
func (m *Memory) Stats() MemoryStats {
	return MemoryStats{
		Keys:              m.places.taken.Load(),
		Bytes:             m.bytes.Load(),
		OverflowDecisions: m.shared.Load(),
	}
}

// hashOf returns what a key is known by under a limit; never 0.
func (m *Memory) hashOf(cl *compiledLimit, key string) uint64 {
	if m.secret != nil {
		return max(m.secret.sum(key)^cl.identity, 1)
	}
	return hashOf(cl, key)
}

// sum returns the hash of a text.
func (m *Memory) sum(text string) uint64 {
	if m.secret != nil {
		return m.secret.sum(text)
	}
	return maphash.String(seed, text)
}

// hashOf returns what a key is known by under a limit, in this process; never 0.
func hashOf(cl *compiledLimit, key string) uint64 {
	return max(maphash.String(seed, key)^cl.identity, 1)
}

func (m *Memory) shard(hash uint64) *shard {
	return &m.shards[hash>>m.shift]
}

// places counts the slots in use, of all shards together.
type places struct {
	taken atomic.Int64
	most  int64
}

// claim reports whether there was another place, and claims it.
func (p *places) claim() bool {
	if p.taken.Add(1) <= p.most {
		return true
	}
	p.taken.Add(-1)
	return false
}

func (p *places) left() bool { return p.taken.Load() < p.most }

func (p *places) free(n int) { p.taken.Add(-int64(n)) }

// KeysAreTransient marks a Memory as a [TransientKeyStore]: it stores the hash of
// a key, never the key.
func (m *Memory) KeysAreTransient() {}
