// Package quota bounds what several owners use together.
package quota

import "sync/atomic"

// A Quota is a bound on a counter. What is acquired from a quota is acquired from its
// parent too, so it is a share of the parent's. Quotas with different bounds can share
// a counter. It is safe for concurrent use.
type Quota struct {
	used   *atomic.Int64
	max    int64
	parent *Quota
}

// New returns a quota of max, on a counter of its own. The parent is optional.
func New(maximum int64, parent *Quota) *Quota {
	return &Quota{used: new(atomic.Int64), max: maximum, parent: parent}
}

// WithMax returns a quota with the same counter and another bound, without a parent.
func (q *Quota) WithMax(maximum int64) *Quota { return &Quota{used: q.used, max: maximum} }

// Acquire takes n, unless that exceeds the quota or its parent. The counter never exceeds
// the bound, not even for a moment, in which other calls would fail without a reason.
func (q *Quota) Acquire(n int64) bool {
	for used := q.used.Load(); ; used = q.used.Load() {
		if used > q.max-n {
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			break
		}
	}
	if q.parent == nil || q.parent.Acquire(n) {
		return true
	}
	q.used.Add(-n)
	return false
}

// Available reports whether Acquire(1) would succeed.
func (q *Quota) Available() bool {
	return q.used.Load() < q.max && (q.parent == nil || q.parent.Available())
}

// Release returns n.
func (q *Quota) Release(n int64) {
	for ; q != nil; q = q.parent {
		q.used.Add(-n)
	}
}

// Used returns what is acquired now.
func (q *Quota) Used() int64 { return q.used.Load() }

// Max returns the bound.
func (q *Quota) Max() int64 { return q.max }
