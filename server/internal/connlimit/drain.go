package connlimit

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

const (
	// drainTimeout bounds how long the accept queue is drained. It is reached if
	// connections arrive faster than they are accepted, or if the server has
	// stopped calling Accept.
	drainTimeout = time.Second

	// firstReadWait is how long accepted connections may take until their first
	// bytes are read.
	firstReadWait = 250 * time.Millisecond

	// queuedAcceptTimeout bounds the accept of a connection that is known to be
	// queued, in case the kernel drops it in between.
	queuedAcceptTimeout = 10 * time.Millisecond
)

// Drain closes the listener without losing connections. Call it while the server still
// accepts, before the server's own shutdown: servers close connections that they accept
// while they shut down.
//
// Every connection that is in the kernel's accept queue when Drain is called, or enters
// it meanwhile, is returned by Accept. Once the queue is empty, the socket is closed, and
// Accept blocks until Close. Then Drain waits up to 250 ms until the first bytes of each
// accepted connection have been read, so that no request is lost between Accept and
// its handler.
//
// A client that connects after that is refused. One case remains: a connection that the
// kernel completes in the microseconds between the last look at the queue and the close
// of the socket is reset, before any of its bytes were read. Draining takes at most a
// second, or until ctx ends; connections that are still queued then are reset. Only
// Unix systems can tell whether the queue is empty; elsewhere the socket is closed at once.
func (l *Listener) Drain(ctx context.Context) {
	l.drainQueue(ctx)
	_ = l.closeSocket() // Close reports the error
	l.awaitFirstReads(ctx)
}

func (l *Listener) drainQueue(ctx context.Context) {
	socket, ok := l.Listener.(deadliner)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	l.draining.Store(true)
	_ = socket.SetDeadline(time.Unix(1, 0)) // wakes Accept; a closed socket needs no draining
	select {
	case <-l.drained:
	case <-l.closed:
	case <-ctx.Done():
	}
}

type deadliner interface{ SetDeadline(time.Time) error }

// acceptSocket accepts a connection. While the listener drains it takes those that are
// queued, and then closes the socket.
func (l *Listener) acceptSocket() (net.Conn, error) {
	for {
		if l.draining.Load() {
			if !hasQueued(l.Listener) {
				return nil, l.finishDrain()
			}
			_ = l.Listener.(deadliner).SetDeadline(time.Now().Add(queuedAcceptTimeout))
		}
		nc, err := l.Listener.Accept()
		if l.draining.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		return nc, err
	}
}

// finishDrain closes the socket at once, to refuse new connections rather than queue them.
// It blocks until Close, because servers take an error of Accept for a failure.
func (l *Listener) finishDrain() error {
	_ = l.closeSocket() // Close reports the error
	l.drainOnce.Do(func() { close(l.drained) })
	<-l.closed
	return net.ErrClosed
}

// awaitFirstReads waits until every open connection has been read from.
func (l *Listener) awaitFirstReads(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstReadWait)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.unreadConns() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *Listener) unreadConns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unread
}
