package algorithm

// The rolling window of n buckets.
//
// Idea: divide the period into n buckets on the clock, count in the newest, and drop
// the oldest as time passes. The units used are the sum.
//
// Bound: no interval of one Period admits more than Count. For that, the sum covers
// n+1 buckets: the current one and n whole ones before it. With only n, units of the
// dropped bucket would be released up to one bucket's length too early, and 2·Count
// could pass. The price is that a unit comes back up to one bucket later.
//
//	│ n+1 buckets counted                        │
//	├──────┬──────┬──────┬──────┬──────┬──────┬──┄┄┤
//	            │ one Period, wherever it lies   now
//
// State: the counts in a ring, their sum, and the number of the newest bucket, counted
// from time 0.

// A Ring is the state of a rolling window. It has one count more than a period
// has buckets. The zero Ring is idle; it supports Decide but not Record.
type Ring struct {
	Newest int64   // number of the bucket at Counts[Head]
	Total  int64   // the sum of Counts
	Head   int     // index of the newest bucket
	Counts []int64 // after Head, the others follow, oldest first
}

// A RollingWindow decides on a [Ring].
type RollingWindow struct {
	Count   int64
	Buckets int64 // in a period; a Ring has one more
	Length  int64 // of one bucket, in whole ticks
}

// NewRollingWindow returns a window of count units per period, in that many
// buckets.
func NewRollingWindow(count, period, buckets, tick int64) RollingWindow {
	length := (period + buckets - 1) / buckets
	return RollingWindow{Count: count, Buckets: buckets, Length: RoundUp(length, tick)}
}

// IsValid reports whether a ring that was read from elsewhere can be one of this window.
func (w *RollingWindow) IsValid(r Ring) bool {
	if r.Newest < 0 || r.Newest > MaxTime/w.Length {
		return false
	}
	left := r.Total
	for _, count := range r.Counts {
		if left -= count; count < 0 || left < 0 {
			return false
		}
	}
	return left == 0
}

// Normalize moves buckets from the future to the present.
func (w *RollingWindow) Normalize(r *Ring, now int64) {
	if current := w.bucket(r, now); current < r.Newest {
		r.retreat(current)
	}
}

// Spend is Normalize, Decide and Balance for the most common case: the cost fits without
// AtMost or KeepFree, and belongs to the newest bucket. Of the ring it needs two fields alone.
// If it is ok, the caller adds the cost to the count of the newest bucket and to the total; if
// not, the others must be called.
func (w *RollingWindow) Spend(newest, total, now, cost int64) (bal Balance, ok bool) {
	into := now - newest*w.Length
	if into < 0 || into >= w.Length || cost > w.Count-total {
		return bal, false
	}
	return Balance{Remaining: w.Count - total - cost, ResetAfter: (w.Buckets+1)*w.Length - into}, true
}

// Decide returns the outcome without changing the ring, which must be normalized.
func (w *RollingWindow) Decide(r *Ring, now int64, req Request) Outcome {
	expired, used := r.usedAt(w.bucket(r, now))
	switch {
	case req.Cost > 0:
		return w.take(r, now, expired, used, &req)
	case req.Cost < 0:
		return req.refund(used)
	}
	return Outcome{Allowed: true}
}

// Balance returns the state of a normalized ring.
func (w *RollingWindow) Balance(r *Ring, now int64) Balance {
	_, used := r.usedAt(w.bucket(r, now))
	if used == 0 {
		return Balance{Remaining: w.Count}
	}
	return Balance{Remaining: max(w.Count-used, 0), ResetAfter: w.Empty(r) - now}
}

// Record charges the granted units, or refunds the newest if granted is negative.
func (w *RollingWindow) Record(r *Ring, now, granted int64) {
	r.advance(w.bucket(r, now))
	if granted > 0 {
		r.Counts[r.Head] += granted
		r.Total += granted
		return
	}
	for rank := len(r.Counts) - 1; granted < 0; rank-- {
		granted += r.remove(r.index(rank), -granted)
	}
}

// Empty returns when no unit is used any more.
func (w *RollingWindow) Empty(r *Ring) int64 {
	if r.Total == 0 {
		return 0
	}
	return w.expiresAt(r, r.newestUsed())
}

func (w *RollingWindow) take(r *Ring, now int64, expired int, used int64, req *Request) Outcome {
	o, missing := req.take(w.Count, w.Count-used)
	if missing > 0 {
		o.RetryAfter = w.expiresAt(r, r.rankOfUnit(expired, missing)) - now
	}
	return o
}

// bucket returns the number of the bucket that contains now. On a busy key that
// is the newest, which is checked first because it needs no division.
func (w *RollingWindow) bucket(r *Ring, now int64) int64 {
	if into := now - r.Newest*w.Length; into >= 0 && into < w.Length {
		return r.Newest
	}
	return now / w.Length
}

// expiresAt returns when the bucket of a rank is dropped.
func (w *RollingWindow) expiresAt(r *Ring, rank int) int64 {
	return (r.Newest + int64(rank) + 1) * w.Length
}

// index returns the index in Counts of the bucket of a rank. Rank 0 is the
// oldest.
func (r *Ring) index(rank int) int {
	i := r.Head + 1 + rank
	if i >= len(r.Counts) {
		i -= len(r.Counts)
	}
	return i
}

// usedAt returns how many of the oldest buckets have expired when current is the
// newest bucket, and how many units the others hold.
func (r *Ring) usedAt(current int64) (expired int, used int64) {
	passed := current - r.Newest
	if passed >= int64(len(r.Counts)) {
		return len(r.Counts), 0
	}
	used = r.Total
	for ; expired < int(passed); expired++ {
		used -= r.Counts[r.index(expired)]
	}
	return expired, used
}

// rankOfUnit returns the rank of the bucket that holds the n-th oldest unit which
// has not expired.
func (r *Ring) rankOfUnit(expired int, n int64) int {
	rank := expired
	for n -= r.Counts[r.index(rank)]; n > 0; n -= r.Counts[r.index(rank)] {
		rank++
	}
	return rank
}

// newestUsed returns the rank of the newest bucket that holds units.
func (r *Ring) newestUsed() int {
	rank := len(r.Counts) - 1
	for i := r.Head; r.Counts[i] == 0; i = r.index(rank) {
		rank--
	}
	return rank
}

// advance makes current the newest bucket.
func (r *Ring) advance(current int64) {
	passed := min(current-r.Newest, int64(len(r.Counts)))
	for ; passed > 0; passed-- {
		r.Head = r.index(0)
		r.remove(r.Head, r.Counts[r.Head])
	}
	r.Newest = current
}

// retreat makes current the newest bucket after the clock stepped back. Units
// from the future move into it. Older buckets stay, or else a clock that jitters
// around an edge would push units out.
func (r *Ring) retreat(current int64) {
	for ahead := min(r.Newest-current, int64(len(r.Counts))); ahead > 0; ahead-- {
		late := r.Counts[r.Head]
		r.Counts[r.Head] = 0
		r.Head = r.index(len(r.Counts) - 2)
		r.Counts[r.Head] += late
	}
	r.Newest = current
}

// remove removes at most n units from one bucket, and returns how many.
func (r *Ring) remove(i int, n int64) int64 {
	n = min(n, r.Counts[i])
	r.Counts[i] -= n
	r.Total -= n
	return n
}

// RefundDue refunds units of a grant from the bucket that is dropped at due, and like
// Record drops the buckets that have left the window. The ring must be normalized, and due
// in the future.
func (w *RollingWindow) RefundDue(r *Ring, now, units, due int64) Outcome {
	rank := due/w.Length - r.Newest - 1
	if rank < 0 || rank >= int64(len(r.Counts)) || due != w.expiresAt(r, int(rank)) {
		return Outcome{Allowed: true}
	}
	back := r.remove(r.index(int(rank)), units)
	if back > 0 {
		r.advance(w.bucket(r, now))
	}
	return Outcome{Allowed: true, Granted: -back}
}
