// Package connlimit is the listener that all APIs share. It limits connections, in
// total and per client address, survives a shortage of file descriptors, and drains
// the accept queue on shutdown.
package connlimit

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a [Listener].
type Options struct {
	// Max is how many connections may be open at once. Required.
	Max int

	// MaxPerClient is how many of them may come from one IPv4 address or one
	// IPv6 /64, which is what one customer gets. Connections from this machine
	// are not limited per client: a local proxy forwards for many clients.
	// Default: half of Max, since a remote proxy forwards for many clients too.
	MaxPerClient int

	// Refuse is called with a connection over the limit before it is closed, for
	// example to send an error. It runs in its own goroutine, so that clients that
	// do not read cannot stop the accept loop. At most 64 calls run at a time;
	// further connections are closed without a call. Default: none.
	Refuse func(net.Conn)

	// Log receives errors of accepting connections. Default: none.
	Log *slog.Logger
}

// A Listener accepts connections up to a limit. It closes connections over the limit
// at once, so that their clients can try another server instead of waiting.
type Listener struct {
	net.Listener
	options Options

	draining atomic.Bool
	drained  chan struct{} // closed once the accept queue is empty
	endDrain func()        // tells Drain that no further connection is accepted

	refusing chan struct{} // a slot for each call of Options.Refuse

	closed      chan struct{}
	endAccept   func() // closes closed
	closeSocket func() error

	mu        sync.Mutex
	active    int
	perClient map[netip.Addr]int
	refused   int64
	unread    map[*conn]struct{} // active connections that nothing was read from yet

	lastAdmitted  time.Time
	firstReadWait time.Duration // tests change it
}

// New returns a listener that limits the connections of another.
func New(l net.Listener, o Options) *Listener {
	o.MaxPerClient = cmp.Or(o.MaxPerClient, max(o.Max/2, 1))
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	drained, closed := make(chan struct{}), make(chan struct{})
	return &Listener{
		Listener: l, options: o, perClient: map[netip.Addr]int{}, unread: map[*conn]struct{}{},
		drained: drained, endDrain: sync.OnceFunc(func() { close(drained) }),
		closed: closed, endAccept: sync.OnceFunc(func() { close(closed) }), closeSocket: sync.OnceValue(l.Close),
		refusing: make(chan struct{}, maxRefusing), firstReadWait: firstReadWait,
	}
}

// Max returns how many connections may be open at once.
func (l *Listener) Max() int { return l.options.Max }

// Active returns how many connections are open.
func (l *Listener) Active() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

// Refused returns how many connections were refused so far.
func (l *Listener) Refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Accept returns the next connection within the limits.
func (l *Listener) Accept() (net.Conn, error) {
	pause := minPause
	for {
		nc, err := l.acceptSocket()
		switch {
		case err == nil:
			if c := l.admit(nc); c != nil {
				return c, nil
			}
			l.refuse(nc)
		case !isTemporary(err):
			l.endDrain() // the server does not accept again
			return nil, err
		default:
			l.options.Log.Warn("cannot accept connections, retrying", "err", err)
			if !l.wait(pause) {
				return nil, net.ErrClosed
			}
			pause = min(2*pause, maxPause)
		}
	}
}

const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// isTemporary reports whether accepting may work again later, as after a shortage of
// file descriptors.
func isTemporary(err error) bool {
	var temporary interface{ Temporary() bool }
	return errors.As(err, &temporary) && temporary.Temporary()
}

// wait pauses, and reports whether the listener is still open.
func (l *Listener) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closed:
		return false
	}
}

// admit counts a connection, or returns nil if it is over a limit.
func (l *Listener) admit(nc net.Conn) *conn {
	client := clientPrefix(nc.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active >= l.options.Max || l.perClient[client] >= l.options.MaxPerClient {
		l.refused++
		return nil
	}
	l.active++
	l.lastAdmitted = time.Now()
	if client.IsValid() {
		l.perClient[client]++
	}
	c := &conn{Conn: nc, listener: l, client: client}
	l.unread[c] = struct{}{}
	return c
}

// maxRefusing bounds the calls of Options.Refuse that run at a time.
const maxRefusing = 64

// refuse closes a connection over the limit without blocking the accept loop.
func (l *Listener) refuse(nc net.Conn) {
	if l.options.Refuse == nil {
		_ = nc.Close()
		return
	}
	select {
	case l.refusing <- struct{}{}:
		go func() {
			defer func() { <-l.refusing }()
			defer func() { _ = nc.Close() }()
			l.options.Refuse(nc)
		}()
	default:
		_ = nc.Close()
	}
}

// clientPrefix returns the address that all connections of a client share, or the
// zero Addr for a client on this machine.
func clientPrefix(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return netip.Addr{}
	}
	client := tcp.AddrPort().Addr().Unmap().WithZone("")
	if client.Is4() {
		return client
	}
	network, _ := client.Prefix(64) // no error: an IPv6 address has 128 bits, and the zero Addr has no network
	return network.Addr()
}

// release frees the place of a closed connection.
func (l *Listener) release(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.perClient[c.client]--; l.perClient[c.client] <= 0 {
		delete(l.perClient, c.client)
	}
}

// Close stops accepting. Open connections stay open; those that wait in the kernel's
// accept queue are reset, unless [Listener.Drain] was called before.
func (l *Listener) Close() error {
	l.endAccept()
	return l.closeSocket()
}

// A conn is an accepted connection within the limits.
type conn struct {
	net.Conn
	listener  *Listener
	client    netip.Addr
	bytesRead atomic.Int64
	closeOnce sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.bytesRead.Add(int64(n)) == int64(n) && n > 0 {
		c.markRead()
	}
	return n, err
}

// BytesRead returns how many bytes were received, so that idle connections can be
// distinguished from those that have begun to send a request.
func (c *conn) BytesRead() int64 { return c.bytesRead.Load() }

// markRead notes that the connection's handler has started to read, or never will.
func (c *conn) markRead() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	delete(c.listener.unread, c)
}

func (c *conn) Close() error {
	c.closeOnce.Do(func() { c.listener.release(c) })
	c.markRead()
	return c.Conn.Close()
}

// underlying returns the socket below TLS and the limits.
func underlying(nc net.Conn) net.Conn {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if c, ok := nc.(*conn); ok {
		nc = c.Conn
	}
	return nc
}

// CloseWrite closes the sending side, where the connection can do that.
func (c *conn) CloseWrite() error { return CloseWrite(c.Conn) }

// CloseWrite closes the sending side of a connection, and that of the connection below TLS.
func CloseWrite(nc net.Conn) error {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	err := half.CloseWrite()
	if secure, ok := nc.(*tls.Conn); ok && err == nil {
		return CloseWrite(secure.NetConn())
	}
	return err
}
