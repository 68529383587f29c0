// Package entrance lets connections in: so many at once, and so many from one
// address. It outlives a shortage of file descriptors.
package entrance

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
	// Most is how many connections may be inside at once. Required.
	Most int

	// MostFromOne is how many of them may come from one address, or of IPv6 from
	// one network of 64 bits, which one customer has to itself. Those from this
	// machine are not counted: a proxy beside the server speaks for everybody.
	// Default: half of Most, for a proxy elsewhere speaks for many as well.
	MostFromOne int

	// Refuse tells a connection that there is no room. It must not wait.
	// Default: the connection is closed without a word.
	Refuse func(net.Conn)

	// Log is told when no connections can be accepted. Default: nobody is.
	Log *slog.Logger
}

// An Entrance is a listener that lets in whom there is room for. Others are closed: a
// client that is told so tries elsewhere, and one that is kept waiting does not.
type Entrance struct {
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
func New(l net.Listener, o Options) *Entrance {
	if o.MostFromOne == 0 {
		o.MostFromOne = max(o.Most/2, 1)
	}
	if o.Refuse == nil {
		o.Refuse = func(net.Conn) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Entrance{Listener: l, options: o, closed: make(chan struct{}), from: map[netip.Addr]int{}}
}

// Most returns how many may be inside at once.
func (e *Entrance) Most() int { return e.options.Most }

// Inside returns how many are inside.
func (e *Entrance) Inside() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inside
}

// Refused returns for how many there was no room.
func (e *Entrance) Refused() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refused
}

// Accept returns the next connection there is room for.
func (e *Entrance) Accept() (net.Conn, error) {
	pause := shortestPause
	for {
		conn, err := e.Listener.Accept()
		switch {
		case err == nil:
			if g := e.admit(conn); g != nil {
				return g, nil
			}
			e.options.Refuse(conn)
			_ = conn.Close()
		case !passes(err):
			return nil, err
		default:
			e.options.Log.Warn("no connection can be accepted for now", "err", err)
			if !e.wait(pause) {
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
func (e *Entrance) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.closed:
		return false
	}
}

// admit returns a connection as a guest, or nil if there is no room for it.
func (e *Entrance) admit(conn net.Conn) *guest {
	from := neighbourhood(conn.RemoteAddr())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inside >= e.options.Most || e.from[from] >= e.options.MostFromOne {
		e.refused++
		return nil
	}
	e.inside++
	if from.IsValid() {
		e.from[from]++
	}
	return &guest{Conn: conn, entrance: e, from: from}
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
func (e *Entrance) leave(from netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inside--
	if e.from[from]--; e.from[from] <= 0 {
		delete(e.from, from)
	}
}

// Close lets nobody in any more. Those who are inside stay.
func (e *Entrance) Close() error {
	e.once.Do(func() { close(e.closed) })
	return e.Listener.Close()
}

// A guest is a connection that has been let in.
type guest struct {
	net.Conn
	entrance *Entrance
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
