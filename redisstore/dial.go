package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A dialer connects on behalf of callers who have no time. Whoever finds that
// there is no connection makes one, within its own deadline, which is short; all
// others wait for that. So a connection that takes longer goes on being made in
// the background, and the next caller gets it; and the first words spoken on it
// must be answered within the deadline of whoever speaks them.
type dialer struct {
	network string // "tcp" or "unix"
	mu      sync.Mutex
	orphans map[string][]*attempt // whose caller had no more time, by address
}

// An attempt is a connection being made.
type attempt struct {
	made chan struct{} // closed when conn or err is there
	conn net.Conn
	err  error
}

func newDialer(network string) *dialer {
	return &dialer{network: network, orphans: map[string][]*attempt{}}
}

// dial returns a connection, perhaps one that was begun for somebody else.
func (d *dialer) dial(ctx context.Context, address string, by *net.Dialer, secure *tls.Config) (net.Conn, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, by.Timeout)
		defer cancel()
	}
	a := d.adopt(address)
	if a == nil {
		a = &attempt{made: make(chan struct{})}
		go d.connect(a, address, by, secure)
	}
	select {
	case <-a.made:
		return greet(ctx, a)
	case <-ctx.Done():
		d.mu.Lock()
		d.orphans[address] = append(d.orphans[address], a)
		d.mu.Unlock()
		return nil, ctx.Err()
	}
}

// adopt returns an attempt that nobody waits for, or nil.
func (d *dialer) adopt(address string) *attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.orphans[address]
	if len(list) == 0 {
		return nil
	}
	d.orphans[address] = list[1:]
	return list[0]
}

func (d *dialer) connect(a *attempt, address string, by *net.Dialer, secure *tls.Config) {
	defer close(a.made)
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	by = &net.Dialer{KeepAlive: by.KeepAlive}
	if secure == nil {
		a.conn, a.err = by.DialContext(ctx, d.network, address)
		return
	}
	over := tls.Dialer{NetDialer: by, Config: secure}
	a.conn, a.err = over.DialContext(ctx, d.network, address)
}

// close closes the connections that nobody has asked for.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, list := range d.orphans {
		for _, a := range list {
			go func() {
				if <-a.made; a.conn != nil {
					_ = a.conn.Close()
				}
			}()
		}
		delete(d.orphans, address)
	}
}

// A greeting is a connection on which nothing has been heard yet. Until then, no
// deadline is later than that of whoever has it made.
type greeting struct {
	net.Conn
	by    time.Time
	heard atomic.Bool
}

func greet(ctx context.Context, a *attempt) (net.Conn, error) {
	by, ok := ctx.Deadline()
	if a.err != nil || !ok {
		return a.conn, a.err
	}
	return &greeting{Conn: a.conn, by: by}, nil
}

func (g *greeting) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if n > 0 && !g.heard.Swap(true) {
		_ = g.Conn.SetDeadline(time.Time{}) // the next to set one sets its own
	}
	return n, err
}

func (g *greeting) SetDeadline(t time.Time) error {
	if !g.heard.Load() && (t.IsZero() || t.After(g.by)) {
		t = g.by
	}
	return g.Conn.SetDeadline(t)
}
