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
	doings
)

// A watched is what the door has seen of a connection.
type watched struct {
	doing uint64    // and how many turns before it
	since time.Time // it was first seen doing that
}

// do says what the connection is doing from now on. Every batch of commands is a
// turn: as long as none is complete, what trickles in does not count as a change.
func (c *conn) do(what uint64) { c.doing.Store(c.turns*doings + what) }

// watch closes connections that do the same for too long, until the door is closed.
func (d *Server) watch() {
	limits := [doings]time.Duration{
		idle: d.options.IdleTimeout, partial: d.options.CommandTimeout, writing: d.options.WriteTimeout,
	}
	tick := time.NewTicker(max(min(limits[idle], limits[partial], limits[writing])/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.look(limits, time.Now())
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Server) look(limits [doings]time.Duration, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		doing := c.doing.Load()
		limit := limits[doing%doings]
		switch {
		case doing != c.seen.doing || c.seen.since.IsZero():
			c.seen = watched{doing, now}
		case limit > 0 && now.Sub(c.seen.since) >= limit:
			_ = c.net.Close()
		}
	}
}
