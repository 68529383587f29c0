package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A connTracker records the open connections and since when each is in its state. It
// closes connections that stay in a state for too long.
//
// The timeouts of net/http set several deadlines per request, which takes a tenth of its
// time. A scan of all connections twice a second costs next to nothing. net/http does not
// report when the header of a second request begins to arrive; the scan sees that in the
// byte counts of [connlimit.Listener] connections.
type connTracker struct {
	handlerTicks int64 // that a handler may take, beyond requestTicks

	all  sync.Map // net.Conn to *trackedConn
	open atomic.Int64
	now  atomic.Int64 // scans so far, which is the time in ticks
}

// The scan interval, and for how many ticks a connection may stay in a state. The scan
// sees a change up to one tick late, so no connection stays longer.
const (
	tick         = 500 * time.Millisecond
	requestTicks = 10  // to send a request, or to receive its response: 5 s
	idleTicks    = 120 // between requests: a minute
)

type trackedConn struct {
	tracker     *connTracker
	since       atomic.Int64 // the tick of the last change of state
	state       atomic.Int32 // an http.ConnState
	idleBytes   atomic.Int64 // bytes read when it last became idle
	suspended   atomic.Int32 // requests whose timeout is suspended
	multiplexed atomic.Bool  // HTTP/2: many requests at once
}

type trackedConnKey struct{}

// add tracks a new connection. It is the server's ConnContext.
func (t *connTracker) add(ctx context.Context, conn net.Conn) context.Context {
	c := &trackedConn{tracker: t}
	c.since.Store(t.now.Load())
	t.all.Store(conn, c)
	t.open.Add(1)
	return context.WithValue(ctx, trackedConnKey{}, c)
}

// setState records a change of state. It is the server's ConnState hook.
func (t *connTracker) setState(conn net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		if _, ok := t.all.LoadAndDelete(conn); ok {
			t.open.Add(-1)
		}
		return
	}
	if found, ok := t.all.Load(conn); ok {
		c := found.(*trackedConn)
		if c.isNew() {
			c.multiplexed.Store(isHTTP2(conn))
		}
		if s == http.StateIdle {
			c.idleBytes.Store(bytesRead(conn))
		}
		c.state.Store(int32(s))
		c.since.Store(t.now.Load())
	}
}

func (t *connTracker) anyOpen() bool { return t.open.Load() > 0 }

// anyNew reports whether a connection has not sent a complete request yet.
func (t *connTracker) anyNew() (found bool) {
	t.all.Range(func(_, c any) bool {
		found = c.(*trackedConn).isNew()
		return !found
	})
	return found
}

// closeSilent closes the connections that are known to have sent nothing.
func (t *connTracker) closeSilent() {
	t.all.Range(func(conn, found any) bool {
		raw := underlying(conn.(net.Conn))
		if c, ok := raw.(byteCounter); ok && c.BytesRead() == 0 && found.(*trackedConn).isNew() {
			_ = raw.Close() // net/http then reports StateClosed
		}
		return true
	})
}

// run scans the connections every tick, until the context ends.
func (t *connTracker) run(ctx context.Context, tick time.Duration) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.sweep()
		}
	}
}

// sweep closes the connections that have been in their state for too long.
func (t *connTracker) sweep() {
	now := t.now.Add(1)
	t.all.Range(func(conn, found any) bool {
		c := found.(*trackedConn)
		c.checkIdle(conn.(net.Conn), now)
		if now-c.since.Load() >= c.timeoutTicks() {
			_ = underlying(conn.(net.Conn)).Close() // net/http then reports StateClosed
		}
		return true
	})
}

func (c *trackedConn) isNew() bool { return http.ConnState(c.state.Load()) == http.StateNew }

// checkIdle notes that an idle connection has begun to send a request. It ignores HTTP/2,
// where idle connections send other frames too.
func (c *trackedConn) checkIdle(conn net.Conn, now int64) {
	if c.multiplexed.Load() || bytesRead(conn) == c.idleBytes.Load() {
		return
	}
	if c.state.CompareAndSwap(int32(http.StateIdle), int32(http.StateNew)) {
		c.since.Store(now)
	}
}

// timeoutTicks returns for how many ticks a connection may stay in its state.
func (c *trackedConn) timeoutTicks() int64 {
	const never = 1 << 62
	switch state := http.ConnState(c.state.Load()); {
	case state == http.StateIdle:
		return idleTicks
	case c.suspended.Load() > 0 || c.multiplexed.Load():
		return never
	case state == http.StateActive:
		return requestTicks + c.tracker.handlerTicks
	}
	return requestTicks
}

// A byteCounter is a connection of package connlimit.
type byteCounter interface{ BytesRead() int64 }

// bytesRead returns how many bytes a connection has received, if it counts them.
func bytesRead(conn net.Conn) int64 {
	if c, ok := underlying(conn).(byteCounter); ok {
		return c.BytesRead()
	}
	return 0
}

func isHTTP2(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// underlying returns the connection below TLS. Closing that one does not block, as the
// close of TLS does, which sends an alert first.
func underlying(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// SuspendTimeout exempts a request from the time limits until resume is called: for a
// handler that delays its response on purpose.
func SuspendTimeout(r *http.Request) (resume func()) {
	c, ok := r.Context().Value(trackedConnKey{}).(*trackedConn)
	if !ok {
		return func() {} // not a connection of a Server, as in tests
	}
	c.suspended.Add(1)
	if s, ok := r.Context().Value(streamKey{}).(*stream); ok {
		s.clearDeadline()
		return func() {
			s.setDeadline()
			c.suspended.Add(-1)
		}
	}
	return func() {
		c.since.Store(c.tracker.now.Load()) // before resuming, or the scan could close it
		c.suspended.Add(-1)
	}
}
