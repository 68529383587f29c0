package algorithm

// A Grant is what was charged under an ID. It can be refunded, or moved to another
// amount, but time may have paid part of it back already. That part stays charged: a
// refund of it would free units that others have taken since.
//
// A bucket is paid in the order in which it was charged: the units of a grant are paid
// when the bucket would have been full after the last of them. A window pays all units
// when it drops them. So a grant remembers that instant, and how many of its units it is
// for.
type Grant struct {
	Units int64 // charged
	Owed  int64 // of the Units, those that time has paid back at Due
	Due   int64 // on the clock of the state
	Apart bool  // until Due, the others count in earlier parts of a window, where no refund finds them
}

// Unpaid returns how many units of the grant time has not paid back at now. The
// interval is that of a bucket, and 0 for a window.
func (g Grant) Unpaid(now, interval int64) int64 {
	switch {
	case g.Due <= now:
		return 0
	case interval == 0:
		return g.Owed
	}
	return minUp(g.Owed, g.Due-now, interval)
}

// Charged returns the grant after more units were charged, which time will have paid
// back at due. Units that a window counts elsewhere are no longer refunded, and neither is
// a unit of a bucket of which time has paid a part: as one of those that are paid last, it
// would count as a whole.
func (g Grant) Charged(now, units, due, interval int64) Grant {
	if units == 0 {
		return g
	}
	charged := Grant{Units: g.Units + units, Owed: units, Due: due}
	switch {
	case g.Due <= now:
	case interval > 0:
		charged.Owed += minDown(g.Owed, g.Due-now, interval)
	case due == g.Due:
		charged.Owed += g.Owed
		charged.Apart = g.Apart
	default:
		charged.Apart = g.Apart || g.Owed > 0
	}
	return charged
}

// Refunded returns the grant after so many units were subtracted from it, of which back
// were not paid yet. The others of a bucket are paid earlier by what was refunded. Units in
// earlier parts of a window stay charged.
func (g Grant) Refunded(now, units, back, interval, tick int64) Grant {
	owed := g.Unpaid(now, interval) - back
	if g.Apart = g.Apart && g.Due > now; g.Apart {
		units = back
	}
	if back > 0 {
		g.Due = max(g.Due-RoundDown(back*interval, tick), now)
	}
	return Grant{Units: g.Units - units, Owed: owed, Due: g.Due, Apart: g.Apart}
}

// EncodedOwed returns Owed and Apart as one number, negative if Apart.
func (g Grant) EncodedOwed() int64 {
	if g.Apart {
		return ^g.Owed
	}
	return g.Owed
}

// NewGrant returns a grant whose Owed and Apart were encoded as one number.
func NewGrant(units, owed, due int64) Grant {
	if owed < 0 {
		return Grant{Units: units, Owed: ^owed, Due: due, Apart: true}
	}
	return Grant{Units: units, Owed: owed, Due: due}
}
