package dialer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-io/penstock/redisstore/internal/respcheck"
)

// A conn is a connection to Redis that knows which errors prove that a command was not
// sent; these are [ErrNotSent].
//
// During the handshake its deadline is that of the caller that has opened it, and the
// handshake ends when that caller leaves: rueidis only knows the deadline. All
// errors before the first command after the handshake are ErrNotSent.
//
// A server can close an idle connection unnoticed, because nothing reads from it then.
// So a connection that was idle for checkAfter is checked before the next command. If
// the server has closed it, the command is not written. Over TLS the check misses a
// server that sends a closing alert first: the alert is data that is still to be read.
type conn struct {
	net.Conn
	dialer    *Dialer
	address   string
	caller    context.Context // until the first reply
	unwatch   func() bool     // ends the watch over the caller
	deadline  time.Time       // of the handshake
	answered  atomic.Bool     // whether the handshake got its first reply
	connected sync.Once       // when the handshake has ended, or failed
	lost      sync.Once       // when it failed, or was closed
	lastWrite atomic.Int64    // after the handshake, in nanoseconds since the dialer's start; or 0
	idle      atomic.Bool     // whether the next write begins a command, with none in flight
	peek      func() error
	checker   *respcheck.Checker
}

// checkAfter is how long a connection is idle before it is checked. The check is a
// system call, which would slow down a busy connection.
const checkAfter = time.Millisecond

func newConn(caller context.Context, d *Dialer, c net.Conn, address string, deadline time.Time) *conn {
	return &conn{
		Conn: c, dialer: d, address: address, deadline: deadline, peek: peerCheck(c), checker: respcheck.New(),
		caller: caller, unwatch: context.AfterFunc(caller, func() { expire(c) }),
	}
}

// expire ends what waits for a connection.
func expire(c net.Conn) { _ = c.SetDeadline(time.Unix(1, 0)) }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bad := c.checker.Received(b[:n]); bad != nil { // what came before it may be the answers to other commands
		n, err = 0, bad
	}
	if !c.answered.Load() {
		if !errors.Is(c.caller.Err(), context.Canceled) { // which says nothing about the server
			c.dialer.record(c.address, err)
		}
		if n > 0 {
			c.answered.Store(true)
			c.endHandshake() // but its deadline stays until the next command sets its own: more replies may follow
		}
	}
	return n, c.wrap(err)
}

func (c *conn) Write(b []byte) (int, error) {
	if c.answered.Load() {
		now := c.dialer.elapsed(time.Now())
		if c.idle.Load() {
			c.idle.Store(false)
			if now-c.lastWrite.Load() > int64(checkAfter) {
				if err := c.peek(); err != nil {
					c.lose()
					return 0, notSent(err)
				}
			}
		}
		c.lastWrite.Store(now)
	}
	c.checker.Sent(b)
	n, err := c.Conn.Write(b)
	return n, c.wrap(err)
}

// Close closes the connection. No write that begins later reaches the server.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.unwatch()
	c.endHandshake()
	c.lose()
	c.dialer.recordClosed(c.lastWrite.Load())
	return err
}

// lose tells the dialer that the connection cannot be used any more, before the client opens another.
func (c *conn) lose() { c.lost.Do(func() { c.dialer.lost.Store(true) }) }

// endHandshake tells the dialer that nothing waits for this connection any more.
func (c *conn) endHandshake() { c.connected.Do(func() { c.dialer.connecting.Add(-1) }) }

var errPeerClosed = errors.New("the server has closed the connection")

// wrap marks errors before the first command.
func (c *conn) wrap(err error) error {
	if err != nil {
		c.lose()
	}
	if err == nil || c.lastWrite.Load() != 0 {
		return err
	}
	return notSent(err)
}

// SetDeadline sets the deadline of one command. rueidis calls it while no command is in
// flight, before it writes one whose reply the caller itself reads. Before it begins to
// pipeline commands, and to read replies in the background, it sets a zero deadline.
func (c *conn) SetDeadline(t time.Time) error {
	if !c.answered.Load() {
		if t.IsZero() || t.After(c.deadline) {
			t = c.deadline
		}
		err := c.Conn.SetDeadline(t)
		if c.caller.Err() != nil { // its end may have come before
			expire(c.Conn)
		}
		return err
	}
	c.unwatch()
	c.idle.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

// A pingConn sends PING in place of the HELLO 2 of a handshake, which is its first write.
type pingConn struct {
	net.Conn
	begun bool
}

var (
	hello2 = []byte("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n")
	ping   = []byte("*1\r\n$4\r\nPING\r\n")
)

func (c *pingConn) Write(b []byte) (int, error) {
	if c.begun {
		return c.Conn.Write(b)
	}
	c.begun = true
	if _, err := c.Conn.Write(bytes.Replace(b, hello2, ping, 1)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// peerCheck returns a function that returns an error if this machine knows that the peer has closed a connection, or has
// sent a reply that nobody has asked for. It neither waits nor consumes data, so over TLS it cannot tell such a reply from
// a session ticket, and lets it pass.
func peerCheck(c net.Conn) func() error {
	overTLS, encrypted := c.(interface{ NetConn() net.Conn })
	if encrypted {
		c = overTLS.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return func() error { return nil }
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return func() error { return nil }
	}
	var closed bool
	var first byte
	check := func(fd uintptr) { closed, first = peek(fd) }
	return func() error {
		closed, first = false, 0
		switch err := raw.Control(check); {
		case err != nil:
		case closed:
			return errPeerClosed
		case first != 0 && !encrypted:
			return respcheck.Unasked(first)
		}
		return nil
	}
}
