package respapi

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rulestats"
)

// Buffer sizes of a connection, in bytes.
const (
	minReadBuffer  = 4 << 10
	maxReadBuffer  = maxCommand + maxArgs // enough for the parser to see that a command is too long
	sendThreshold  = 16 << 10             // replies are sent when they reach this
	maxKeptReplies = sendThreshold + sendThreshold/2
)

// A conn is a client's connection. Its goroutine repeats three steps: receive what
// has arrived, execute all complete commands, send the replies. So a pipeline costs
// one read and one write. A client that does not read its replies is not read from.
type conn struct {
	server      *Server
	net         net.Conn
	id          int64
	opened      time.Time
	established bool // the TLS handshake is done; guarded by Server.mu
	interrupted bool // Shutdown has ended the read; guarded by Server.mu

	in         []byte
	start, end int  // the received bytes that are not yet parsed
	bufferFull bool // whether the last read filled the buffer
	parser     parser
	out        reply
	replied    int  // the bytes of out that are whole replies
	closing    bool // close after sending the replies

	counters  rulestats.Local
	batch     []penstock.Request        // for the next call of the store
	forms     []replyForm               // of the replies to the batch
	admitted  []requestlimits.Admission // of the batch
	decisions []penstock.Decision

	session session

	executed int64 // commands since flushCounters
	decides  bool  // a command of the pipeline asks for a decision
	served   bool  // a command that names a key was executed
	rounds   uint64
	activity atomic.Uint64
	observed observation // guarded by Server.mu
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		server: s, net: nc, id: s.lastID.Add(1), opened: time.Now(),
		counters: s.engine.LocalStats(),
	}
	c.resetSession()
	return c
}

func (c *conn) serve() {
	defer c.server.removeConn(c)
	defer func() { _ = c.net.Close() }()
	if !c.handshake() {
		return
	}
	c.in = make([]byte, minReadBuffer)
	for !c.closing && c.receive() == nil {
		c.executeBuffered()
		if !c.send() {
			return
		}
	}
	if c.closing || c.server.isClosing() {
		c.finish()
	}
}

// handshake completes a TLS handshake before the first read, within commandTimeout.
func (c *conn) handshake() bool {
	secure, ok := c.net.(interface{ HandshakeContext(context.Context) error })
	if ok {
		c.setActivity(partial)
		if secure.HandshakeContext(c.server.ctx) != nil {
			return false
		}
	}
	c.server.markEstablished(c)
	return true
}

// receive waits for more bytes. It returns an error if there are none.
func (c *conn) receive() error {
	c.makeRoom()
	if c.end == 0 {
		c.setActivity(idle)
	} else {
		c.setActivity(partial)
	}
	n, err := c.net.Read(c.in[c.end:])
	c.end += n
	c.bufferFull = c.end == len(c.in)
	if n > 0 {
		return nil
	}
	return err
}

// makeRoom moves the unparsed bytes to the start of the buffer. The buffer grows while
// reads fill it, and shrinks to its first size when that is enough again.
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

// executeBuffered executes all complete commands in the buffer.
func (c *conn) executeBuffered() {
	defer c.recoverPanic()
	start := time.Now()
	for !c.closing {
		c.replied = len(c.out.buf)
		n, err := c.parser.next(c.in[c.start:c.end])
		if err != nil {
			c.flushBatch()
			c.reject(requestlog.Malformed, "ERR "+err.Error())
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
		if len(c.out.buf) >= sendThreshold {
			c.closing = !c.send() || c.closing
			c.setActivity(busy) // the client has read, and waits for the store
		}
	}
	c.flushBatch()
	c.observeLatency(start)
	c.flushCounters()
}

// errPanicked is the result of commands whose store or handler panicked.
var errPanicked = errors.New("internal error")

// recoverPanic recovers from a panic, which would end the process with all other connections. It
// replies with an error to the first command that has no reply, and closes the connection.
func (c *conn) recoverPanic() {
	p := recover()
	if p == nil {
		return
	}
	c.server.options.Requests.Panicked(p, c.net.RemoteAddr().String())
	for i := range c.admitted {
		c.admitted[i].Finish(&penstock.Decision{}, errPanicked)
	}
	c.batch, c.forms, c.admitted = nil, nil, nil
	c.out.buf = c.out.buf[:min(c.replied, len(c.out.buf))]
	c.out.error("ERR " + errPanicked.Error())
	c.closing = true
	c.counters.Fail()
	c.flushCounters()
}

// flushCounters adds the connection's counters to the server's and the engine's.
func (c *conn) flushCounters() {
	c.counters.Flush()
	c.server.commands.Add(c.executed)
	c.executed = 0
}

// observeLatency reports the latency if any command asked for a decision. Others, such as the
// PINGs of health checks, say nothing about how long decisions take.
func (c *conn) observeLatency(start time.Time) {
	if c.server.options.ObserveLatency != nil && c.decides {
		c.server.options.ObserveLatency(time.Since(start))
	}
	c.decides = false
}

// send writes the replies and reports whether that succeeded.
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

// interruptRead makes the current or the next read fail. It does so only once, because
// finish reads again. Server.mu must be held.
func (c *conn) interruptRead() {
	if c.interrupted {
		return
	}
	c.interrupted = true
	_ = c.net.SetReadDeadline(time.Unix(1, 0)) // in the past
}

// closeWaits are the times that finish waits for bytes in flight.
type closeWaits struct {
	firstRead time.Duration // for the first command of a client, since it connected, and for the rest of a command
	finalRead time.Duration // for further commands, at least
	linger    time.Duration // for the client to read its replies and close
}

var defaultCloseWaits = closeWaits{
	firstRead: 5 * time.Second, // as the HTTP listeners
	finalRead: 10 * time.Millisecond,
	linger:    100 * time.Millisecond,
}

// maxFinalBytes is more than the receive buffer of a socket usually holds.
const maxFinalBytes = 8 << 20

// finish answers what arrives during a shutdown, and ends the connection. It stops after
// maxFinalBytes, so that a client that keeps sending does not delay the shutdown.
//
// Clients check whether a connection has ended before they use it again. So the end is sent
// with the last reply: a client that came between them would lose a command.
func (c *conn) finish() {
	c.served = false
	for received := 0; !c.closing && received < maxFinalBytes; {
		rest := c.end - c.start
		arrived := c.receiveArrived()
		received += c.end - rest
		connlimit.HoldBack(c.net, true)
		c.executeBuffered()
		if !c.send() {
			return
		}
		if c.closing || !c.bufferFull && (!arrived || c.finalWait() <= 0) {
			break
		}
		connlimit.HoldBack(c.net, false)
	}
	c.lingeringClose()
}

// finalWait returns for how long a shutdown waits for more bytes.
func (c *conn) finalWait() time.Duration {
	linger, first := time.Until(c.server.lingerEnd), c.server.closeWaits.firstRead
	switch {
	case c.start < c.end:
		return linger + first
	case c.rounds == 0:
		return max(linger, first-time.Since(c.opened))
	case !c.served:
		return linger
	}
	return 0
}

// receiveArrived waits for bytes, receives what has arrived, up to the size of the buffer, and
// reports whether there is any. It stops before the replies are sent: a client that sends
// a command for each reply would otherwise never be finished.
func (c *conn) receiveArrived() (arrived bool) {
	wait := max(c.finalWait(), c.server.closeWaits.finalRead)
	for c.receiveWithin(wait) {
		arrived, wait = true, 0
		if c.bufferFull {
			break
		}
	}
	return arrived
}

// receiveWithin waits up to d for more bytes and reports whether there are any. A read
// fails if its deadline passes before the goroutine is scheduled, even if bytes have
// arrived, so receiveWithin tries again while there are unread bytes.
func (c *conn) receiveWithin(d time.Duration) bool {
	for {
		_ = c.net.SetReadDeadline(time.Now().Add(d))
		err := c.receive()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !connlimit.HasUnread(c.net) {
			return err == nil
		}
		d = defaultCloseWaits.finalRead
	}
}

// lingeringClose closes the write side, and reads until the client closes or the linger
// time is over. Closing a connection with unread bytes resets it, which may cost the
// client the replies that it has not read yet.
func (c *conn) lingeringClose() {
	if connlimit.CloseWrite(c.net) != nil {
		return
	}
	_ = c.net.SetReadDeadline(time.Now().Add(c.server.closeWaits.linger))
	for {
		if _, err := c.net.Read(c.in); err != nil {
			return
		}
	}
}
