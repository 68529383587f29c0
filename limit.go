package penstock

import (
	"cmp"
	"math"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

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

// An Align determines where the windows of a [FixedWindow] begin.
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

// A Limit is a number of units per period, and the algorithm that counts them.
// Limits are values: they are comparable, can be copied, and can be map keys. The
// zero Limit is invalid. A Burst, Debt or Buckets that the algorithm does not use is
// ignored.
type Limit struct {
	// Name identifies the limit's state. Limits with the same name share their
	// state even if Count or Burst differ, so a limit can be changed while it is
	// in use. A window owes units: a larger Count frees units at once. A bucket
	// owes time: a larger Burst frees units at once, a larger Count makes it
	// refill sooner, and from 60/1m to 600/1m both grow, so nothing is free at
	// once. Lowering a limit frees nothing, with two exceptions that docs/verbs.md
	// names: what a key has used beyond it stays used. A limit without a name is
	// identified by all of its fields: equal limits share the state of a key in a
	// store. At most 64 bytes. Optional.
	//
	// The daemon names the limit of a rule as the rule. A program that uses the
	// same store reaches the state of a rule by a limit of that name and
	// algorithm, and of the same window, with the key that the rule makes.
	Name string

	// Algorithm counts the units. Default: TokenBucket.
	Algorithm Algorithm

	// Align is where a FixedWindow begins. Default: AlignFirst.
	Align Align

	// Untrusted marks a limit that a remote caller chose. Its state is separate
	// from that of all limits without the mark, whatever their names, and it can
	// fill only a share of a [Memory]. It is no part of a limit's text: the
	// program that accepts the limit sets it.
	Untrusted bool

	// Count is the number of units per Period. A Count of zero denies every cost
	// above zero.
	Count int64

	// Period is more than zero and at most 366 days. Required, unless a calendar
	// alignment implies it.
	Period time.Duration

	// Burst is the most that can be taken at once (TokenBucket), or that can
	// be queued (LeakyBucket). Default: Count.
	Burst int64

	// Debt is how many units a [Limiter.Charge] may take beyond an empty bucket
	// or a used-up window. It is no part of a named limit's identity. Rolling
	// windows, logs and concurrency limits have no debt. [NoDebt] forbids debt.
	// Default: one whole capacity, or what a SlidingWindow can count beyond its
	// own if that is less.
	Debt int64

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

// NoDebt, as the Debt of a [Limit], lets a charge take only the units that are
// left. In the text of a limit it is debt=0.
const NoDebt int64 = -1

// Per returns a token bucket of n units per period. Its burst is n, so an idle
// key can take nearly 2n within its first period: see [Limit.WithBurst].
func Per(n int64, period time.Duration) Limit { return Limit{Count: n, Period: period} }

// PerSecond returns a token bucket of n units per second, with a burst of n. See
// [Per].
func PerSecond(n int64) Limit { return Limit{Count: n, Period: time.Second} }

// PerMinute returns a token bucket of n units per minute.
func PerMinute(n int64) Limit { return Limit{Count: n, Period: time.Minute} }

// PerHour returns a token bucket of n units per hour.
func PerHour(n int64) Limit { return Limit{Count: n, Period: time.Hour} }

// PerDay returns a token bucket of n units per 24 hours. For a quota that begins at
// midnight, see [AlignDay].
func PerDay(n int64) Limit { return Limit{Count: n, Period: 24 * time.Hour} }

// WithBurst returns the limit with that burst.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// WithName returns the limit with that name.
func (l Limit) WithName(name string) Limit {
	l.Name = name
	return l
}

// WithAlgorithm returns the limit with that algorithm.
func (l Limit) WithAlgorithm(a Algorithm) Limit {
	l.Algorithm = a
	return l
}

// Capacity returns the most that the limit can grant at once: the burst of a
// bucket, the count of a window. A larger cost is denied with a RetryAfter of
// [Never]. A [Decision] carries it as Limit.
func (l Limit) Capacity() int64 {
	if l.isBucket() {
		return l.normalBurst()
	}
	return l.Count
}

// MaxDebt returns how many units a charge may take beyond an empty bucket or a
// used-up window: Debt, with its default filled in. The limit must be valid.
func (l Limit) MaxDebt() int64 {
	switch {
	case !l.canOwe() || l.Count == 0:
		return 0
	case l.Debt != 0:
		return max(l.Debt, 0)
	}
	return l.defaultDebt()
}

// defaultDebt returns one whole capacity, or less if more could not be counted.
func (l Limit) defaultDebt() int64 {
	if l.isBucket() {
		return l.normalBurst()
	}
	return min(l.Count, max(l.mostCount()-l.Count, 0))
}

// mostCount returns the most that a window can count.
func (l *Limit) mostCount() int64 {
	return cmp.Or(algorithms[l.Algorithm].maxCount.most, math.MaxInt64)
}

// Normal returns the limit with its defaults filled in, and the fields that its
// algorithm ignores cleared, so that equivalent limits are equal. A Debt that is the
// default is 0. Invalid fields stay as they are.
func (l Limit) Normal() Limit {
	n := Limit{Name: l.Name, Algorithm: l.Algorithm, Untrusted: l.Untrusted, Count: l.Count, Period: l.Period}
	if l.canOwe() && (l.Debt < NoDebt || l.Count > 0 && l.MaxDebt() != l.defaultDebt()) {
		n.Debt = l.Debt
	}
	switch {
	case l.isBucket():
		n.Burst = l.normalBurst()
	case l.aligns():
		n.Align = l.Align
		n.Period, n.Offset, n.Zone = l.normalWindow()
	case l.hasParts():
		n.Buckets = cmp.Or(l.Buckets, defaultBuckets)
	}
	return n
}

func (l *Limit) normalBurst() int64 {
	if l.Burst == 0 || l.Burst > 0 && l.Count == 0 {
		return l.Count
	}
	return l.Burst
}

// normalWindow returns Period, Offset and Zone as the alignment uses them.
// Windows on the clock are the same for offsets one period apart. Windows on a
// calendar are not, because days and months differ in length.
func (l *Limit) normalWindow() (period, offset time.Duration, zone string) {
	switch {
	case l.Align == AlignFirst:
		return l.Period, 0, ""
	case l.Align == AlignClock:
		if -l.Period < l.Offset && l.Offset < 0 {
			return l.Period, l.Offset + l.Period, ""
		}
		return l.Period, l.Offset, ""
	}
	period, zone = l.Period, l.Zone
	if period == 0 {
		period = l.calendarPeriod()
	}
	if zone == "" {
		zone = "UTC"
	}
	return period, l.Offset, zone
}

// Identity returns the part of the limit that identifies its state: two limits
// share the state of a key if and only if their identities are equal. See
// [Limit.Name]. The limit must be valid. Only authors of stores need it.
func (l Limit) Identity() Limit { return l.Normal().identity() }

// identity returns the identity of a normal limit. An unnamed limit is identified
// by all of its fields; a named one by its name, its algorithm, the shape of its
// window, because counts in a window of another shape mean nothing, and by whether
// it is untrusted.
func (l Limit) identity() Limit {
	if l.Name == "" {
		return l
	}
	l.Count, l.Burst, l.Debt = 0, 0, 0
	if l.isBucket() {
		l.Period = 0
	}
	return l
}

// Window returns the window of a [FixedWindow] that contains an instant: start is
// inclusive, end exclusive. With AlignFirst it begins at the instant. The limit
// must be valid. Only authors of stores need it.
func (l Limit) Window(at time.Time) (start, end time.Time) {
	n := l.Normal()
	switch n.Align {
	case AlignFirst:
		return at, at.Add(n.Period)
	case AlignClock:
		w := algorithm.Aligned(at.UnixNano(), int64(n.Period), int64(n.Offset))
		return time.Unix(0, w.End-w.Length).UTC(), time.Unix(0, w.End).UTC()
	}
	c, err := newCalendar(n)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	return c.Window(at)
}
