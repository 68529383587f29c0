package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
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
	silent  map[string]time.Time  // when an address last did not answer a greeting
}

// restGap is how long an address that did not answer a greeting is left alone.
// What the client sets up for each connection costs more than all the calls that
// would wait for it.
const restGap = 100 * time.Millisecond

// errResting means that nothing was sent, because there is no connection.
var errResting = errors.New("did not answer when it was last connected to")

// An attempt is a connection being made.
type attempt struct {
	made chan struct{} // closed when conn or err is there
	conn net.Conn
	err  error
}

func newDialer(network string) *dialer {
	return &dialer{network: network, orphans: map[string][]*attempt{}, silent: map[string]time.Time{}}
}

// dial returns a connection, perhaps one that was begun for somebody else.
func (d *dialer) dial(ctx context.Context, address string, by *net.Dialer, secure *tls.Config) (net.Conn, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, by.Timeout)
		defer cancel()
	}
	if d.resting(address) {
		return nil, fmt.Errorf("%s: %w", address, errResting)
	}
	a := d.adopt(address)
	if a == nil {
		a = &attempt{made: make(chan struct{})}
		go d.connect(a, address, by, secure)
	}
	select {
	case <-a.made:
		return d.greet(ctx, a, address)
	case <-ctx.Done():
		d.mu.Lock()
		d.orphans[address] = append(d.orphans[address], a)
		d.mu.Unlock()
		return nil, ctx.Err()
	}
}

func (d *dialer) resting(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.silent[address]) < restGap
}

// rest leaves an address alone for a while.
func (d *dialer) rest(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent[address] = time.Now()
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
	rest  func() // called if nothing is heard in time
}

func (d *dialer) greet(ctx context.Context, a *attempt, address string) (net.Conn, error) {
	by, ok := ctx.Deadline()
	if a.err != nil || !ok {
		return a.conn, a.err
	}
	return &greeting{Conn: a.conn, by: by, rest: func() { d.rest(address) }}, nil
}

func (g *greeting) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if n > 0 && !g.heard.Swap(true) {
		_ = g.Conn.SetDeadline(time.Time{}) // the next to set one sets its own
	}
	if err != nil && !g.heard.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		g.rest()
	}
	return n, err
}

func (g *greeting) SetDeadline(t time.Time) error {
	if !g.heard.Load() && (t.IsZero() || t.After(g.by)) {
		t = g.by
	}
	return g.Conn.SetDeadline(t)
}
