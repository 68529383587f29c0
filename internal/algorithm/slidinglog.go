package algorithm

// The sliding log.
//
// Idea: store the time of every admitted unit. The units used are those of the last
// Period.
//
// State: the times of the last Period, in order, in a ring. Denied requests leave none. A
// request of cost n leaves n equal times.
//
// Bound: any interval [t, t+Period) admits at most Count, exactly.

// A Log is the state of a sliding log: Len times in a ring, the oldest at Head.
// The ring may be shorter than Count as long as that suffices. The newest time is
// also stored separately, because reading it from a long ring is a cache miss.
type Log struct {
	Head   int
	Len    int
	Newest int64
	Times  []int64
}

// A SlidingLog decides on a [Log].
type SlidingLog struct {
	Count  int64
	Period int64 // in whole ticks
	Tick   int64
}

// IsValid reports whether the times of a log that was read from elsewhere are in order.
func (l *Log) IsValid() bool {
	last := int64(0)
	for i := range l.Len {
		if l.at(i) < last {
			return false
		}
		last = l.at(i)
	}
	return last <= l.Newest
}

// Normalize moves times from the future to the present.
func (w *SlidingLog) Normalize(l *Log, now int64) {
	if l.Newest > now {
		l.moveBackTo(now)
	}
}

// Spend is Normalize, Decide, Record and Balance for the most common case: the
// cost fits without AtMost or KeepFree, and the ring has room for it. If it returns false,
// nothing has changed, and the others must be called.
func (w *SlidingLog) Spend(l *Log, now, cost int64) (bal Balance, ok bool) {
	expired := l.countUpTo(now - w.Period)
	used := int64(l.Len - expired)
	if l.Newest > now || cost > min(w.Count, int64(len(l.Times)))-used {
		return bal, false
	}
	l.drop(expired)
	l.add(now, cost)
	return Balance{Remaining: w.Count - used - cost, ResetAfter: w.Period}, true
}

// Decide returns the outcome without changing the log, which must be normalized.
func (w *SlidingLog) Decide(l *Log, now int64, req Request) Outcome {
	expired := l.countUpTo(now - w.Period)
	used := int64(l.Len - expired)
	switch {
	case req.Cost > 0:
		return w.take(l, now, expired, used, &req)
	case req.Cost < 0:
		return req.refund(used)
	}
	return Outcome{Allowed: true}
}

// Balance returns the state of a normalized log.
func (w *SlidingLog) Balance(l *Log, now int64) Balance {
	used := l.Len - l.countUpTo(now-w.Period)
	if used == 0 {
		return Balance{Remaining: w.Count}
	}
	return Balance{Remaining: max(w.Count-int64(used), 0), ResetAfter: RoundUp(w.Empty(l)-now, w.Tick)}
}

// Room returns how long the ring must be to record that many more units.
func (w *SlidingLog) Room(l *Log, now, granted int64) int {
	return l.Len - l.countUpTo(now-w.Period) + int(granted)
}

// Record charges the granted units, or refunds the newest if granted is negative.
// The ring must have [SlidingLog.Room].
func (w *SlidingLog) Record(l *Log, now, granted int64) {
	l.drop(l.countUpTo(now - w.Period))
	if granted < 0 {
		l.Len += int(granted)
		l.Newest = l.at(max(l.Len-1, 0))
		return
	}
	l.add(now, granted)
}

// Empty returns when no unit is used any more.
func (w *SlidingLog) Empty(l *Log) int64 {
	if l.Len == 0 {
		return 0
	}
	return l.Newest + w.Period
}

func (w *SlidingLog) take(l *Log, now int64, expired int, used int64, req *Request) Outcome {
	o, missing := req.take(w.Count, w.Count-used)
	if missing > 0 {
		last := l.at(expired + int(missing) - 1)
		o.RetryAfter = RoundUp(last+w.Period-now, w.Tick)
	}
	return o
}

// index returns the index in Times of the i-th oldest time.
func (l *Log) index(i int) int {
	i += l.Head
	if i >= len(l.Times) {
		i -= len(l.Times)
	}
	return i
}

func (l *Log) at(i int) int64 { return l.Times[l.index(i)] }

// moveBackTo changes all times after now to now.
func (l *Log) moveBackTo(now int64) {
	for i := l.Len - 1; i >= 0 && l.at(i) > now; i-- {
		l.Times[l.index(i)] = now
	}
	l.Newest = now
}

// add appends the time n times. The ring must have room.
func (l *Log) add(now, n int64) {
	for ; n > 0; n-- {
		l.Times[l.index(l.Len)] = now
		l.Len++
	}
	l.Newest = now
}

// drop removes the n oldest times.
func (l *Log) drop(n int) {
	if n == 0 {
		return
	}
	l.Head = l.index(n)
	l.Len -= n
}

// countUpTo returns how many times are at or before t. On a busy key only the
// oldest few are, so it doubles its stride from the oldest until it has passed t,
// and then bisects the last stride.
func (l *Log) countUpTo(t int64) int {
	low, high := 0, l.Len
	for stride := 0; stride < l.Len; stride = 2*stride + 1 {
		if l.at(stride) > t {
			high = stride
			break
		}
		low = stride + 1
	}
	for low < high {
		if middle := (low + high) / 2; l.at(middle) > t {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// CopyTo copies the times, in order, into an empty log with a longer ring.
func (l *Log) CopyTo(longer *Log) {
	for i := range l.Len {
		longer.Times[i] = l.at(i)
	}
	longer.Head, longer.Len, longer.Newest = 0, l.Len, l.Newest
}

// RefundDue refunds units of a grant that no longer count at due, and like Record drops
// those that do not count at now. The log must be normalized, and due in the future.
func (w *SlidingLog) RefundDue(l *Log, now, units, due int64) Outcome {
	end := l.countUpTo(due - w.Period)
	n := min(int(units), end-l.countUpTo(due-w.Period-1))
	for i := end; i < l.Len && n > 0; i++ {
		l.Times[l.index(i-n)] = l.at(i)
	}
	if n > 0 {
		l.Len -= n
		l.Newest = l.at(max(l.Len-1, 0))
		l.drop(l.countUpTo(now - w.Period))
	}
	return Outcome{Allowed: true, Granted: -int64(n)}
}
