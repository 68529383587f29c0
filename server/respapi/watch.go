package respapi

import (
	"time"
)

// A connection says what it is doing, and the door looks now and then for how long
// it has been doing it. That costs the connection one word to write, where deadlines
// would cost two timers for every command.

// What a connection can be doing.
const (
	idle    = iota // waiting for a command
	partial        // waiting for the rest of one
	busy           // deciding
	writing        // waiting until the client has received its answers
	numActivities
)

// A observation is what the door has seen of a connection.
type observation struct {
	activity uint64    // and how many turns before it
	since time.Time // it was first seen doing that
}

// setActivity says what the connection is doing from now on. Every batch of commands is a
// turn: as long as none is complete, what trickles in does not count as a change.
func (c *conn) setActivity(what uint64) { c.activity.Store(c.rounds*numActivities + what) }

// reap closes connections that do the same for too long, until the door is closed.
func (d *Server) reap() {
	limits := [numActivities]time.Duration{
		idle: d.options.IdleTimeout, partial: d.options.CommandTimeout, writing: d.options.WriteTimeout,
	}
	tick := time.NewTicker(max(min(limits[idle], limits[partial], limits[writing])/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.closeStalled(limits, time.Now())
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Server) closeStalled(limits [numActivities]time.Duration, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		doing := c.activity.Load()
		limit := limits[doing%numActivities]
		switch {
		case doing != c.observed.activity || c.observed.since.IsZero():
			c.observed = observation{doing, now}
		case limit > 0 && now.Sub(c.observed.since) >= limit:
			_ = c.net.Close()
		}
	}
}
