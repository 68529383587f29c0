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
	minReadBuffer  = 4 << 10                         // bytes received, to begin with
	maxReadBuffer  = maxCommand + maxArgs            // with room to see that more is too much
	sendThreshold  = 16 << 10                        // bytes to be sent
	maxKeptReplies = sendThreshold + sendThreshold/2 // to be used again
)

// A conn is one client. Its goroutine does everything in turn: it receives what
// there is, decides all commands that are complete, and sends the answers, so a
// pipeline costs one trip to the kernel each way. A client that does not read its
// answers is not read from either.
type conn struct {
	server      *Server
	net         net.Conn
	id          int64
	established bool       // guarded by server.mu
	addr        netip.Addr // without port; this machine's own for a unix socket

	in         []byte
	start, end int  // of what is received and not yet understood
	bufferFull bool // whether the last read left no room in the buffer
	parser     parser
	out        reply
	closing    bool // to be closed once the answers are sent

	counters  engine.LocalCounters
	batch     []penstock.Request // to be decided in one trip
	decisions []penstock.Decision

	session session

	executed int64 // commands, since the door was last told
	rounds   uint64
	activity atomic.Uint64
	observed observation // the door's
}

func newConn(d *Server, nc net.Conn) *conn {
	c := &conn{
		server: d, net: nc, id: d.lastID.Add(1), addr: auth.PeerAddr(nc.RemoteAddr()),
		counters: d.engine.LocalCounters(),
	}
	c.resetSession()
	return c
}

func (c *conn) serve() {
	defer c.server.removeConn(c)
	defer func() { _ = c.net.Close() }() // there is nobody left to tell
	if !c.handshake() {
		return
	}
	c.in = make([]byte, minReadBuffer)
	for !c.closing && c.receive() {
		c.executeBuffered()
		if !c.send() {
			return
		}
	}
	if c.closing || c.server.isClosing() {
		c.finish()
	}
}

// handshake does what TLS needs before anything can be read, within the time that
// a command may take.
func (c *conn) handshake() bool {
	secure, ok := c.net.(interface{ HandshakeContext(context.Context) error })
	if !ok {
		c.server.markEstablished(c)
		return true
	}
	c.setActivity(partial)
	if secure.HandshakeContext(c.server.ctx) != nil {
		return false
	}
	c.server.markEstablished(c)
	return true
}

// interruptRead makes a pending read, and the next one, fail at once.
func (c *conn) interruptRead() { _ = c.net.SetReadDeadline(time.Unix(1, 0)) }

// receive waits for more bytes, and reports whether there are any.
func (c *conn) receive() bool {
	c.makeRoom()
	if c.end == 0 {
		c.setActivity(idle)
	} else {
		c.setActivity(partial)
	}
	n, err := c.net.Read(c.in[c.end:])
	c.end += n
	c.bufferFull = c.end == len(c.in)
	return n > 0 || err == nil
}

// makeRoom makes room behind what has been received. The buffer grows while it is
// too small, and goes back to its first size when that would do again.
func (c *conn) makeRoom() {
	rest, size := c.in[c.start:c.end], len(c.in)
	switch {
	case c.bufferFull && size < maxReadBuffer:
		size = min(2*size, maxReadBuffer)
	case c.end < minReadBuffer/2 && size > minReadBuffer:
		size = minReadBuffer
	}
	if size != len(c.in) {
		c.in = make([]byte, size)
	}
	c.start, c.end = 0, copy(c.in, rest)
}

// executeBuffered decides all commands that are complete.
func (c *conn) executeBuffered() {
	began := c.startTimer()
	for !c.closing {
		n, err := c.parser.next(c.in[c.start:c.end])
		if err != nil {
			c.flushBatch()
			c.out.error("ERR " + err.Error())
			c.closing = true
		}
		if n == 0 {
			break
		}
		if c.start == 0 {
			c.rounds++
			c.setActivity(busy)
		}
		c.start += n
		c.execute(c.parser.args)
		if len(c.out.buf) >= sendThreshold && !c.send() {
			c.closing = true
		}
	}
	c.flushBatch()
	c.flushCounters()
	c.observeLatency(began)
}

// flushCounters tells what has been counted.
func (c *conn) flushCounters() {
	c.counters.Flush()
	c.server.commands.Add(c.executed)
	c.executed = 0
}

// startTimer and finish measure, if anybody wants to know.
func (c *conn) startTimer() (began time.Time) {
	if c.server.options.ObserveLatency != nil {
		began = time.Now()
	}
	return began
}

func (c *conn) observeLatency(began time.Time) {
	if c.server.options.ObserveLatency != nil && c.start > 0 {
		c.server.options.ObserveLatency(time.Since(began))
	}
}

// send sends the answers, and reports whether that worked.
func (c *conn) send() bool {
	if len(c.out.buf) == 0 {
		return true
	}
	c.setActivity(writing)
	_, err := c.net.Write(c.out.buf)
	c.out.buf = c.out.buf[:0]
	if cap(c.out.buf) > maxKeptReplies {
		c.out.buf = nil
	}
	return err == nil
}

// How long a connection that is to be closed waits for what is on its way.
const (
	finalReadWait = 10 * time.Millisecond
	firstReadWait = 250 * time.Millisecond // for a client that has just connected
	lingerTimeout = 100 * time.Millisecond
)

func (c *conn) finalReadWait() time.Duration {
	if c.rounds == 0 {
		return firstReadWait
	}
	return finalReadWait
}

// finish says goodbye. When the door closes, what has arrived until then is still
// answered. A connection that is closed while the client sends may cost the client
// the answers that it has not read yet; so it is told first that there will be no
// more, and heard out for a moment.
func (c *conn) finish() {
	for arrived := !c.closing; arrived; {
		_ = c.net.SetReadDeadline(time.Now().Add(c.finalReadWait()))
		arrived = c.receive() && c.bufferFull
		c.executeBuffered()
		if !c.send() {
			return
		}
	}
	half, ok := c.net.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.net.SetReadDeadline(time.Now().Add(lingerTimeout))
	for {
		if _, err := c.net.Read(c.in); err != nil {
			return
		}
	}
}
