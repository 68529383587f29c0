package algorithmtest

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A kind is an algorithm. There are two kinds of fixed window, since aligned ones do not
// begin with the first unit.
type kind string

// A row is what a kind is, and how a key and the oracle decide it.
type row struct {
	bucket    bool // has a rate
	debt      bool // can be overdrawn
	newKey    func() key
	newLedger func(l limit) ledger           // nil if it has an oracle of its own
	refill    func(l limit, now int64) int64 // how long a key takes to refill, at most; by default one period
}

// rows has all kinds. The file of an algorithm adds its own.
var rows = map[kind]row{}

func newKind(k kind, r row) kind {
	rows[k] = r
	return k
}

func (k kind) hasDebt() bool { return rows[k].debt }

func (k kind) isBucket() bool { return rows[k].bucket }

const (
	millisecond = 1_000_000
	second      = 1000 * millisecond
	minute      = 60 * second
	hour        = 60 * minute
	day         = 24 * hour
	year        = 365 * day
)

// A limit is the limit of a key. Each kind uses its own fields.
type limit struct {
	kind      kind
	tick      int64
	rate      algorithm.Rate // buckets
	count     int64          // windows
	period    int64          // windows but fixed ones, in whole ticks
	windows   schedule       // fixed windows
	buckets   int64          // rolling windows
	overdraft int64          // windows
}

func (l limit) String() string {
	switch {
	case l.kind.isBucket():
		return fmt.Sprintf("%s %+v", l.kind, l.rate)
	case l.windows != nil:
		return fmt.Sprintf("%s of %d and %d in %T%+v, tick %d", l.kind, l.count, l.overdraft, l.windows, l.windows, l.tick)
	case l.kind == rollingWindow:
		return fmt.Sprintf("%s of %d per %d in %d buckets, tick %d", l.kind, l.count, l.period, l.buckets, l.tick)
	}
	return fmt.Sprintf("%s of %d and %d per %d, tick %d", l.kind, l.count, l.overdraft, l.period, l.tick)
}

// max returns the most that could be granted at once.
func (l limit) max() int64 {
	if l.kind.isBucket() {
		return l.rate.Burst
	}
	return l.count
}

// durations returns the durations at which the limit's state changes.
func (l limit) durations(now int64) []int64 {
	switch {
	case l.kind.isBucket():
		bucket := algorithm.TokenBucket{Rate: l.rate}
		return []int64{l.rate.Interval, bucket.Capacity(), bucket.Reach()}
	case l.windows != nil:
		w := l.windows.window(now)
		return []int64{w.Length, w.End - now, now - (w.End - w.Length)}
	case l.kind == rollingWindow:
		length := bucketLength(l)
		return []int64{length, length - now%length, now % length, l.period}
	}
	return []int64{l.period}
}

// A key is one key of a store: a limit, and the state under it. It decides as a store
// does.
type key interface {
	decide(now int64, req algorithm.Request) result

	// refundDue refunds units that time will have paid back at due.
	refundDue(now, units, due int64) result

	change(l limit)
	fork() key

	// state describes the state at now. It is the same for equivalent states.
	state(now int64) string

	// valid reports whether Decide may leave this state.
	valid(now int64) bool
}

func newKey(l limit) key {
	k := rows[l.kind].newKey()
	k.change(l)
	return k
}
