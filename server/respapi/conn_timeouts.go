package respapi

import "time"

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

// Timeouts are for how long a connection may do one thing, to a quarter of the shortest of them;
// 0 is for ever.
type timeouts [numActivities]time.Duration

const (
	idleTimeout    = 10 * time.Minute
	commandTimeout = 5 * time.Second
	writeTimeout   = 10 * time.Second
)

var defaultTimeouts = timeouts{idle: idleTimeout, partial: commandTimeout, writing: writeTimeout}

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
	tick := time.NewTicker(min(s.timeouts[idle], s.timeouts[partial], s.timeouts[writing]) / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.closeStalled(time.Now())
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Server) closeStalled(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		activity := c.activity.Load()
		timeout := s.timeouts[activity%numActivities]
		switch {
		case activity != c.observed.activity || c.observed.since.IsZero():
			c.observed = observation{activity, now}
		case timeout > 0 && now.Sub(c.observed.since) >= timeout:
			_ = c.net.Close()
		}
	}
}
