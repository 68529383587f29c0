package penstock

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// A holding is what is held of one key, and what is known of it. The zero holding
// is of nobody.
type holding struct {
	hash  uint64
	key   string
	meter *compiledLimit
	purse *purse // what may be spent; nil if there was never anything

	remaining int64 // in the store, when it was last asked
	resetAt   int64 // when the key is as good as new, according to that
	scarce    bool  // whether that was too little to take ahead

	asked int64 // units that were asked for here, …
	since int64 // … since then, or half of them if that was long ago

	flight    int64 // the number of the refill that is under way, if one is …
	refilling int64 // … and until when it is waited for
	denied    int64 // until when to deny, because there was not enough
	retryAt   int64 // when there will be some, if that is known
	aside     int64 // until when to leave the key alone
}

// A holdingSet holds the keys whose hashes end alike, under one lock.
type holdingSet struct {
	hot  atomic.Pointer[purse] // that was last spent of
	mu   sync.Mutex
	ways [setassoc.Ways]holding
}

// spend meets a need by the purse that was last spent of, and takes no lock.
func (s *holdingSet) spend(n *need, d *Decision) bool {
	p := s.hot.Load()
	return p != nil && p.hash == n.hash && p.numbers == n.meter.numbers && p.spend(n, d)
}

// spend meets a need if there is enough. One that is not new has been counted.
func (h *holding) spend(n *need, d *Decision, isNew bool) bool {
	ok := h.purse.spend(n, d)
	if ok && !isNew {
		h.purse.counted -= n.cost
	}
	return ok
}

// empty takes all units out of the purse.
func (h *holding) empty() (left int64) {
	if h.purse != nil {
		left = h.purse.left.Swap(0)
		h.asked += h.purse.counted - left
		h.purse.counted = 0
	}
	return left
}

// good returns how many units may be spent now.
func (h *holding) good(now int64) int64 {
	if h.purse == nil || now >= h.purse.expires {
		return 0
	}
	return h.purse.rest()
}

const (
	leastAsked = 8                      // before a key is taken for a busy one
	busyAsked  = 100                    // decisions that should be worth a trip …
	longestNo  = 250 * time.Millisecond // … if they come within this
	leaveAlone = 100 * time.Millisecond // a key that somebody else decides about
)

// enter meets a need by what is held, or says what to do: wait on a channel, ask
// the store for more (n.want), or ask it about the request alone. A need is counted
// when it is new, and one that has waited for long enough waits no more.
func (s *holdingSet) enter(l *Lease, n *need, d *Decision, isNew, patient bool) (done bool, landed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.want = 0
	if l.closed.Load() {
		return false, nil
	}
	h := s.find(l, n)
	if h == nil {
		return false, nil
	}
	h.count(n, l.maxAge)
	if h.spend(n, d, isNew) {
		s.hot.Store(h.purse)
		return true, nil
	}
	if isNew {
		h.asked += min(n.cost, n.most)
	}
	want := h.wanted(n, l.maxAge)
	switch {
	case n.waits || !patient || n.cost > want || n.now < h.aside:
		return false, nil
	case n.now < h.denied:
		h.deny(n, d)
		return true, nil
	case h.scarce && !h.isBusy(n):
		return false, nil
	case h.flight != 0 && n.now < h.refilling:
		return false, l.inflight.Wait(n.hash)
	case h.flight != 0:
		return false, nil
	}
	h.ask(l, n, want)
	return false, nil
}

// ask has more asked for: so much that, with what is held, there will be no more
// than is wanted. Until that is back nobody else asks, or else there might be.
func (h *holding) ask(l *Lease, n *need, want int64) {
	n.want = want - h.good(n.now)
	n.flight = l.flown.Add(1)
	h.flight, h.refilling = n.flight, n.now+int64(inflight.MaxWait)
}

// find returns the holding of a key, or a place for one. A key whose limit has
// changed begins anew, and so do those of which nothing is held when there is no
// other place.
func (s *holdingSet) find(l *Lease, n *need) *holding {
	var spare *holding
	for i := range s.ways {
		h := &s.ways[i]
		if h.is(n) {
			return h
		}
		if h.hash == n.hash {
			h.giveUp(l)
			*h = holding{hash: n.hash, meter: n.meter, since: n.now}
			return h
		}
		if h.purse.rest() == 0 && h.flight == 0 && (spare == nil || h.since < spare.since) {
			spare = h
		}
	}
	if spare != nil {
		*spare = holding{hash: n.hash, meter: n.meter, since: n.now}
	}
	return spare
}

// giveUp puts what is left on its way back.
func (h *holding) giveUp(l *Lease) {
	if left := h.empty(); left > 0 {
		l.returns.add(returned{key: h.key, meter: h.meter, units: left, taken: h.purse.taken})
		l.arm()
	}
}

// count takes note of what was asked for and met. What was long ago counts half.
func (h *holding) count(n *need, maxAge int64) {
	switch age := n.now - h.since; {
	case age > 8*maxAge || age < 0:
		h.asked, h.since = 0, n.now
	case age > maxAge:
		h.asked, h.since = h.asked/2, h.since+age/2
	}
	if h.purse != nil {
		left := h.purse.rest()
		h.asked += h.purse.counted - left
		h.purse.counted = left
	}
}

// leastSpan keeps the first few requests of a key from looking like a flood.
const leastSpan = 50 * time.Millisecond

// within returns how many units will be asked for in a time, going by the past.
func (h *holding) within(n *need, span int64) int64 {
	past := max(n.now-h.since, int64(leastSpan))
	return int64(float64(h.asked) * float64(span) / float64(past))
}

// wanted returns how many units to take ahead: enough for most of the time that
// they may be held, and no more than may be held. None is wanted of a key that is
// hardly asked for.
func (h *holding) wanted(n *need, maxAge int64) int64 {
	want := min(h.within(n, maxAge*7/10), n.most)
	if h.asked < leastAsked || want < 2 {
		return 0
	}
	return want
}

// isBusy reports whether so much is asked of a key that it is worth to deny some
// of it unasked.
func (h *holding) isBusy(n *need) bool { return h.within(n, int64(longestNo)) >= busyAsked }

// holdOff returns for how long to deny after the store had too little, and said
// when there will be some.
func (h *holding) holdOff(n *need, retry time.Duration) int64 {
	past := max(n.now-h.since, int64(leastSpan))
	hundred := int64(float64(busyAsked) * float64(past) / float64(max(h.asked, 1)))
	return min(max(int64(retry), hundred), int64(longestNo))
}

// deny denies unasked.
func (h *holding) deny(n *need, d *Decision) {
	*d = Decision{
		Limit: n.meter.most, Remaining: h.good(n.now),
		RetryAfter: time.Duration(max(h.denied, h.retryAt) - n.now),
		ResetAfter: time.Duration(max(h.resetAt-n.now, 0)),
		Source:     SourceLease,
	}
}

// refilled takes note of what the store has given, and meets the need by it. It
// does not if that was too little. What somebody else has given in the store's
// place, or what came when the lease was closed, goes back. What came after the key
// was reset is nobody's: it may have been paid for by a debt that is forgotten.
func (s *holdingSet) refilled(l *Lease, n *need, d *Decision, err error) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, h := l.clock.Now(), s.holding(n)
	if h != nil && h.flight != n.flight {
		return false
	}
	if h != nil {
		h.flight = 0
	}
	switch {
	case err != nil:
		return false
	case h == nil || l.closed.Load() || d.Source != SourceStore:
		if h != nil {
			h.aside = now + int64(leaveAlone)
		}
		return l.handBack(n, d)
	}
	h.hold(l, n, d, now)
	if d.Granted == 0 && n.cost == 1 {
		return true // the store's denial is the answer
	}
	if now >= h.purse.expires || !h.spend(n, d, false) {
		return false
	}
	s.hot.Store(h.purse)
	l.arm()
	return true
}

// hold puts what was granted into a new purse, with what is left of the old one. If
// that is enough for a need which could not be met before, then nothing older is left
// once it is; otherwise all of it is as old as the oldest.
func (h *holding) hold(l *Lease, n *need, d *Decision, now int64) {
	if h.purse != nil && h.purse.expires <= now {
		h.giveUp(l)
	}
	older := h.empty()
	if older == 0 && d.Granted > 0 {
		h.key = strings.Clone(n.key) // which may be a piece of something large
	}
	h.remaining, h.resetAt = d.Remaining, n.now+int64(d.ResetAfter)
	p := &purse{
		hash: n.hash, numbers: n.meter.numbers, counted: older + d.Granted,
		taken: n.now, expires: n.now + l.maxAge, remaining: h.remaining, resetAt: h.resetAt,
	}
	if older > n.cost || older > 0 && n.cost > p.counted {
		p.taken, p.expires = h.purse.taken, h.purse.expires
	}
	p.left.Store(p.counted)
	h.purse = p
	h.scarce = d.Granted < n.want || d.Remaining < 2*n.want
	if d.Granted < n.want && h.isBusy(n) {
		h.denied = n.now + h.holdOff(n, d.RetryAfter)
		h.retryAt = n.now + int64(d.RetryAfter)
	}
}

// handBack keeps of a grant what the request needs, if that is there, and has the
// rest given back.
func (l *Lease) handBack(n *need, d *Decision) (done bool) {
	rest := d.Granted
	if done = d.Allowed && d.Granted >= n.cost; done {
		n.taken = n.now
		rest -= n.cost
		d.Granted, d.Remaining = n.cost, d.Remaining+rest
	}
	if !d.Allowed && n.cost == 1 {
		return true
	}
	l.returns.add(returned{key: strings.Clone(n.key), meter: n.meter, units: rest, taken: n.now})
	return done
}

// putBack undoes a grant. Units of a lease that is over go back to the store.
func (s *holdingSet) putBack(l *Lease, n *need) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.clock.Now()
	if h := s.holding(n); h != nil && h.purse.met(n, now) && !l.closed.Load() {
		h.purse.left.Add(n.cost)
		h.purse.counted += n.cost
		return
	}
	l.returns.add(returned{key: strings.Clone(n.key), meter: n.meter, units: n.cost, taken: n.taken})
	l.arm()
}

// holding returns what is held of a key under a limit, or nil.
func (s *holdingSet) holding(n *need) *holding {
	for i := range s.ways {
		if s.ways[i].is(n) {
			return &s.ways[i]
		}
	}
	return nil
}

// is reports whether a holding is of the key and limit of a need.
func (h *holding) is(n *need) bool { return h.hash == n.hash && h.meter.numbers == n.meter.numbers }

// passed learns from what the store has said of a request alone. A look is told
// what is held beside, and who takes what is left gets that as well.
func (s *holdingSet) passed(n *need, d *Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holding(n)
	if h == nil {
		return
	}
	if d.Source == SourceStore {
		h.remaining, h.resetAt = d.Remaining, n.now+int64(d.ResetAfter)
		h.scarce = d.Remaining < 2*n.most
	}
	left := h.good(n.now)
	if n.cost == 0 {
		d.Remaining = min(d.Remaining+left, d.Limit)
	}
	rest := *n
	if rest.cost = min(n.cost-d.Granted, left); !n.part || !n.takes || rest.cost <= 0 {
		return
	}
	if _, ok := h.purse.take(&rest); ok {
		h.purse.counted -= rest.cost
		d.Allowed, d.Granted, d.RetryAfter = true, d.Granted+rest.cost, 0
	}
}

// forget drops what is held of a key that is reset: it was paid for by a debt that
// is forgotten. The key is left alone until then, and what is under way is nobody's
// when it comes.
func (s *holdingSet) forget(l *Lease, n *need, until int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.find(l, n); h != nil {
		h.empty()
		*h = holding{hash: n.hash, meter: n.meter, since: n.now, aside: until}
	}
}

// release puts what was held for too long, or all, on its way back. It reports
// whether anything is held still.
func (s *holdingSet) release(l *Lease, now int64, all bool) (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ways {
		h := &s.ways[i]
		if h.purse.rest() > 0 && (all || now >= h.purse.expires) {
			h.giveUp(l)
		}
		held = held || h.purse.rest() > 0
	}
	return held
}
