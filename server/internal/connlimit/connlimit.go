// Package connlimit lets connections in: so many at once, and so many from one
// address. It outlives a shortage of file descriptors.
package connlimit

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how much room there is behind an entrance.
type Options struct {
	// Max is how many connections may be inside at once. Required.
	Max int

	// MaxPerClient is how many of them may come from one address, or of IPv6 from
	// one network of 64 bits, which one customer has to itself. Those from this
	// machine are not counted: a proxy beside the server speaks for everybody.
	// Default: half of Most, for a proxy elsewhere speaks for many as well.
	MaxPerClient int

	// Refuse tells a connection that there is no room. It must not wait.
	// Default: the connection is closed without a word.
	Refuse func(net.Conn)

	// Log is told when no connections can be accepted. Default: nobody is.
	Log *slog.Logger
}

// An Listener is a listener that lets in whom there is room for. Others are closed: a
// client that is told so tries elsewhere, and one that is kept waiting does not.
type Listener struct {
	net.Listener
	options Options
	closed  chan struct{}
	once    sync.Once

	mu        sync.Mutex
	active    int
	perClient map[netip.Addr]int
	refused   int64
}

// New returns an entrance for those who come by the listener.
func New(l net.Listener, o Options) *Listener {
	if o.MaxPerClient == 0 {
		o.MaxPerClient = max(o.Max/2, 1)
	}
	if o.Refuse == nil {
		o.Refuse = func(net.Conn) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Listener{Listener: l, options: o, closed: make(chan struct{}), perClient: map[netip.Addr]int{}}
}

// Max returns how many may be inside at once.
func (l *Listener) Max() int { return l.options.Max }

// Active returns how many are inside.
func (l *Listener) Active() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

// Refused returns for how many there was no room.
func (l *Listener) Refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Accept returns the next connection there is room for.
func (l *Listener) Accept() (net.Conn, error) {
	pause := minPause
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			if c := l.admit(conn); c != nil {
				return c, nil
			}
			l.options.Refuse(conn)
			_ = conn.Close()
		case !isTemporary(err):
			return nil, err
		default:
			l.options.Log.Warn("no connection can be accepted for now", "err", err)
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

// isTemporary reports whether accepting may work again later: after a connection is
// closed elsewhere, say, when there are no file descriptors left.
func isTemporary(err error) bool {
	var temporary interface{ Temporary() bool }
	return errors.As(err, &temporary) && temporary.Temporary()
}

// wait reports whether the entrance is still open after a while.
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

// admit returns a connection as a guest, or nil if there is no room for it.
func (l *Listener) admit(nc net.Conn) *conn {
	from := clientPrefix(nc.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active >= l.options.Max || l.perClient[from] >= l.options.MaxPerClient {
		l.refused++
		return nil
	}
	l.active++
	if from.IsValid() {
		l.perClient[from]++
	}
	return &conn{Conn: nc, listener: l, from: from}
}

// clientPrefix returns what connections of one client have in common, or the zero
// Addr for a client on this machine.
func clientPrefix(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return netip.Addr{}
	}
	from := tcp.AddrPort().Addr().Unmap().WithZone("")
	if from.Is4() {
		return from
	}
	network, err := from.Prefix(64)
	if err != nil {
		return netip.Addr{} // it cannot be: an address of IPv6 has 128 bits
	}
	return network.Addr()
}

// release makes room for another.
func (l *Listener) release(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.perClient[from]--; l.perClient[from] <= 0 {
		delete(l.perClient, from)
	}
}

// Close lets nobody in any more. Those who are inside stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A conn is a connection that has been let in.
type conn struct {
	net.Conn
	listener  *Listener
	from      netip.Addr
	bytesRead atomic.Int64
	once      sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytesRead.Add(int64(n))
	return n, err
}

// BytesRead returns how many bytes have come from the other side, so that whoever times a
// connection sees when it begins to speak.
func (c *conn) BytesRead() int64 { return c.bytesRead.Load() }

func (c *conn) Close() error {
	c.once.Do(func() { c.listener.release(c.from) })
	return c.Conn.Close()
}

// CloseWrite tells the other side that there will be no more, where that can be told.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
