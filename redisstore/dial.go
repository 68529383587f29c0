package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A dialer connects on behalf of callers who have no time. Whoever finds that
// there is no connection makes one, within its own deadline, which is short; all
// others wait for that. So a connection that takes longer goes on being made in
// the background, and the next caller gets it; and the first words spoken on it
// must be answered within the deadline of whoever speaks them.
//
// However many callers there are, and for whatever reason they find themselves
// without a connection, a server is not connected to more often than dialGap says.
type dialer struct {
	network string // "tcp" or "unix"
	ctx     context.Context
	cancel  context.CancelFunc // ends attempts; nobody will want them

	mu     sync.Mutex
	places map[string]*place // by address
}

// A place is what is known of an address.
type place struct {
	orphans []*attempt // whose caller had no more time
	paid    time.Time  // until when connections are accounted for, one for each dialGap
	silent  time.Time  // when it last did not answer a greeting
	failure error      // of the last connection, if that was one
}

const (
	// dialGap is the time between two connections to one address, but for as
	// many as dialBurst at once.
	dialGap   = 20 * time.Millisecond
	dialBurst = 10

	// restGap is how long an address that did not answer a greeting is left
	// alone. What the client sets up for each connection costs more than all
	// the calls that would wait for it.
	restGap = 100 * time.Millisecond

	// orphanLife is how long a connection is kept that nobody has asked for.
	orphanLife = 2 * connectTimeout
)

var (
	errSilent  = fmt.Errorf("%w: it did not answer when it was last connected to", errNotSent)
	errRushing = fmt.Errorf("%w: it was connected to too often just now", errNotSent)
)

// An attempt is a connection being made.
type attempt struct {
	made chan struct{} // closed when conn or err is there
	conn net.Conn
	err  error
}

func newDialer(network string) *dialer {
	d := &dialer{network: network, places: map[string]*place{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// dial returns a connection, perhaps one that was begun for somebody else.
func (d *dialer) dial(ctx context.Context, address string, by *net.Dialer, secure *tls.Config) (net.Conn, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, by.Timeout)
		defer cancel()
	}
	a, begin, err := d.next(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if begin {
		go d.connect(a, address, by, secure)
	}
	select {
	case <-a.made:
		return d.greet(ctx, a, address)
	case <-ctx.Done():
		d.orphan(a, address)
		return nil, fmt.Errorf("connecting to %s: %w", address, ctx.Err())
	}
}

// next returns an attempt that nobody waits for, or one to begin, if it is time
// for one.
func (d *dialer) next(address string) (a *attempt, begin bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, p := time.Now(), d.place(address)
	switch {
	case d.ctx.Err() != nil:
		return nil, false, errClosed
	case now.Sub(p.silent) < restGap:
		return nil, false, errSilent
	case len(p.orphans) > 0:
		a, p.orphans = p.orphans[0], p.orphans[1:]
		return a, false, nil
	case p.paid.Sub(now) > (dialBurst-1)*dialGap && p.failure != nil:
		return nil, false, fmt.Errorf("%w: %w", errRushing, p.failure)
	case p.paid.Sub(now) > (dialBurst-1)*dialGap:
		return nil, false, errRushing
	case p.paid.Before(now):
		p.paid = now
	}
	p.paid = p.paid.Add(dialGap)
	return &attempt{made: make(chan struct{})}, true, nil
}

// place returns what is known of an address; the lock is held.
func (d *dialer) place(address string) *place {
	p := d.places[address]
	if p == nil {
		p = &place{}
		d.places[address] = p
	}
	return p
}

// note remembers how a connection ended, or began if there is no error, and
// leaves an address alone for a while that does not answer.
func (d *dialer) note(address string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.place(address)
	p.failure = err
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.silent = time.Now()
	}
}

// orphan leaves an attempt to whoever comes next, but not for ever.
func (d *dialer) orphan(a *attempt, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		go a.discard()
		return
	}
	p := d.place(address)
	p.orphans = append(p.orphans, a)
	time.AfterFunc(orphanLife, func() { d.forget(a, address) })
}

// forget discards an attempt that is still an orphan.
func (d *dialer) forget(a *attempt, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.place(address)
	if i := slices.Index(p.orphans, a); i >= 0 {
		p.orphans = slices.Delete(p.orphans, i, i+1)
		go a.discard()
	}
}

func (a *attempt) discard() {
	if <-a.made; a.conn != nil {
		_ = a.conn.Close()
	}
}

func (d *dialer) connect(a *attempt, address string, by *net.Dialer, secure *tls.Config) {
	defer close(a.made)
	ctx, cancel := context.WithTimeout(d.ctx, connectTimeout)
	defer cancel()
	by = &net.Dialer{KeepAlive: by.KeepAlive}
	if secure == nil {
		a.conn, a.err = by.DialContext(ctx, d.network, address)
		return
	}
	over := tls.Dialer{NetDialer: by, Config: secure}
	a.conn, a.err = over.DialContext(ctx, d.network, address)
}

// close closes the connections that nobody has asked for, and makes no more.
func (d *dialer) close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.places {
		for _, a := range p.orphans {
			go a.discard()
		}
		p.orphans = nil
	}
}

// A greeting is a connection on which nothing has been heard yet. Until then, no
// deadline is later than that of whoever has it made; and what goes wrong before
// anything else was said has cost nobody a call.
type greeting struct {
	net.Conn
	by          time.Time
	heard, used atomic.Bool
	note        func(error) // is told of the first answer, or why there is none
}

func (d *dialer) greet(ctx context.Context, a *attempt, address string) (net.Conn, error) {
	if a.err != nil {
		d.note(address, a.err)
		return nil, notSent(a.err)
	}
	by, _ := ctx.Deadline()
	return &greeting{Conn: a.conn, by: by, note: func(err error) { d.note(address, err) }}, nil
}

func notSent(err error) error { return fmt.Errorf("%w: %w", errNotSent, err) }

func (g *greeting) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if !g.heard.Load() {
		g.hear(n, err)
	}
	return n, g.wrap(err)
}

// hear is told of what is read first.
func (g *greeting) hear(n int, err error) {
	g.note(err)
	if n > 0 {
		g.heard.Store(true)
		_ = g.Conn.SetDeadline(time.Time{}) // the next to set one sets its own
	}
}

func (g *greeting) Write(b []byte) (int, error) {
	if g.heard.Load() && !g.used.Load() {
		g.used.Store(true)
	}
	n, err := g.Conn.Write(b)
	return n, g.wrap(err)
}

func (g *greeting) wrap(err error) error {
	if err == nil || g.used.Load() {
		return err
	}
	return notSent(err)
}

func (g *greeting) SetDeadline(t time.Time) error {
	if !g.heard.Load() && (t.IsZero() || t.After(g.by)) {
		t = g.by
	}
	return g.Conn.SetDeadline(t)
}
