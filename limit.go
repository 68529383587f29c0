package penstock

import (
	"time"
)

// An Algorithm says how units are counted. The zero Algorithm is [TokenBucket].
type Algorithm uint8

// The six algorithms. docs/algorithms.md draws what each admits.
const (
	// TokenBucket admits bursts of up to Burst and Count per Period over
	// time. It is the right choice for most limits: one word a key, no edges.
	TokenBucket Algorithm = iota

	// LeakyBucket is a queue that holds Burst units and drains evenly. A
	// request is allowed with a Delay that puts it in line, and refused when
	// the queue is full.
	LeakyBucket

	// FixedWindow counts to Count and starts again when the window ends. It
	// is the one for quotas that people talk about: five a day, from midnight
	// with AlignDay, or else from the key's first request.
	FixedWindow

	// SlidingWindow weighs the previous window's count by how much of it is
	// still within one Period: cheap, without the fixed window's double
	// burst in practice, though not in the worst case.
	SlidingWindow

	// RollingWindow counts in Buckets parts of the period. No interval of one
	// Period ever admits more than Count; for that, units come back up to one
	// part late, so ten parts let through nine tenths of what is asked of them
	// without a pause, and a hundred parts nearly all.
	RollingWindow

	// SlidingLog remembers every admitted moment. It is exact, and pays for
	// that with eight bytes a unit.
	SlidingLog
)

// isBucket reports whether the algorithm counts by a rate and a burst.
func (a Algorithm) isBucket() bool { return a == TokenBucket || a == LeakyBucket }

// An Align says where the windows of a [FixedWindow] begin.
type Align uint8

// The ways to align a fixed window.
const (
	AlignFirst Align = iota // at the key's first request
	AlignClock              // at multiples of Period since 1970-01-01 UTC, plus Offset
	AlignDay                // at the start of each day in Zone, plus Offset
	AlignWeek               // on Mondays
	AlignMonth              // on the first day of the month
	AlignYear               // on the first of January
)

// A Limit says how much, over how long, counted how. Limits are values:
// comparable, copied freely, and usable as map keys. The zero Limit is invalid.
//
// A Burst or Buckets that belongs to another algorithm is ignored.
type Limit struct {
	// Name says whose state this is. Limits of one name share their state
	// even when Count or Burst differ, so a limit can be changed while it is
	// in use: raising it frees room at once, lowering it clamps what is owed.
	// (Buckets owe time: a larger Burst frees room at once, a larger Count
	// makes what is owed come back sooner.) A limit without a name is
	// identified by all of its fields: two that are equal share their state, in
	// one store and on one key. At most 64 bytes. Optional.
	Name string

	// Algorithm says how units are counted. Default: TokenBucket.
	Algorithm Algorithm

	// Align says where a FixedWindow begins. Default: AlignFirst.
	Align Align

	// Count is the number of units per Period. Zero denies every cost above
	// zero.
	Count int64

	// Period is how long Count is good for: more than zero, at most 366 days.
	// Required, except that the calendar alignments imply theirs.
	Period time.Duration

	// Burst is the most that can be taken at once (TokenBucket), or that can
	// wait in line (LeakyBucket). Default: Count.
	Burst int64

	// Buckets is the number of parts a RollingWindow counts in, from 1 to
	// 1000. Default: 10.
	Buckets int

	// Offset moves the beginning of an aligned FixedWindow. Default: none.
	Offset time.Duration

	// Zone is the IANA time zone, such as "Asia/Shanghai", whose calendar a
	// FixedWindow follows under AlignDay, AlignWeek, AlignMonth or AlignYear.
	// The machine must have zone data; where it may not, as in an empty
	// container, import time/tzdata. Default: UTC.
	Zone string
}

// Per returns a token bucket of n units per period. Its burst is n, so a key that
// was quiet can take nearly 2n within its first period; see [Limit.WithBurst].
func Per(n int64, period time.Duration) Limit { return Limit{Count: n, Period: period} }

// PerSecond returns a token bucket of n units a second. Like all of these it has
// a burst of n: see [Per].
func PerSecond(n int64) Limit { return Limit{Count: n, Period: time.Second} }

// PerMinute returns a token bucket of n units a minute.
func PerMinute(n int64) Limit { return Limit{Count: n, Period: time.Minute} }

// PerHour returns a token bucket of n units an hour.
func PerHour(n int64) Limit { return Limit{Count: n, Period: time.Hour} }

// PerDay returns a token bucket of n units in 24 hours. For a quota that begins
// at midnight somewhere, see [AlignDay].
func PerDay(n int64) Limit { return Limit{Count: n, Period: 24 * time.Hour} }

// WithBurst returns the limit with another burst.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// WithName returns the limit under a name.
func (l Limit) WithName(name string) Limit {
	l.Name = name
	return l
}

// WithAlgorithm returns the limit counted in another way.
func (l Limit) WithAlgorithm(a Algorithm) Limit {
	l.Algorithm = a
	return l
}

// Capacity returns the most that the limit can grant at once: the burst of a
// bucket, the count of a window. A larger cost is denied with a RetryAfter of
// [Never]. A [Decision] carries it as Limit.
func (l Limit) Capacity() int64 {
	if l.Algorithm.isBucket() {
		return l.normalBurst()
	}
	return l.Count
}
