package penstock

import (
	"cmp"
	"math"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

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
