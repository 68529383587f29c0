package algorithm

// The concurrency limit: how many at once.
//
// Idea: there are Count permits. A request takes some of them under an ID, and holds
// them for one Period. The same ID renews them, and a negative cost under it releases
// them before they expire.
//
// State: the permits that are held, in the order of their expiries. All are held
// equally long, so one that is taken or renewed belongs at the end.
//
// Bound: at every instant at most Count permits are held. After Count was lowered, those
// held before keep theirs, and no others are granted until they fit.

// MaxPermits is the most permits that one request can take.
const MaxPermits = 100

// PermitWords is how many words of [Permits] one grant needs.
const PermitWords = 3

// Permits is the state of a concurrency limit: Len grants, in the order of their
// expiries, in the first words of Words. Each has three: its ID, its expiry and its
// units, which are negative if some of them were released.
type Permits struct {
	Len   int
	Words []int64
}

// IsValid reports whether permits that were read from elsewhere are in order, and no grant has more
// units than that.
func (p *Permits) IsValid(most int64) bool {
	last := int64(0)
	for words := p.Words[:p.Len*PermitWords]; len(words) > 0; words = words[PermitWords:] {
		expiry, units := words[1], words[2]
		if expiry < last || units == 0 || units > most || units < -most {
			return false
		}
		last = expiry
	}
	return true
}

// A permit is one grant.
type permit struct {
	id       uint64
	expiry   int64
	units    int64
	released bool // whether some of its units were released, which is possible only once
}

// A Concurrent decides on [Permits].
type Concurrent struct {
	Count  int64
	Period int64 // in whole ticks
	Tick   int64
}

// Normalize moves expiries that are too late, after the clock stepped back: no permit
// expires later than if it were granted now.
func (c *Concurrent) Normalize(p *Permits, now int64) {
	for i := p.Len - 1; i >= 0 && p.expiry(i) > now+c.Period; i-- {
		p.Words[PermitWords*i+1] = now + c.Period
	}
}

// Decide returns the outcome without changing the permits, which must be normalized.
func (c *Concurrent) Decide(p *Permits, now int64, req Request) Outcome {
	held := p.live(now)
	i := held.find(req.ID)
	switch {
	case req.Cost == 0:
		return Outcome{Allowed: true}
	case req.Cost == Reset:
		return Outcome{Allowed: true, Granted: -held.units()}
	case req.Cost > 0 && i < 0:
		return c.take(&held, now, &req)
	case req.Cost > 0 && req.NewID:
		retry := RoundUp(held.expiry(i)-now, c.Tick)
		return Outcome{RetryAfter: max(retry, c.take(&held, now, &req).RetryAfter)}
	case req.Cost > 0:
		return Outcome{Allowed: true, Granted: held.at(i).units}
	case i < 0 || held.at(i).released:
		return Outcome{Allowed: true}
	}
	return req.refund(held.at(i).units)
}

// take decides a request under an ID that holds nothing.
func (c *Concurrent) take(held *Permits, now int64, req *Request) Outcome {
	o, missing := req.take(c.Count, c.Count-held.units())
	if missing > 0 {
		o.RetryAfter = RoundUp(held.freed(missing)-now, c.Tick)
	}
	return o
}

// Record carries out a request that was granted or refunded units, and drops the grants
// that have expired. Words must have [Concurrent.Room].
func (c *Concurrent) Record(p *Permits, now int64, req Request, granted int64) {
	p.remove(0, p.Len-p.live(now).Len)
	if req.Cost == Reset {
		p.Len = 0
		return
	}
	i := p.find(req.ID)
	if granted < 0 {
		p.release(i, -granted)
		return
	}
	g := permit{id: req.ID, units: granted}
	if i >= 0 {
		g = p.at(i)
		p.remove(i, 1)
	}
	g.expiry = now + c.Period
	p.Len++
	p.put(p.Len-1, g)
}

// Room returns how many words are needed to record one more grant.
func (c *Concurrent) Room(p *Permits, now int64) int { return PermitWords * (p.live(now).Len + 1) }

// Balance returns the state of normalized permits.
func (c *Concurrent) Balance(p *Permits, now int64) Balance {
	held := p.live(now)
	if held.Len == 0 {
		return Balance{Remaining: c.Count}
	}
	return Balance{
		Remaining:  max(c.Count-held.units(), 0),
		ResetAfter: RoundUp(held.Empty()-now, c.Tick),
	}
}

// Held returns how many permits are held.
func (p *Permits) Held(now int64) int64 {
	held := p.live(now)
	return held.units()
}

// Holds reports whether an ID holds permits.
func (p *Permits) Holds(id uint64, now int64) bool {
	held := p.live(now)
	return held.find(id) >= 0
}

// live returns the grants that have not expired. They share the words of p.
func (p *Permits) live(now int64) Permits {
	expired := 0
	for expired < p.Len && p.expiry(expired) <= now {
		expired++
	}
	return Permits{Len: p.Len - expired, Words: p.Words[PermitWords*expired:]}
}

// Empty returns when the last permit expires, or 0.
func (p *Permits) Empty() int64 {
	if p.Len == 0 {
		return 0
	}
	return p.expiry(p.Len - 1)
}

// release releases n units of a grant.
func (p *Permits) release(i int, n int64) {
	g := p.at(i)
	g.units, g.released = g.units-n, true
	if g.units == 0 {
		p.remove(i, 1)
		return
	}
	p.put(i, g)
}

// units returns how many permits are held.
func (p *Permits) units() (sum int64) {
	for i := range p.Len {
		sum += p.at(i).units
	}
	return sum
}

// freed returns when n of the permits that are held will have expired.
func (p *Permits) freed(n int64) int64 {
	i := 0
	for ; i < p.Len-1; i++ {
		if n -= p.at(i).units; n <= 0 {
			break
		}
	}
	return p.expiry(i)
}

// find returns the index of the grant under an ID, or -1.
func (p *Permits) find(id uint64) int {
	for i := range p.Len {
		if uint64(p.Words[PermitWords*i]) == id {
			return i
		}
	}
	return -1
}

func (p *Permits) expiry(i int) int64 { return p.Words[PermitWords*i+1] }

func (p *Permits) at(i int) permit {
	w := p.Words[PermitWords*i:][:PermitWords]
	g := permit{id: uint64(w[0]), expiry: w[1], units: w[2]}
	if g.units < 0 {
		g.units, g.released = -g.units, true
	}
	return g
}

func (p *Permits) put(i int, g permit) {
	w := p.Words[PermitWords*i:][:PermitWords]
	w[0], w[1], w[2] = int64(g.id), g.expiry, g.units
	if g.released {
		w[2] = -g.units
	}
}

// remove removes n grants.
func (p *Permits) remove(i, n int) {
	if n == 0 {
		return
	}
	copy(p.Words[PermitWords*i:], p.Words[PermitWords*(i+n):PermitWords*p.Len])
	p.Len -= n
}
