package dialer

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// A conn is a connection to Redis that knows whether an error can have cost a
// command.
//
// Until its first reply, in the handshake, its deadline is that of the caller that
// has opened it, and errors before the first command after that are [ErrNotSent].
//
// Later, a server can close an idle connection without notice, because it is not being
// read. After checkAfter without a command it is checked before the next one, so that
// a command on a closed connection is known not to have been sent.
type conn struct {
	net.Conn
	by       time.Time // the deadline of the handshake
	answered atomic.Bool
	used     atomic.Bool
	record   func(error) // gets the result of the handshake
	idle     atomic.Bool // whether the next write begins a command, with none in flight
	lastUse  time.Time   // when the last such command was written
	closed   func() bool // by the peer
}

// checkAfter is for how long a connection is not checked after a command. The check is
// a system call, which a busy connection need not pay for.
const checkAfter = time.Millisecond

func newConn(c net.Conn, by time.Time, record func(error)) *conn {
	return &conn{Conn: c, by: by, record: record, closed: peerCheck(c)}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.answered.Load() {
		c.record(err)
		if n > 0 {
			c.answered.Store(true)
			_ = c.Conn.SetDeadline(time.Time{}) // every command sets its own
		}
	}
	return n, c.wrap(err)
}

func (c *conn) Write(b []byte) (int, error) {
	if c.idle.Load() {
		c.idle.Store(false)
		now := time.Now()
		if now.Sub(c.lastUse) > checkAfter && c.closed() {
			return 0, notSent(errPeerClosed)
		}
		c.lastUse = now
	}
	if c.answered.Load() && !c.used.Load() {
		c.used.Store(true)
	}
	n, err := c.Conn.Write(b)
	return n, c.wrap(err)
}

var errPeerClosed = errors.New("the server has closed the connection")

func (c *conn) wrap(err error) error {
	if err == nil || c.used.Load() {
		return err
	}
	return notSent(err)
}

// SetDeadline sets the deadline of one command. rueidis calls it before it writes a
// command for which the caller itself will read the reply, and only if no other
// command is in flight: then the connection is idle. Once commands are pipelined,
// and replies are read in the background, there is no deadline; zero marks that.
func (c *conn) SetDeadline(t time.Time) error {
	if !c.answered.Load() {
		if t.IsZero() || t.After(c.by) {
			t = c.by
		}
		return c.Conn.SetDeadline(t)
	}
	c.idle.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

// peerCheck returns a function that reports whether the peer has closed a connection,
// as far as this machine knows. It neither waits nor consumes data.
func peerCheck(c net.Conn) func() bool {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return func() bool { return false }
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	closed := false
	check := func(fd uintptr) { closed = peerClosed(fd) }
	return func() bool {
		closed = false
		err := raw.Control(check)
		return err == nil && closed
	}
}
