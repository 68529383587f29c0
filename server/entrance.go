package server

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// An entrance is a listener that lets in only so many connections at once, and that
// outlives a shortage of file descriptors.
type entrance struct {
	net.Listener
	most    int64
	inside  atomic.Int64
	refused atomic.Int64
	closed  chan struct{}
	once    sync.Once
}

func newEntrance(l net.Listener, most int) *entrance {
	return &entrance{Listener: l, most: int64(most), closed: make(chan struct{})}
}

// Accept returns the next connection there is room for. Those there is no room for
// are closed: a client that is told so tries elsewhere, and one that is kept
// waiting does not.
func (e *entrance) Accept() (net.Conn, error) {
	pause := shortestPause
	for {
		conn, err := e.Listener.Accept()
		switch {
		case err != nil && !passes(err):
			return nil, err
		case err != nil && !e.wait(pause):
			return nil, net.ErrClosed
		case err != nil:
			pause = min(2*pause, longestPause)
		case e.inside.Add(1) > e.most:
			e.inside.Add(-1)
			e.refused.Add(1)
			_ = conn.Close()
		default:
			return &guest{Conn: conn, entrance: e}, nil
		}
	}
}

const (
	shortestPause = 5 * time.Millisecond
	longestPause  = time.Second
)

// passes reports whether accepting may work again later: after a connection is
// closed elsewhere, say, when there are no file descriptors left.
func passes(err error) bool {
	var temporary interface{ Temporary() bool }
	return errors.As(err, &temporary) && temporary.Temporary()
}

// wait reports whether the entrance is still open after a while.
func (e *entrance) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.closed:
		return false
	}
}

// Close lets nobody in any more. Those who are inside stay.
func (e *entrance) Close() error {
	e.once.Do(func() { close(e.closed) })
	return e.Listener.Close()
}

// A guest is a connection that has been let in.
type guest struct {
	net.Conn
	entrance *entrance
	once     sync.Once
}

func (g *guest) Close() error {
	g.once.Do(func() { g.entrance.inside.Add(-1) })
	return g.Conn.Close()
}

// CloseWrite tells the other side that there will be no more, where that can be told.
func (g *guest) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
