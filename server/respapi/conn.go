package respapi

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
)

// How much a connection holds.
const (
	firstBuffer = 4 << 10              // bytes received, to begin with
	lastBuffer  = maxCommand + maxArgs // with room to see that more is too much
	sendAt      = 16 << 10             // bytes to be sent
	keptBuffer  = sendAt + sendAt/2    // to be used again
)

// A conn is one client. Its goroutine does everything in turn: it receives what
// there is, decides all commands that are complete, and sends the answers, so a
// pipeline costs one trip to the kernel each way. A client that does not read its
// answers is not read from either.
type conn struct {
	door *Server
	net  net.Conn
	id   int64
	addr netip.Addr // without port; this machine's own for a unix socket

	in         []byte
	start, end int  // of what is received and not yet understood
	filled     bool // whether the last read left no room in the buffer
	parser     parser
	out        reply
	leaving    bool // to be closed once the answers are sent

	clerk    engine.LocalCounters
	requests []penstock.Request // to be decided in one trip
	answers  []penstock.Decision

	session session

	obeyed int64 // commands, since the door was last told
	turns  uint64
	doing  atomic.Uint64
	seen   watched // the door's
}

func newConn(d *Server, nc net.Conn) *conn {
	c := &conn{
		door: d, net: nc, id: d.lastID.Add(1), addr: auth.PeerAddr(nc.RemoteAddr()),
		clerk: d.judge.LocalCounters(),
	}
	c.reset()
	return c
}

func (c *conn) serve() {
	defer c.door.forget(c)
	defer func() { _ = c.net.Close() }() // there is nobody left to tell
	if !c.shakeHands() {
		return
	}
	c.in = make([]byte, firstBuffer)
	for !c.leaving && c.receive() {
		c.answer()
		if !c.send() {
			return
		}
	}
	if c.leaving || c.door.isClosing() {
		c.leave()
	}
}

// shakeHands does what TLS needs before anything can be read, within the time that
// a command may take.
func (c *conn) shakeHands() bool {
	secure, ok := c.net.(interface{ HandshakeContext(context.Context) error })
	if !ok {
		return true
	}
	c.do(partial)
	return secure.HandshakeContext(c.door.ctx) == nil
}

// receive waits for more bytes, and reports whether there are any.
func (c *conn) receive() bool {
	c.makeRoom()
	if c.end == 0 {
		c.do(idle)
	} else {
		c.do(partial)
	}
	n, err := c.net.Read(c.in[c.end:])
	c.end += n
	c.filled = c.end == len(c.in)
	return n > 0 || err == nil
}

// makeRoom makes room behind what has been received. The buffer grows while it is
// too small, and goes back to its first size when that would do again.
func (c *conn) makeRoom() {
	rest, size := c.in[c.start:c.end], len(c.in)
	switch {
	case c.filled && size < lastBuffer:
		size = min(2*size, lastBuffer)
	case c.end < firstBuffer/2 && size > firstBuffer:
		size = firstBuffer
	}
	if size != len(c.in) {
		c.in = make([]byte, size)
	}
	c.start, c.end = 0, copy(c.in, rest)
}

// answer decides all commands that are complete.
func (c *conn) answer() {
	began := c.begin()
	for !c.leaving {
		n, err := c.parser.next(c.in[c.start:c.end])
		if err != nil {
			c.settle()
			c.out.fail("ERR " + err.Error())
			c.leaving = true
		}
		if n == 0 {
			break
		}
		if c.start == 0 {
			c.turns++
			c.do(busy)
		}
		c.start += n
		c.obey(c.parser.args)
		if len(c.out.buf) >= sendAt && !c.send() {
			c.leaving = true
		}
	}
	c.settle()
	c.report()
	c.finish(began)
}

// report tells what has been counted.
func (c *conn) report() {
	c.clerk.Flush()
	c.door.commands.Add(c.obeyed)
	c.obeyed = 0
}

// begin and finish measure, if anybody wants to know.
func (c *conn) begin() (began time.Time) {
	if c.door.options.ObserveLatency != nil {
		began = time.Now()
	}
	return began
}

func (c *conn) finish(began time.Time) {
	if c.door.options.ObserveLatency != nil && c.start > 0 {
		c.door.options.ObserveLatency(time.Since(began))
	}
}

// send sends the answers, and reports whether that worked.
func (c *conn) send() bool {
	if len(c.out.buf) == 0 {
		return true
	}
	c.do(writing)
	_, err := c.net.Write(c.out.buf)
	c.out.buf = c.out.buf[:0]
	if cap(c.out.buf) > keptBuffer {
		c.out.buf = nil
	}
	return err == nil
}

// How long a connection that is to be closed waits for what is on its way.
const (
	lastCall = 10 * time.Millisecond
	linger   = 100 * time.Millisecond
)

// leave says goodbye. When the door closes, what has arrived until then is still
// answered. A connection that is closed while the client sends may cost the client
// the answers that it has not read yet; so it is told first that there will be no
// more, and heard out for a moment.
func (c *conn) leave() {
	for arrived := !c.leaving; arrived; {
		_ = c.net.SetReadDeadline(time.Now().Add(lastCall))
		arrived = c.receive() && c.filled
		c.answer()
		if !c.send() {
			return
		}
	}
	half, ok := c.net.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.net.SetReadDeadline(time.Now().Add(linger))
	for {
		if _, err := c.net.Read(c.in); err != nil {
			return
		}
	}
}
