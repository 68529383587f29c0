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

// visitors are the open connections, and since when each of them does what it
// does. Who takes too long is shown out.
//
// net/http has time limits of its own, which it sets anew several times a
// request; that is a tenth of what a request costs. Looking at all connections
// twice a second costs next to nothing. net/http does not say when the header of a
// second request has begun to arrive; but connections that come by an
// [entrance.Entrance] say how much has, and who says more is not idle any more.
type visitors struct {
	all  sync.Map // of *visitor by net.Conn
	open atomic.Int64
	tick atomic.Int64 // how many times they were looked at
}

// How often visitors are looked at, and for how many times a connection may stay
// as it is. A look comes up to one tick late, so none stays for longer.
const (
	tick         = 500 * time.Millisecond
	requestTicks = 10  // to send a request, or be answered: 5 s
	idleTicks    = 120 // between requests: a minute
)

type visitor struct {
	among *visitors
	since atomic.Int64 // the tick of the latest change
	state atomic.Int32 // an http.ConnState
	heard atomic.Int64 // how much had come from it when it last became idle
	held  atomic.Int32 // how many of its requests are held on purpose
	many  atomic.Bool  // whether it has many requests at once, by HTTP/2
}

type visitorKey struct{}

// welcome notes a new connection. It is what the server calls first.
func (vs *visitors) welcome(ctx context.Context, conn net.Conn) context.Context {
	v := &visitor{among: vs}
	v.since.Store(vs.tick.Load())
	vs.all.Store(conn, v)
	vs.open.Add(1)
	return context.WithValue(ctx, visitorKey{}, v)
}

// follow notes that a connection has begun something else. It is what the server
// calls when that happens.
func (vs *visitors) follow(conn net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		if _, there := vs.all.LoadAndDelete(conn); there {
			vs.open.Add(-1)
		}
		return
	}
	if found, ok := vs.all.Load(conn); ok {
		v := found.(*visitor)
		if http.ConnState(v.state.Load()) == http.StateNew {
			v.many.Store(speaksHTTP2(conn))
		}
		if s == http.StateIdle {
			v.heard.Store(heardFrom(conn))
		}
		v.state.Store(int32(s))
		v.since.Store(vs.tick.Load())
	}
}

// watch shows out who takes too long, until the context ends.
func (vs *visitors) watch(ctx context.Context, tick time.Duration) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			vs.sweep()
		}
	}
}

func (vs *visitors) sweep() {
	now := vs.tick.Add(1)
	vs.all.Range(func(conn, found any) bool {
		v := found.(*visitor)
		v.listen(conn.(net.Conn), now)
		if now-v.since.Load() >= v.patience() {
			_ = plain(conn.(net.Conn)).Close() // the server notices, and forgets it
		}
		return true
	})
}

// listen notes that an idle connection has begun to send a request. By HTTP/2 there
// is more to say than requests.
func (v *visitor) listen(conn net.Conn, now int64) {
	if v.many.Load() || heardFrom(conn) == v.heard.Load() {
		return
	}
	if v.state.CompareAndSwap(int32(http.StateIdle), int32(http.StateNew)) {
		v.since.Store(now)
	}
}

// heardFrom returns how many bytes have come by a connection that counts them.
func heardFrom(conn net.Conn) int64 {
	if counts, ok := plain(conn).(interface{ Heard() int64 }); ok {
		return counts.Heard()
	}
	return 0
}

// speaksHTTP2 reports whether a connection has many requests at once.
func speaksHTTP2(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// plain returns the connection below TLS, which would say goodbye, and wait until
// somebody hears it.
func plain(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// patience returns for how many ticks a connection may stay as it is.
func (v *visitor) patience() int64 {
	const forever = 1 << 62
	switch {
	case http.ConnState(v.state.Load()) == http.StateIdle:
		return idleTicks
	case v.held.Load() > 0 || v.many.Load():
		return forever
	}
	return requestTicks
}

// Suspend says that a handler keeps the request waiting on purpose, until the function
// that is returned is called. Otherwise it would be taken for a caller that takes
// too long.
func Suspend(r *http.Request) (release func()) {
	v, ok := r.Context().Value(visitorKey{}).(*visitor)
	if !ok {
		return func() {} // it came by no connection of ours
	}
	v.held.Add(1)
	if s, ok := r.Context().Value(streamKey{}).(*stream); ok {
		s.rest()
		return func() {
			s.hurry()
			v.held.Add(-1)
		}
	}
	return func() {
		v.since.Store(v.among.tick.Load()) // first, or what comes next would be late already
		v.held.Add(-1)
	}
}
