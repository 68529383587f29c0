package penstock

import (
	"time"
	"unsafe"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// This file knows how the state of each algorithm lies in a slot's words, and
// in the run of words that a slot may refer to. What all slots have in common
// is in table.go.

// decide decides an ask and brings the slot, and what it refers to, up to date.
// It writes the decision where the caller will return it from, because handing
// so large a struct from function to function takes longer than making it.
func (s *shard) decide(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask, d *Decision) {
	switch cl.limit.Algorithm {
	case TokenBucket:
		b, v := cl.token.Decide(bucketOf(slot[1]), now, ask)
		slot[1] = wordOf(b)
		d.set(cl, v, cl.token.Standing(max(b.Full-now, 0)))
	case LeakyBucket:
		drained, v := cl.leaky.Decide(int64(slot[1]), now, ask)
		slot[1] = uint64(drained)
		d.set(cl, v, cl.leaky.Standing(max(drained-now, 0)))
	case FixedWindow:
		c, v := cl.fixed.Decide(counterOf(slot), now, cl.window(now), ask)
		putCounter(slot, c)
		d.set(cl, v, cl.fixed.Standing(c, now))
	case SlidingWindow:
		c, v := cl.sliding.Decide(slideOf(cl, slot), now, ask)
		putSlide(cl, slot, c)
		d.set(cl, v, cl.sliding.Standing(c, now))
	case RollingWindow:
		s.decideRolling(cl, slot, now, ask, d)
	case SlidingLog:
		s.decideLog(cl, slot, now, ask, d)
	}
}

func (d *Decision) set(cl *compiledLimit, v algorithm.Verdict, st algorithm.Standing) {
	d.Allowed = v.Allowed
	d.Granted = v.Granted
	d.Limit = cl.most
	d.Remaining = st.Remaining
	d.RetryAfter = time.Duration(v.RetryAfter)
	d.ResetAfter = time.Duration(st.ResetAfter)
	d.Delay = time.Duration(v.Delay)
}

// verdict tells what an ask would get, and charges nothing.
func (s *shard) verdict(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask) (v algorithm.Verdict) {
	switch cl.limit.Algorithm {
	case TokenBucket:
		_, v = cl.token.Decide(bucketOf(slot[1]), now, ask)
	case LeakyBucket:
		_, v = cl.leaky.Decide(int64(slot[1]), now, ask)
	case FixedWindow:
		_, v = cl.fixed.Decide(counterOf(slot), now, cl.window(now), ask)
	case SlidingWindow:
		_, v = cl.sliding.Decide(slideOf(cl, slot), now, ask)
	case RollingWindow:
		r, recorded := s.ringOf(cl, slot)
		cl.rolling.Settle(&r, now)
		if recorded {
			putRing(slot, &r) // settling may have emptied buckets
		}
		v = cl.rolling.Decide(&r, now, ask)
	case SlidingLog:
		l := s.logOf(cl, slot)
		cl.log.Settle(&l, now)
		v = cl.log.Decide(&l, now, ask)
	}
	return v
}

// A token bucket is the instant at which it is full; the sign bit says that
// units are reserved.
func bucketOf(word uint64) algorithm.Bucket {
	return algorithm.Bucket{Full: int64(word &^ signBit), Reserved: word&signBit != 0}
}

func wordOf(b algorithm.Bucket) uint64 {
	if b.Reserved {
		return uint64(b.Full) | signBit
	}
	return uint64(b.Full)
}

// A fixed window is its end, and what is used.
func counterOf(slot []uint64) algorithm.Counter {
	return algorithm.Counter{End: int64(slot[1]), Used: int64(slot[2])}
}

func putCounter(slot []uint64, c algorithm.Counter) {
	slot[1], slot[2] = uint64(c.End), uint64(c.Used)
}

// A sliding window is the end of the window after the current one, at which
// nothing is left, and two counts of 32 bits.
func slideOf(cl *compiledLimit, slot []uint64) algorithm.Slide {
	return algorithm.Slide{
		Previous: int64(slot[2] >> 32),
		Current:  int64(uint32(slot[2])),
		End:      int64(slot[1]) - cl.period,
	}
}

func putSlide(cl *compiledLimit, slot []uint64, c algorithm.Slide) {
	slot[1], slot[2] = 0, uint64(c.Previous)<<32|uint64(c.Current)
	if c.End != 0 {
		slot[1] = uint64(c.End + cl.period)
	}
}

// A rolling window is a run of counts; the slot's other words are where the newest
// is, which one that is, and the total. A slot without a run is as good as new.
func (s *shard) ringOf(cl *compiledLimit, slot []uint64) (r algorithm.Ring, ok bool) {
	if slot[2] == 0 {
		return r, false
	}
	return algorithm.Ring{
		Head:   int(slot[3] >> 32),
		Newest: int64(slot[4]),
		Total:  int64(slot[5]),
		Counts: s.blocks.words(run(slot[2]))[:cl.rolling.Buckets+1],
	}, true
}

func putRing(slot []uint64, r *algorithm.Ring) {
	slot[3], slot[4], slot[5] = uint64(r.Head)<<32, uint64(r.Newest), uint64(r.Total)
}

func (s *shard) decideRolling(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask, d *Decision) {
	r, recorded := s.ringOf(cl, slot)
	if recorded && ask.Cost > 0 && !ask.AtMost {
		if st, ok := cl.rolling.Spend(&r, now, ask.Cost); ok {
			slot[1], slot[5] = uint64(now+st.ResetAfter), uint64(r.Total)
			d.set(cl, algorithm.Verdict{Allowed: true, Granted: ask.Cost}, st)
			return
		}
	}
	cl.rolling.Settle(&r, now)
	v := cl.rolling.Decide(&r, now, ask)
	if recorded && v.Granted != 0 {
		cl.rolling.Record(&r, now, v.Granted)
	}
	if recorded {
		putRing(slot, &r)
		slot[1] = uint64(cl.rolling.Empty(&r))
	}
	d.set(cl, v, cl.rolling.Standing(&r, now))
}

// A sliding log is a run of moments; the slot's last word is where the oldest
// is, and how many there are. A slot without a run is as good as new.
func (s *shard) logOf(cl *compiledLimit, slot []uint64) (l algorithm.Log) {
	if slot[2] != 0 {
		l = algorithm.Log{
			Head:    int(slot[3] >> 32),
			Len:     int(uint32(slot[3])),
			Newest:  int64(slot[1]) - cl.period,
			Moments: s.blocks.words(run(slot[2])),
		}
	}
	return l
}

func putLog(cl *compiledLimit, slot []uint64, l *algorithm.Log) {
	slot[1] = uint64(cl.log.Empty(l))
	slot[3] = uint64(l.Head)<<32 | uint64(l.Len)
}

func (s *shard) decideLog(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask, d *Decision) {
	s.decideByLog(cl, &cl.log, slot, now, ask, d)
}

// decideCramped decides about a log that ought to be longer, when the store holds
// as many bytes as it may: it counts to what there is room for.
func (s *shard) decideCramped(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask, d *Decision) {
	short := cl.log
	short.Count = int64(len(s.logOf(cl, slot).Moments))
	s.decideByLog(cl, &short, slot, now, ask, d)
	if d.RetryAfter == Never && ask.Cost <= cl.log.Count {
		d.RetryAfter = time.Duration(cl.period)
	}
}

func (s *shard) decideByLog(cl *compiledLimit, w *algorithm.SlidingLog, slot []uint64, now int64, ask algorithm.Ask, d *Decision) {
	l := s.logOf(cl, slot)
	if ask.Cost > 0 && !ask.AtMost && l.Moments != nil {
		if st, ok := w.Spend(&l, now, ask.Cost); ok {
			putLog(cl, slot, &l)
			d.set(cl, algorithm.Verdict{Allowed: true, Granted: ask.Cost}, st)
			return
		}
	}
	w.Settle(&l, now)
	v := w.Decide(&l, now, ask)
	if l.Moments != nil {
		if v.Granted != 0 {
			w.Record(&l, now, v.Granted)
		}
		putLog(cl, slot, &l)
	}
	d.set(cl, v, w.Standing(&l, now))
}

// hasRoom reports whether what an ask may be granted can surely be recorded.
func (s *shard) hasRoom(cl *compiledLimit, slot []uint64, ask algorithm.Ask) bool {
	if ask.Cost <= 0 || slot[2] == 0 || cl.limit.Algorithm == RollingWindow {
		return ask.Cost <= 0 || slot[2] != 0
	}
	room := s.blocks.size(run(slot[2]))
	return room >= int(cl.log.Count) || int64(room-int(uint32(slot[3]))) >= ask.Cost
}

// growRun gives a slot a run that can record what an ask may be granted.
func (s *shard) growRun(cl *compiledLimit, slot []uint64, now int64, ask algorithm.Ask) bool {
	if s.hasRoom(cl, slot, ask) {
		return true
	}
	if cl.limit.Algorithm == RollingWindow {
		return s.giveRun(slot, int(cl.rolling.Buckets)+1)
	}
	l := s.logOf(cl, slot)
	return s.growLog(cl, slot, &l, now, ask)
}

// growLog moves a log that is too short for an ask into a longer run.
func (s *shard) growLog(cl *compiledLimit, slot []uint64, l *algorithm.Log, now int64, ask algorithm.Ask) bool {
	cl.log.Settle(l, now)
	need := cl.log.Room(l, now, max(cl.log.Decide(l, now, ask).Granted, 0))
	if need <= len(l.Moments) {
		return true
	}
	old := slot[2]
	if !s.giveRun(slot, min(max(need, 2*l.Len), int(cl.log.Count))) {
		return false
	}
	longer := s.logOf(cl, slot)
	l.CopyTo(&longer)
	putLog(cl, slot, &longer)
	if old != 0 {
		s.blocks.free(run(old))
	}
	return true
}

// giveRun lets a slot refer to another run of n words, all zero.
func (s *shard) giveRun(slot []uint64, n int) bool {
	r := s.blocks.alloc(n)
	if r == 0 {
		return false
	}
	slot[2] = uint64(r)
	return true
}

// lineWords is how many words the processor fetches together.
const lineWords = 8

// warm asks the processor to fetch what a decision will look at, so that it is
// there when the clock has been read: the slot, or what the slot refers to.
func (s *shard) warm(k kind, hash uint64) {
	t := &s.tables[k]
	if k != runTable {
		prefetch(unsafe.Pointer(&t.words[(hash&t.mask)*t.width]))
		return
	}
	if at, held := t.find(hash); held && t.words[at+2] != 0 {
		words := s.blocks.words(run(t.words[at+2]))
		first := int(t.words[at+3] >> 32)
		prefetch(unsafe.Pointer(&words[first]))
		prefetch(unsafe.Pointer(&words[min(first+lineWords, len(words)-1)]))
	}
}
