package connlimit

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

const (
	// firstReadWait is how long Drain waits for the first bytes of another accepted
	// connection, from the last accept. It begins again with each read, because many
	// handshakes can take long on a busy machine; a client that connects and sends
	// nothing delays a shutdown by it.
	firstReadWait = 500 * time.Millisecond

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
// Accept blocks until Close. Then Drain waits until the first bytes of each accepted
// connection have been read, so that no request is lost between Accept and its handler;
// but not for clients that send nothing for half a second. Browsers keep such connections
// in reserve, and they do not delay it.
//
// Drain takes at most half of the time until ctx ends: the other half is left to the
// requests in flight, even if clients keep connecting faster than they are accepted, or the
// accept loop stands still. Connections that are still queued after that are reset, and new ones
// are refused.
//
// One gap remains: a connection that the kernel completes in the microseconds between the
// last check of the queue and the close of the socket is reset, before any of its bytes
// were read. Only Unix systems can report whether the queue is empty; on others Drain
// closes the socket immediately.
func (l *Listener) Drain(ctx context.Context) {
	ctx, cancel := withHalfTimeout(ctx)
	defer cancel()
	l.drainQueue(ctx)
	_ = l.closeSocket() // Close reports the error
	l.awaitFirstReads(ctx)
}

// withHalfTimeout returns a context that ends after half of the time that ctx has left.
func withHalfTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// A shutdown lingers for a part of the time that it has, and at least minLinger, but at most a quarter of it: what
// follows needs some.
const (
	lingerPart = 40
	minLinger  = 250 * time.Millisecond
)

// LingerTime returns for how long a shutdown that has until ctx ends keeps answering on open connections.
func LingerTime(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return minLinger
	}
	left := max(time.Until(end), 0)
	return min(max(left/lingerPart, minLinger), left/4)
}

func (l *Listener) drainQueue(ctx context.Context) {
	socket, ok := l.Listener.(deadliner)
	if !ok {
		return
	}
	l.draining.Store(true)
	_ = socket.SetDeadline(time.Unix(1, 0)) // wakes Accept; a closed socket needs no draining
	select {
	case <-l.drained:
	case <-l.closed:
	case <-ctx.Done():
	}
}

type deadliner interface{ SetDeadline(time.Time) error }

// acceptSocket accepts a connection. While the listener drains, it accepts what is queued
// and then closes the socket.
func (l *Listener) acceptSocket() (net.Conn, error) {
	for {
		if l.draining.Load() {
			if !hasQueued(l.Listener) {
				return nil, l.finishDrain()
			}
			_ = l.Listener.(deadliner).SetDeadline(time.Now().Add(queuedAcceptTimeout))
		}
		nc, err := l.Listener.Accept()
		if l.draining.Load() && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed)) {
			continue // interrupted by Drain: check the queue
		}
		return nc, err
	}
}

// finishDrain closes the socket, so that new connections are refused rather than queued.
// It then blocks until Close, because servers treat an error of Accept as a failure.
func (l *Listener) finishDrain() error {
	_ = l.closeSocket() // Close reports the error
	l.endDrain()
	<-l.closed
	return net.ErrClosed
}

// awaitFirstReads waits until every open connection has been read from, or until none was
// accepted and none has been read from for firstReadWait, and what they have sent is read.
func (l *Listener) awaitFirstReads(ctx context.Context) {
	unread, since := l.unreadConns()
	for asleep := time.Now(); unread > 0 && monotime.Sleep(ctx, time.Millisecond) == nil; asleep = time.Now() {
		since = since.Add(oversleep(time.Since(asleep)))
		switch now, _ := l.unreadConns(); {
		case now != unread:
			unread, since = now, time.Now()
		case time.Since(since) < l.firstReadWait:
		case l.hasArrived():
			since = time.Now()
		default:
			return
		}
	}
}

// oversleep returns the part of a short sleep that the machine is to blame for. What reads from the clients, and the clients
// if they run here, may have stood still as long, so it does not count as their silence.
func oversleep(slept time.Duration) time.Duration { return max(slept-10*time.Millisecond, 0) }

// unreadConns returns how many connections nothing was read from, and when the last was admitted.
func (l *Listener) unreadConns() (n int, lastAdmitted time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unread), l.lastAdmitted
}

// hasArrived reports whether a connection that nothing was read from has received bytes, which
// its handler has not come to yet.
func (l *Listener) hasArrived() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.unread {
		if HasUnread(c) {
			return true
		}
	}
	return false
}
