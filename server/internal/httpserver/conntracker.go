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

// connTracker are the open connections, and since when each of them does what it
// does. Who takes too long is shown out.
//
// net/http has time limits of its own, which it sets anew several times a
// request; that is a tenth of what a request costs. Looking at all connections
// twice a second costs next to nothing. net/http does not say when the header of a
// second request has begun to arrive; but connections that come by an
// [entrance.Entrance] say how much has, and who says more is not idle any more.
type connTracker struct {
	all  sync.Map // of *visitor by net.Conn
	open atomic.Int64
	now  atomic.Int64 // how many times they were looked at
}

// How often visitors are looked at, and for how many times a connection may stay
// as it is. A look comes up to one tick late, so none stays for longer.
const (
	tick         = 500 * time.Millisecond
	requestTicks = 10  // to send a request, or be answered: 5 s
	idleTicks    = 120 // between requests: a minute
)

type trackedConn struct {
	tracker     *connTracker
	since       atomic.Int64 // the tick of the latest change
	state       atomic.Int32 // an http.ConnState
	idleBytes   atomic.Int64 // how much had come from it when it last became idle
	suspended   atomic.Int32 // how many of its requests are held on purpose
	multiplexed atomic.Bool  // whether it has many requests at once, by HTTP/2
}

type trackedConnKey struct{}

// add notes a new connection. It is what the server calls first.
func (t *connTracker) add(ctx context.Context, conn net.Conn) context.Context {
	c := &trackedConn{tracker: t}
	c.since.Store(t.now.Load())
	t.all.Store(conn, c)
	t.open.Add(1)
	return context.WithValue(ctx, trackedConnKey{}, c)
}

// setState notes that a connection has begun something else. It is what the server
// calls when that happens.
func (t *connTracker) setState(conn net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		if _, there := t.all.LoadAndDelete(conn); there {
			t.open.Add(-1)
		}
		return
	}
	if found, ok := t.all.Load(conn); ok {
		c := found.(*trackedConn)
		if http.ConnState(c.state.Load()) == http.StateNew {
			c.multiplexed.Store(isHTTP2(conn))
		}
		if s == http.StateIdle {
			c.idleBytes.Store(bytesRead(conn))
		}
		c.state.Store(int32(s))
		c.since.Store(t.now.Load())
	}
}

// run shows out who takes too long, until the context ends.
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

func (t *connTracker) sweep() {
	now := t.now.Add(1)
	t.all.Range(func(conn, found any) bool {
		c := found.(*trackedConn)
		c.checkIdle(conn.(net.Conn), now)
		if now-c.since.Load() >= c.timeoutTicks() {
			_ = underlying(conn.(net.Conn)).Close() // the server notices, and forgets it
		}
		return true
	})
}

// checkIdle notes that an idle connection has begun to send a request. By HTTP/2 there
// is more to say than requests.
func (c *trackedConn) checkIdle(conn net.Conn, now int64) {
	if c.multiplexed.Load() || bytesRead(conn) == c.idleBytes.Load() {
		return
	}
	if c.state.CompareAndSwap(int32(http.StateIdle), int32(http.StateNew)) {
		c.since.Store(now)
	}
}

// bytesRead returns how many bytes have come by a connection that counts them.
func bytesRead(conn net.Conn) int64 {
	if counts, ok := underlying(conn).(interface{ Heard() int64 }); ok {
		return counts.Heard()
	}
	return 0
}

// isHTTP2 reports whether a connection has many requests at once.
func isHTTP2(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// underlying returns the connection below TLS, which would say goodbye, and wait until
// somebody hears it.
func underlying(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// timeoutTicks returns for how many ticks a connection may stay as it is.
func (c *trackedConn) timeoutTicks() int64 {
	const forever = 1 << 62
	switch {
	case http.ConnState(c.state.Load()) == http.StateIdle:
		return idleTicks
	case c.suspended.Load() > 0 || c.multiplexed.Load():
		return forever
	}
	return requestTicks
}

// SuspendTimeout says that a handler keeps the request waiting on purpose, until the function
// that is returned is called. Otherwise it would be taken for a caller that takes
// too long.
func SuspendTimeout(r *http.Request) (release func()) {
	c, ok := r.Context().Value(trackedConnKey{}).(*trackedConn)
	if !ok {
		return func() {} // it came by no connection of ours
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
		c.since.Store(c.tracker.now.Load()) // first, or what comes next would be late already
		c.suspended.Add(-1)
	}
}
