package grpcapi

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A drainListener is drained before gRPC stops. gRPC closes every accepted connection
// that it has not begun to serve when it stops, so a client that has just connected
// would lose its first call.
type drainListener struct {
	net.Listener
	pending  sync.WaitGroup // accepted connections that gRPC has not begun to serve
	draining atomic.Bool
	drained  chan struct{} // closed after the last connection was accepted
	closed   chan struct{} // closed by Close
	drainEnd sync.Once
	closeEnd sync.Once
}

func newDrainListener(l net.Listener) *drainListener {
	return &drainListener{Listener: l, drained: make(chan struct{}), closed: make(chan struct{})}
}

// Accept returns the next connection. A drained listener blocks until Close, because an
// error would end gRPC's Serve before the server stops.
func (l *drainListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.pending.Add(1)
		return &pendingConn{Conn: conn, served: sync.OnceFunc(l.pending.Done)}, nil
	}
	if l.draining.Load() {
		l.drainEnd.Do(func() { close(l.drained) })
		<-l.closed
	}
	return nil, err
}

// drain closes the underlying listener and waits until gRPC serves the connections that
// it still returned, or until ctx ends.
func (l *drainListener) drain(ctx context.Context) {
	l.draining.Store(true)
	_ = l.Listener.Close() // Accept sees the error
	select {
	case <-l.drained:
	case <-l.closed:
	case <-ctx.Done():
		return
	}
	served := make(chan struct{})
	go func() {
		l.pending.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
}

func (l *drainListener) Close() error {
	l.closeEnd.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A pendingConn reports when gRPC begins to serve it: gRPC sets the deadline of the
// handshake right after the check whether the server has stopped.
type pendingConn struct {
	net.Conn
	served func()
}

func (c *pendingConn) SetDeadline(t time.Time) error {
	c.served()
	return c.Conn.SetDeadline(t)
}

func (c *pendingConn) Close() error {
	c.served()
	return c.Conn.Close()
}
