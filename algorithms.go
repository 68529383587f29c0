package penstock

import (
	"unsafe"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/slab"
)

// This file is all that the package knows about single algorithms: what each can do, and how a [Memory] decides it,
// but for two cases in Memory.take: a unit of a token bucket, which is inlined, and sliding logs.

// An Algorithm is a way to count units. The zero Algorithm is [TokenBucket], the
// right choice for most limits.
type Algorithm uint8

// The algorithms. docs/algorithms.md draws what each admits.
const (
	// TokenBucket admits bursts of up to Burst, and Count per Period over time.
	// It needs one word per key, and has no window edges.
	TokenBucket Algorithm = iota

	// LeakyBucket is a queue that holds Burst units and drains evenly. An
	// allowed request has a [Decision.Delay], its turn in the queue; a request
	// is denied when the queue is full.
	LeakyBucket

	// FixedWindow counts up to Count and starts again when the window ends. Use
	// it for quotas such as five a day: from midnight with AlignDay, or else
	// from the key's first request.
	FixedWindow

	// SlidingWindow counts the current window, and the share of the previous
	// one that is still within one Period. It is cheap, and avoids the fixed
	// window's double burst in practice, though not in the worst case.
	SlidingWindow

	// RollingWindow counts in Buckets parts of the period. No interval of one
	// Period admits more than Count. The price is that units become available
	// up to one part late: under constant load, ten parts admit nine tenths of
	// Count, and a hundred parts nearly all of it.
	RollingWindow

	// SlidingLog records the time of every admitted unit. It is exact, and
	// needs eight bytes per unit.
	SlidingLog

	// Concurrent limits how many units are held at once: Count permits, each
	// held for one Period unless it is renewed or released. Every request names
	// its permits by a [Request.ID]; see [Limiter.Acquire]. Count is at most
	// 10,000, a cost at most 100, and Period at most 24 hours.
	Concurrent
)

// algorithms says what each algorithm is called, can do and can count, in the order of the
// constants. Code that treats some algorithms differently asks for one of these properties.
var algorithms = [...]struct {
	name    string
	bucket  bool // has a rate and a Burst
	aligns  bool // has an Align, Offset and Zone
	resets  bool // all units come back at once, at the ResetAfter of a decision
	slides  bool // units come back for one Period after the window of a decision has ended
	parts   bool // has Buckets
	owes    bool // a charge can take more than is left
	queue   bool // admits with a delay
	permits bool // units are held by an ID and released
	lease   leaseKind

	maxCount, maxPeriod limitBound
}{
	TokenBucket: {name: "token-bucket", bucket: true, owes: true, lease: leaseAges},
	LeakyBucket: {name: "leaky-bucket", bucket: true, owes: true, queue: true},
	FixedWindow: {name: "fixed-window", aligns: true, resets: true, owes: true, lease: leaseEnds},
	SlidingWindow: {
		name: "sliding-window", slides: true, owes: true, lease: leaseEndsBefore,
		maxCount: limitBound{maxSlidingCount, "a sliding-window"},
	},
	RollingWindow: {name: "rolling-window", parts: true},
	SlidingLog: {
		name:      "sliding-log",
		maxCount:  limitBound{maxLogCount, "a sliding-log; a sliding-window counts more"},
		maxPeriod: limitBound{int64(maxLogPeriod), "a sliding-log; a sliding-window counts for longer"},
	},
	Concurrent: {
		name: "concurrent", permits: true,
		maxCount:  limitBound{maxConcurrentCount, "a concurrent limit"},
		maxPeriod: limitBound{int64(maxConcurrentPeriod), "a concurrent limit; renew permits that are held for longer"},
	},
}

// A leaseKind says for how long units that were taken ahead can be spent; see [Lease].
type leaseKind uint8

const (
	noLease         leaseKind = iota
	leaseAges                 // for a time; what time has not paid for can be refunded
	leaseEnds                 // until their window ends, at the ResetAfter of the decision
	leaseEndsBefore           // until their window ends, one Period before the ResetAfter
)

// A limitBound is the most that an algorithm can count, or for how long; 0 if it has no bound of
// its own. The text is the end of an error message.
type limitBound struct {
	most int64
	text string
}

// Algorithms returns all algorithms, in the order of the constants.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithms))
	for i := range all {
		all[i] = Algorithm(i)
	}
	return all
}

// IsBucket reports whether the limit has a rate and a burst: a token or a leaky bucket.
func (l Limit) IsBucket() bool { return l.isBucket() }

// CanOwe reports whether a charge can overdraw a key. Rolling windows, logs and concurrency
// limits cannot owe: they keep each unit until it leaves the period or is released, and what
// was charged beyond their count has no place there.
func (l Limit) CanOwe() bool { return l.canOwe() }

// HasPermits reports whether units are permits, which are held under an ID and released:
// those of a concurrency limit.
func (l Limit) HasPermits() bool { return l.hasPermits() }

// CanLease reports whether a [Lease] can take units ahead: those of token buckets, fixed windows and sliding windows.
func (l Limit) CanLease() bool { return l.leaseKind() != noLease }

// HasQueue reports whether requests are admitted with a delay: those of a leaky bucket.
func (l Limit) HasQueue() bool { return l.hasQueue() }

// CanAlign reports whether the limit has an Align, an Offset and a Zone: a fixed window.
func (l Limit) CanAlign() bool { return l.aligns() }

// HasBuckets reports whether the limit counts in Buckets: a rolling window.
func (l Limit) HasBuckets() bool { return l.hasParts() }

// ResetsAtOnce reports whether all units come back at once, at the ResetAfter of a decision: those of a fixed window.
func (l Limit) ResetsAtOnce() bool { return l.resetsAtOnce() }

// These do not copy the limit. An unknown algorithm, which is invalid, has no properties.
func (l *Limit) isBucket() bool     { return l.isKnown() && algorithms[l.Algorithm].bucket }
func (l *Limit) canOwe() bool       { return l.isKnown() && algorithms[l.Algorithm].owes }
func (l *Limit) hasQueue() bool     { return l.isKnown() && algorithms[l.Algorithm].queue }
func (l *Limit) hasPermits() bool   { return l.isKnown() && algorithms[l.Algorithm].permits }
func (l *Limit) aligns() bool       { return l.isKnown() && algorithms[l.Algorithm].aligns }
func (l *Limit) resetsAtOnce() bool { return l.isKnown() && algorithms[l.Algorithm].resets }
func (l *Limit) slides() bool       { return l.isKnown() && algorithms[l.Algorithm].slides }
func (l *Limit) hasParts() bool     { return l.isKnown() && algorithms[l.Algorithm].parts }
func (l *Limit) leaseKind() leaseKind {
	if !l.isKnown() {
		return noLease
	}
	return algorithms[l.Algorithm].lease
}
func (l *Limit) isKnown() bool { return int(l.Algorithm) < len(algorithms) }

// For each algorithm a Memory knows how a state is encoded into the words of a slot, and the steps that decide on it.
// A key without a slot is idle: its bucket is full, its window empty. A slot of zeroes decodes to an idle state too.

// A stepRequest is what a step decides. It is in the shard: a pointer that is passed to a function of
// a table would move what it points to onto the heap, and copying it costs more than the decision.
type stepRequest struct {
	algorithm.Request
	due     int64 // if it is not zero, the request refunds units that time pays back then
	preview bool  // nothing is recorded, and only what has expired may be dropped

	truncated bool // the block should be longer, and cannot grow because the store has reached MaxBytes
}

// memorySteps are the steps of one algorithm.
type memorySteps struct {
	table tableKind // of the states

	// prepare sets the arithmetic of a normal limit.
	prepare func(cl *compiledLimit, n Limit) error

	// decide decides what the shard is asked, and records it in the slot and its block.
	decide func(s *shard, cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance)

	// spend decides the most frequent requests, units that are left, without a block. If it is not ok,
	// nothing has changed. It is nil if decide is as fast.
	spend func(cl *compiledLimit, slot []uint64, now, cost int64) (bal algorithm.Balance, ok bool)

	// Of states in a block: fits reports whether the block of a slot can certainly record units of that
	// cost. Grow gives a slot a block that can record what the request may be granted.
	fits func(s *shard, cl *compiledLimit, slot []uint64, cost int64) bool
	grow func(s *shard, cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool
}

// An arithmetic is that of a limit, whose algorithm selects one of these.
type arithmetic struct {
	token   algorithm.TokenBucket
	leaky   algorithm.LeakyBucket
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow
	rolling algorithm.RollingWindow
	log     algorithm.SlidingLog
	permits algorithm.Concurrent
}

var stepsOf = [...]memorySteps{
	TokenBucket: {
		table: bucketTable, prepare: (*compiledLimit).prepareToken,
		decide: (*shard).decideToken, spend: (*compiledLimit).spendToken,
	},
	LeakyBucket: {
		table: bucketTable, prepare: (*compiledLimit).prepareLeaky,
		decide: (*shard).decideLeaky,
	},
	FixedWindow: {
		table: windowTable, prepare: (*compiledLimit).prepareFixed,
		decide: (*shard).decideFixed, spend: (*compiledLimit).spendFixed,
	},
	SlidingWindow: {
		table: windowTable, prepare: (*compiledLimit).prepareSliding,
		decide: (*shard).decideSliding,
	},
	RollingWindow: {
		table: ringTable, prepare: (*compiledLimit).prepareRolling,
		decide: (*shard).decideRolling, spend: (*compiledLimit).spendRolling,
		fits: (*shard).ringFits, grow: (*shard).growRing,
	},
	SlidingLog: {
		table: logTable, prepare: (*compiledLimit).prepareLog,
		decide: (*shard).decideLog,
		fits:   (*shard).logFits, grow: (*shard).growLog,
	},
	Concurrent: {
		table: logTable, prepare: (*compiledLimit).preparePermits,
		decide: (*shard).decidePermits,
		fits:   (*shard).permitsFit, grow: (*shard).growPermits,
	},
}

// A tableKind is one of the tables of a shard. States with the same width and the
// same clock share a table. Untrusted limits have tables of their own, so what they
// use can be counted without a mark in each slot.
type tableKind int

const (
	bucketTable tableKind = 2 * iota // token and leaky buckets
	windowTable                      // fixed windows from the first request, sliding windows
	clockTable                       // fixed windows on the wall clock
	ringTable                        // rolling windows, whose counts are in a block of words
	logTable                         // sliding logs and concurrency limits, which are in a block but for their length
	idTable                          // grants under a Request.ID
	tableKinds

	// untrustedTable is added to a kind.
	untrustedTable tableKind = 1
)

func (k tableKind) onWallClock() bool { return k&^untrustedTable == clockTable }
func (k tableKind) hasBlocks() bool   { return k&^untrustedTable == ringTable || k.readsBlock() }

// readsBlock reports whether every decision reads the block of its slot.
func (k tableKind) readsBlock() bool { return k&^untrustedTable == logTable }

// trust returns the index of what tables of trusted limits share, and those of
// untrusted ones.
func (k tableKind) trust() trust { return trust(k & untrustedTable) }

// A trust says for which limits a quota or a slab is.
type trust int

const (
	trusted   trust = 0
	untrusted trust = trust(untrustedTable)
	trusts          = 2
)

// idTableOf returns the table of the records of a limit.
func idTableOf(cl *compiledLimit) tableKind { return idTable | cl.table&untrustedTable }

// tableKindOf returns the table that holds the states of a normal limit.
func tableKindOf(l *Limit) tableKind {
	k := stepsOf[l.Algorithm].table
	if l.Align != AlignFirst {
		k = clockTable
	}
	if l.Untrusted {
		k |= untrustedTable
	}
	return k
}

// slotWidth returns the words per slot, including the hash.
func (k tableKind) slotWidth() uint64 {
	return [...]uint64{bucketTable: 2, windowTable: 3, clockTable: 3, ringTable: 6, logTable: 4, idTable: 6}[k&^untrustedTable]
}

const maxSlotWidth = 6

// The words of a slot. The hash table uses the first two; see [hashtable.Table].
const (
	hashWord   = 0
	expiryWord = 1

	countWord  = 2 // windowTable, clockTable, ringTable: the units used
	newestWord = 3 // ringTable: number of the newest bucket

	grantedWord = 2 // idTable: units charged; flagged if the overflow bucket was charged
	actAtWord   = 3 // idTable: when to act; flagged if refunded
	owedWord    = 4 // idTable: of the units charged, those that are paid back at due
	dueWord     = 5 // idTable: when, on the clock of the key's state
)

// flagBit is the top bit of a word. No time or count needs it.
const flagBit = 1 << 63

// A bucket is stored as the instant at which it is full.
func bucketOf(slot []uint64) algorithm.Bucket { return algorithm.Bucket{Full: int64(slot[expiryWord])} }

func putBucket(slot []uint64, b algorithm.Bucket) { slot[expiryWord] = uint64(b.Full) }

func (cl *compiledLimit) prepareToken(n Limit) error {
	cl.token.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, n.MaxDebt(), cl.tick)
	cl.bucketRate = &cl.token.Rate
	return nil
}

func (cl *compiledLimit) prepareLeaky(n Limit) error {
	cl.leaky.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, n.MaxDebt(), cl.tick)
	cl.bucketRate = &cl.leaky.Rate
	return nil
}

func (s *shard) decideToken(cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance) {
	if s.asked.due != 0 {
		return cl.refundBucket(slot, now, &s.asked)
	}
	b, out := cl.token.Decide(bucketOf(slot), now, s.asked.Request)
	if s.asked.preview {
		return out, algorithm.Balance{}
	}
	putBucket(slot, b)
	return out, cl.token.Balance(max(b.Full-now, 0))
}

func (s *shard) decideLeaky(cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance) {
	if s.asked.due != 0 {
		return cl.refundBucket(slot, now, &s.asked)
	}
	b, out := cl.leaky.Decide(bucketOf(slot), now, s.asked.Request)
	if s.asked.preview {
		return out, algorithm.Balance{}
	}
	putBucket(slot, b)
	return out, cl.leaky.Balance(max(b.Full-now, 0))
}

// refundBucket refunds units of a bucket that time pays back at due.
func (cl *compiledLimit) refundBucket(slot []uint64, now int64, asked *stepRequest) (algorithm.Outcome, algorithm.Balance) {
	b, out := cl.bucketRate.RefundDue(bucketOf(slot), now, -asked.Cost, asked.due)
	putBucket(slot, b)
	return out, cl.bucketRate.Balance(max(b.Full-now, 0))
}

func (cl *compiledLimit) spendToken(slot []uint64, now, cost int64) (bal algorithm.Balance, ok bool) {
	full, ok := cl.token.SpendOne(int64(slot[expiryWord]), now)
	if !ok || cost != 1 {
		return bal, false
	}
	slot[expiryWord] = uint64(full)
	return cl.token.Balance(full - now), true
}

// A fixed window is stored as its end, and the units used.
func counterOf(slot []uint64) algorithm.Counter {
	return algorithm.Counter{End: int64(slot[expiryWord]), Used: int64(slot[countWord])}
}

func putCounter(slot []uint64, c algorithm.Counter) {
	slot[expiryWord], slot[countWord] = uint64(c.End), uint64(c.Used)
}

func (cl *compiledLimit) prepareFixed(n Limit) (err error) {
	cl.fixed = algorithm.FixedWindow{Count: n.Count, Overdraft: n.MaxDebt(), Tick: cl.tick}
	if n.Align > AlignClock {
		cl.calendar, err = newCalendar(n)
	}
	return err
}

func (s *shard) decideFixed(cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance) {
	var out algorithm.Outcome
	c := counterOf(slot)
	if s.asked.due != 0 {
		c, out = cl.fixed.RefundDue(c, now, cl.window(now), -s.asked.Cost, s.asked.due)
	} else {
		c, out = cl.fixed.Decide(c, now, cl.window(now), s.asked.Request)
	}
	if s.asked.preview {
		return out, algorithm.Balance{}
	}
	putCounter(slot, c)
	return out, cl.fixed.Balance(c, now)
}

func (cl *compiledLimit) spendFixed(slot []uint64, now, cost int64) (bal algorithm.Balance, ok bool) {
	c := counterOf(slot)
	bal, ok = cl.fixed.Spend(&c, now, cl.period, cost)
	if !ok || cl.calendar != nil { // whose windows differ in length
		return bal, false
	}
	slot[countWord] = uint64(c.Used)
	return bal, true
}

// A sliding window is stored as the end of the window after the current one, when
// it is empty, and two counts of 32 bits, flagged if they are overdrawn.
func slideOf(cl *compiledLimit, slot []uint64) algorithm.Slide {
	return algorithm.Slide{
		Previous:  int64(slot[countWord] &^ flagBit >> 32),
		Current:   int64(uint32(slot[countWord])),
		End:       int64(slot[expiryWord]) - cl.period,
		Overdrawn: slot[countWord]&flagBit != 0,
	}
}

func putSlide(cl *compiledLimit, slot []uint64, c algorithm.Slide) {
	slot[expiryWord], slot[countWord] = 0, uint64(c.Previous)<<32|uint64(c.Current)
	if c.Overdrawn {
		slot[countWord] |= flagBit
	}
	if c.End != 0 {
		slot[expiryWord] = uint64(c.End + cl.period)
	}
}

func (cl *compiledLimit) prepareSliding(n Limit) error {
	cl.sliding = algorithm.SlidingWindow{Count: n.Count, Overdraft: n.MaxDebt(), Period: cl.period, Tick: cl.tick}
	return nil
}

func (s *shard) decideSliding(cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance) {
	var out algorithm.Outcome
	c := slideOf(cl, slot)
	if s.asked.due != 0 {
		c, out = cl.sliding.RefundDue(c, now, -s.asked.Cost, s.asked.due)
	} else {
		c, out = cl.sliding.Decide(c, now, s.asked.Request)
	}
	if s.asked.preview {
		return out, algorithm.Balance{}
	}
	putSlide(cl, slot, c)
	return out, cl.sliding.Balance(c, now)
}

// The last two words of a slot with a block are the block, or 0 if the key is idle, and a
// position: of a ring the index of the newest count, of a log the index of the oldest time, the
// slack and the length, of permits the number of grants.
func blockOf(slot []uint64) slab.Block     { return slab.Block(slot[len(slot)-2]) }
func putBlock(slot []uint64, b slab.Block) { slot[len(slot)-2] = uint64(b) }
func positionOf(slot []uint64) uint64      { return slot[len(slot)-1] }
func putPosition(slot []uint64, p uint64)  { slot[len(slot)-1] = p }

// The parts of a position. No log has more than maxLogCount times, and no key more grants of
// permits than maxConcurrentCount.
func firstOf(slot []uint64) int { return int(positionOf(slot) >> 32) }
func slackOf(slot []uint64) int { return int(uint16(positionOf(slot) >> 16)) }
func lenOf(slot []uint64) int   { return int(uint16(positionOf(slot))) }

// A rolling window is stored as a ring of counts in a block. In place of the newest count the
// block has the sum of the others, so that a take from the newest bucket changes only the
// total, and does not read the block. A ring that is decoded must be put back.
func ringOf(cl *compiledLimit, slot []uint64, words []int64) algorithm.Ring {
	r := algorithm.Ring{
		Head:   firstOf(slot),
		Newest: int64(slot[newestWord]),
		Total:  int64(slot[countWord]),
		Counts: words[:cl.rolling.Buckets+1],
	}
	r.Counts[r.Head] = r.Total - r.Counts[r.Head]
	return r
}

// putRing writes everything but the expiry.
func putRing(slot []uint64, r *algorithm.Ring) {
	r.Counts[r.Head] = r.Total - r.Counts[r.Head]
	slot[countWord], slot[newestWord] = uint64(r.Total), uint64(r.Newest)
	putPosition(slot, uint64(r.Head)<<32)
}

func (cl *compiledLimit) prepareRolling(n Limit) error {
	cl.rolling = algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), cl.tick)
	return nil
}

func (s *shard) decideRolling(cl *compiledLimit, slot []uint64, now int64) (out algorithm.Outcome, bal algorithm.Balance) {
	r, recorded := s.ring(cl, slot)
	cl.rolling.Normalize(&r, now)
	if s.asked.due != 0 {
		out = cl.rolling.RefundDue(&r, now, -s.asked.Cost, s.asked.due)
	} else if out = cl.rolling.Decide(&r, now, s.asked.Request); recorded && out.Granted != 0 && !s.asked.preview {
		cl.rolling.Record(&r, now, out.Granted)
	}
	bal = cl.rolling.Balance(&r, now)
	if recorded {
		slot[expiryWord] = uint64(cl.rolling.Empty(&r))
		putRing(slot, &r)
	}
	return out, bal
}

// spendRolling takes from the newest bucket.
func (cl *compiledLimit) spendRolling(slot []uint64, now, cost int64) (bal algorithm.Balance, ok bool) {
	total := int64(slot[countWord])
	bal, ok = cl.rolling.Spend(int64(slot[newestWord]), total, now, cost)
	if !ok || total == 0 { // there may be no ring
		return bal, false
	}
	slot[expiryWord], slot[countWord] = uint64(now+bal.ResetAfter), uint64(total+cost)
	return bal, true
}

func (s *shard) ringFits(*compiledLimit, []uint64, int64) bool { return true }

func (s *shard) growRing(cl *compiledLimit, slot []uint64, _ int64, _ algorithm.Request) bool {
	return s.newBlock(cl, slot, int(cl.rolling.Buckets)+1)
}

// ring decodes a rolling window. It is not ok if the slot has no block; then the
// ring is idle and cannot be recorded in.
func (s *shard) ring(cl *compiledLimit, slot []uint64) (r algorithm.Ring, ok bool) {
	b := blockOf(slot)
	if b == 0 {
		return r, false
	}
	return ringOf(cl, slot, s.blocks[cl.table.trust()].Words(b)), true
}

// A sliding log is stored as a ring of times in a block. It expires one period after the newest.
// Blocks come in certain sizes, and the slack is what the ring leaves of one: a full ring without
// free places writes each new time where the oldest was, and so into the line that it has read.
func logOf(cl *compiledLimit, slot []uint64, words []int64) algorithm.Log {
	return algorithm.Log{
		Head:   firstOf(slot),
		Len:    lenOf(slot),
		Newest: int64(slot[expiryWord]) - cl.period,
		Times:  words[:len(words)-slackOf(slot)],
	}
}

func putLog(cl *compiledLimit, slot []uint64, l *algorithm.Log) {
	slot[expiryWord] = uint64(cl.log.Empty(l))
	slack := cap(l.Times) - len(l.Times)
	putPosition(slot, uint64(l.Head)<<32|uint64(slack)<<16|uint64(l.Len))
}

func (cl *compiledLimit) prepareLog(n Limit) error {
	cl.log = algorithm.SlidingLog{Count: n.Count, Period: cl.period, Tick: cl.tick}
	return nil
}

func (s *shard) decideLog(cl *compiledLimit, slot []uint64, now int64) (out algorithm.Outcome, bal algorithm.Balance) {
	w, l := cl.log, s.log(cl, slot)
	if s.asked.truncated {
		w.Count = int64(len(l.Times)) // it counts up to the length that it has
	}
	w.Normalize(&l, now)
	if s.asked.due != 0 {
		out = w.RefundDue(&l, now, -s.asked.Cost, s.asked.due)
	} else if out = w.Decide(&l, now, s.asked.Request); l.Times != nil && out.Granted != 0 && !s.asked.preview {
		w.Record(&l, now, out.Granted)
	}
	if l.Times != nil {
		putLog(cl, slot, &l)
	}
	return out, w.Balance(&l, now)
}

// spendLog is spend for a sliding log with a block.
func (cl *compiledLimit) spendLog(slot []uint64, l *algorithm.Log, now, cost int64, d *Decision) (ok bool) {
	bal, ok := cl.log.Spend(l, now, cost)
	if ok {
		putLog(cl, slot, l)
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: cost}, bal)
	}
	return ok
}

func (s *shard) logFits(cl *compiledLimit, slot []uint64, cost int64) bool {
	size := s.blocks[cl.table.trust()].Size(blockOf(slot)) - slackOf(slot)
	return size >= int(cl.log.Count) || int64(size-lenOf(slot)) >= cost
}

// growLog moves a log that is too short for the request into a longer block.
func (s *shard) growLog(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool {
	l := s.log(cl, slot)
	cl.log.Normalize(&l, now)
	need := cl.log.Room(&l, now, max(cl.log.Decide(&l, now, req).Granted, 0))
	if need <= len(l.Times) {
		return true
	}
	old := blockOf(slot)
	if !s.newBlock(cl, slot, min(max(need, 2*l.Len), int(cl.log.Count))) {
		return false
	}
	words := s.blocks[cl.table.trust()].Words(blockOf(slot))
	longer := algorithm.Log{Times: words[:min(len(words), int(cl.log.Count))]}
	l.CopyTo(&longer)
	putLog(cl, slot, &longer)
	if old != 0 {
		s.blocks[cl.table.trust()].Free(old)
	}
	return true
}

// log decodes a sliding log. If the slot has no block, the log is empty and Times
// is nil.
func (s *shard) log(cl *compiledLimit, slot []uint64) (l algorithm.Log) {
	if b := blockOf(slot); b != 0 {
		l = logOf(cl, slot, s.blocks[cl.table.trust()].Words(b))
	}
	return l
}

// prefetchLog prefetches the two oldest times of a log, which a take reads, and the place of the
// next one. In a full log that is the place of the oldest.
func prefetchLog(l *algorithm.Log) {
	next := l.Head + l.Len
	if next >= len(l.Times) {
		next -= len(l.Times)
	}
	hashtable.Prefetch(unsafe.Pointer(&l.Times[l.Head]))
	hashtable.Prefetch(unsafe.Pointer(&l.Times[min(l.Head+1, len(l.Times)-1)]))
	hashtable.Prefetch(unsafe.Pointer(&l.Times[next]))
}

// Permits are stored in a block, and expire with the last of them.
func permitsOf(slot []uint64, words []int64) algorithm.Permits {
	return algorithm.Permits{Len: min(lenOf(slot), len(words)/algorithm.PermitWords), Words: words}
}

func putPermits(slot []uint64, p *algorithm.Permits) {
	slot[expiryWord] = uint64(p.Empty())
	putPosition(slot, uint64(p.Len))
}

func (cl *compiledLimit) preparePermits(n Limit) error {
	cl.permits = algorithm.Concurrent{Count: n.Count, Period: cl.period, Tick: cl.tick}
	return nil
}

func (s *shard) decidePermits(cl *compiledLimit, slot []uint64, now int64) (algorithm.Outcome, algorithm.Balance) {
	c, p := cl.permits, s.permits(cl, slot)
	if s.asked.truncated {
		c.Count = min(c.Count, p.Held(now)) // it grants no more than are held
	}
	c.Normalize(&p, now)
	out := c.Decide(&p, now, s.asked.Request)
	if p.Words != nil {
		if out.Granted != 0 && !s.asked.preview {
			c.Record(&p, now, s.asked.Request, out.Granted)
		}
		putPermits(slot, &p)
	}
	return out, c.Balance(&p, now)
}

func (s *shard) permitsFit(cl *compiledLimit, slot []uint64, _ int64) bool {
	size := s.blocks[cl.table.trust()].Size(blockOf(slot))
	return size >= algorithm.PermitWords*min(int(cl.permits.Count), lenOf(slot)+1)
}

// growPermits moves permits to which the request will add some into a longer block.
func (s *shard) growPermits(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool {
	p := s.permits(cl, slot)
	cl.permits.Normalize(&p, now)
	if cl.permits.Decide(&p, now, req).Granted <= 0 {
		return true
	}
	return s.growPermitsTo(cl, slot, &p, cl.permits.Room(&p, now))
}

// growPermitsFor makes room for n more grants to a key whose slot has a block.
func (s *shard) growPermitsFor(cl *compiledLimit, slot []uint64, now int64, n int) bool {
	p := s.permits(cl, slot)
	cl.permits.Normalize(&p, now)
	need := cl.permits.Room(&p, now) + algorithm.PermitWords*(n-1)
	return len(p.Words) >= algorithm.PermitWords*int(cl.permits.Count) || s.growPermitsTo(cl, slot, &p, need)
}

// growPermitsTo moves permits into a block of as many words as are needed, unless they have one.
func (s *shard) growPermitsTo(cl *compiledLimit, slot []uint64, p *algorithm.Permits, need int) bool {
	if need <= len(p.Words) {
		return true
	}
	old := blockOf(slot)
	most := max(need, algorithm.PermitWords*int(cl.permits.Count))
	if !s.newBlock(cl, slot, min(max(need, 2*len(p.Words)), most)) {
		return false
	}
	copy(s.permits(cl, slot).Words, p.Words)
	if old != 0 {
		s.blocks[cl.table.trust()].Free(old)
	}
	return true
}

// permits decodes the permits of a concurrency limit. If the slot has no block, there
// are none, and Words is nil.
func (s *shard) permits(cl *compiledLimit, slot []uint64) (p algorithm.Permits) {
	if b := blockOf(slot); b != 0 {
		p = permitsOf(slot, s.blocks[cl.table.trust()].Words(b))
	}
	return p
}
