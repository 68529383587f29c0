package respapi

import (
	"time"
)

// A connection publishes what it is doing, and the server checks periodically for how
// long it has been doing that. This costs a connection one store per step, where
// deadlines would cost two timers per command.

// The activities of a connection.
const (
	idle    = iota // waiting for a command
	partial        // waiting for the rest of a command
	busy           // executing commands
	writing        // waiting for the client to read its replies
	numActivities
)

// An observation is what the server last saw of a connection.
type observation struct {
	activity uint64    // conn.activity: the activity and its round
	since    time.Time // when that was first seen
}

// setActivity publishes what the connection does from now on. Executing commands
// begins a new round. As long as no command is complete, single bytes that trickle in
// do not count as a change.
func (c *conn) setActivity(a uint64) { c.activity.Store(c.rounds*numActivities + a) }

// reap closes connections that exceed a timeout, until Shutdown has finished.
func (s *Server) reap() {
	timeouts := [numActivities]time.Duration{
		idle: s.options.IdleTimeout, partial: s.options.CommandTimeout, writing: s.options.WriteTimeout,
	}
	tick := time.NewTicker(max(min(timeouts[idle], timeouts[partial], timeouts[writing])/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.closeStalled(timeouts, time.Now())
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Server) closeStalled(timeouts [numActivities]time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		activity := c.activity.Load()
		timeout := timeouts[activity%numActivities]
		switch {
		case activity != c.observed.activity || c.observed.since.IsZero():
			c.observed = observation{activity, now}
		case timeout > 0 && now.Sub(c.observed.since) >= timeout:
			_ = c.net.Close()
		}
	}
}
