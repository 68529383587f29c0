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

	mu      sync.Mutex
	inside  int
	from    map[netip.Addr]int
	refused int64
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
	return &Listener{Listener: l, options: o, closed: make(chan struct{}), from: map[netip.Addr]int{}}
}

// Max returns how many may be inside at once.
func (l *Listener) Max() int { return l.options.Max }

// Active returns how many are inside.
func (l *Listener) Active() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inside
}

// Refused returns for how many there was no room.
func (l *Listener) Refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// Accept returns the next connection there is room for.
func (l *Listener) Accept() (net.Conn, error) {
	pause := shortestPause
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			if g := l.admit(conn); g != nil {
				return g, nil
			}
			l.options.Refuse(conn)
			_ = conn.Close()
		case !passes(err):
			return nil, err
		default:
			l.options.Log.Warn("no connection can be accepted for now", "err", err)
			if !l.wait(pause) {
				return nil, net.ErrClosed
			}
			pause = min(2*pause, longestPause)
		}
	}
}

const (
	shortestPause = 5 * time.Millisecond
	longestPause  = time.Second
)

// passes reports whether accepting may work again later: after a connection is
// closed elsewhere, say, when there are no file descriptors left.
func passes(err error) bool {
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
func (l *Listener) admit(conn net.Conn) *guest {
	from := neighbourhood(conn.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inside >= l.options.Max || l.from[from] >= l.options.MaxPerClient {
		l.refused++
		return nil
	}
	l.inside++
	if from.IsValid() {
		l.from[from]++
	}
	return &guest{Conn: conn, entrance: l, from: from}
}

// neighbourhood returns what connections of one client have in common, or the zero
// Addr for a client on this machine.
func neighbourhood(a net.Addr) netip.Addr {
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

// leave makes room for another.
func (l *Listener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inside--
	if l.from[from]--; l.from[from] <= 0 {
		delete(l.from, from)
	}
}

// Close lets nobody in any more. Those who are inside stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A guest is a connection that has been let in.
type guest struct {
	net.Conn
	entrance *Listener
	from     netip.Addr
	heard    atomic.Int64
	once     sync.Once
}

func (g *guest) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.heard.Add(int64(n))
	return n, err
}

// Heard returns how many bytes have come from the other side, so that whoever times a
// connection sees when it begins to speak.
func (g *guest) Heard() int64 { return g.heard.Load() }

func (g *guest) Close() error {
	g.once.Do(func() { g.entrance.leave(g.from) })
	return g.Conn.Close()
}

// CloseWrite tells the other side that there will be no more, where that can be told.
func (g *guest) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
