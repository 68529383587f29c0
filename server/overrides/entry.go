package overrides

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// An Entry is an override in force, or one that has ended and under whose limit units may
// still be charged.
type Entry struct {
	*Action
	record  Record
	pattern Pattern
	until   int64        // Unix nanoseconds; 0 for good
	used    atomic.Int64 // Unix seconds of the last use; 0 for never

	// from are limits of earlier overrides of the key, whose units are carried over.
	from     []penstock.Limit
	carryMu  sync.Mutex
	carried  atomic.Int32 // the last phase whose limit has got the units
	newUntil int64        // Unix nanoseconds until which it is new; 0 if no other daemon has it
}

// Remaining returns how long the override stays in force, at least a millisecond, or
// [penstock.Never] if it does for good.
func (e *Entry) Remaining() time.Duration {
	if e.until == 0 {
		return penstock.Never
	}
	return max(time.Until(e.record.Until), time.Millisecond)
}

// Listed returns the override with when it was last used.
func (e *Entry) Listed() Listed {
	l := Listed{Override: e.record.Override, set: e.record.Version / int64(time.Second/time.Microsecond)}
	if used := e.used.Load(); used != 0 {
		l.Used = time.Unix(used, 0).UTC()
	}
	return l
}

// endedAt reports whether the override has ended.
func (e *Entry) endedAt(now int64) bool {
	return e.record.Deleted || e.until != 0 && e.until <= now
}

// hasEnded reports whether the override has ended now.
func (e *Entry) hasEnded() bool {
	return e.record.Deleted || e.until != 0 && e.until <= time.Now().UnixNano()
}

// counts reports whether units may be charged under limits other than the rule's.
func (e *Entry) counts() bool { return e.Kind == Limited || len(e.from) > 0 }

// owes reports whether an ended override has to be found once more, so that the units
// under its limit are carried over to the rule's.
func (e *Entry) owes() bool { return e.counts() && e.carried.Load() < ended }

// touch records a use. Its resolution is a second, so that a busy key seldom writes.
func (e *Entry) touch(now int64) {
	if second := now / int64(time.Second); e.used.Load() != second {
		e.used.Store(second)
	}
}
