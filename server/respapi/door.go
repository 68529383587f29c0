// Package respapi is the door for Redis clients. It speaks RESP2 and RESP3, answers
// CL.THROTTLE as redis-cell does, and the commands that clients and operators send
// around it.
package respapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/judge"
)

// Options configure a Door. The zero value is good for nearly everyone.
type Options struct {
	// RequireAuth lets nobody do anything before AUTH with the judge's token.
	// Default: only undoing needs that, and only from other machines.
	RequireAuth bool

	// MaxConns is how many connections may be open at once, and
	// MaxConnsPerAddr how many of them from one address that is not this
	// machine's own. Default: 10,000, and half of MaxConns.
	MaxConns, MaxConnsPerAddr int

	// IdleTimeout is for how long a connection may say nothing, CommandTimeout
	// how long a command may take to arrive once it has begun, and WriteTimeout
	// how long a client may take to receive its answers. They are kept to within
	// a quarter. Default: 10 minutes, 5 seconds, 10 seconds.
	IdleTimeout, CommandTimeout, WriteTimeout time.Duration

	// Took is told how long it took to decide the commands that came together.
	// It is called by many goroutines at once. Default: nobody is.
	Took func(time.Duration)

	// Log is told what an operator must know. Default: nobody is.
	Log *slog.Logger
}

const (
	defaultMaxConns       = 10_000
	defaultIdleTimeout    = 10 * time.Minute
	defaultCommandTimeout = 5 * time.Second
	defaultWriteTimeout   = 10 * time.Second
)

func (o *Options) withDefaults() (n Options, err error) {
	if o != nil {
		n = *o
	}
	for _, option := range []struct {
		name  string
		value int64
	}{
		{"MaxConns", int64(n.MaxConns)},
		{"MaxConnsPerAddr", int64(n.MaxConnsPerAddr)},
		{"IdleTimeout", int64(n.IdleTimeout)},
		{"CommandTimeout", int64(n.CommandTimeout)},
		{"WriteTimeout", int64(n.WriteTimeout)},
	} {
		if option.value < 0 {
			return n, fmt.Errorf("respapi: Options.%s %d: must not be negative", option.name, option.value)
		}
	}
	n.MaxConns = valueOr(n.MaxConns, defaultMaxConns)
	n.MaxConnsPerAddr = valueOr(n.MaxConnsPerAddr, max(n.MaxConns/2, 1))
	n.IdleTimeout = valueOr(n.IdleTimeout, defaultIdleTimeout)
	n.CommandTimeout = valueOr(n.CommandTimeout, defaultCommandTimeout)
	n.WriteTimeout = valueOr(n.WriteTimeout, defaultWriteTimeout)
	if n.Log == nil {
		n.Log = slog.New(slog.DiscardHandler)
	}
	return n, nil
}

func valueOr[T int | time.Duration](value, otherwise T) T {
	if value == 0 {
		return otherwise
	}
	return value
}

// A Door serves Redis clients.
type Door struct {
	judge     *judge.Judge
	options   Options
	memory    *penstock.Memory // the judge's store, if it is one: then it is asked directly
	throttles throttles
	looks     []*penstock.Limiter // that show how a key stands under any limit
	now       func() time.Time
	began     time.Time

	ctx    context.Context // of all that is asked of the store
	cancel context.CancelFunc

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	perAddr   map[netip.Addr]int
	closing   bool
	watching  bool
	closed    chan struct{}  // nobody is let in any more, and everybody was told
	open      sync.WaitGroup // connections

	lastID, accepted, refused, commands atomic.Int64
}

// New returns a door to the judge. Nil options are all defaults.
func New(j *judge.Judge, o *Options) (*Door, error) {
	if j == nil {
		return nil, errors.New("respapi: no judge")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Door{
		judge:     j,
		options:   options,
		throttles: throttles{store: j.Store()},
		now:       time.Now,
		began:     time.Now(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
		perAddr:   map[netip.Addr]int{},
		closed:    make(chan struct{}),
	}
	d.memory, _ = j.Store().(*penstock.Memory)
	if d.looks, err = looksOn(j.Store()); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (d *Door) Serve(l net.Listener) error {
	if !d.listen(l) {
		return l.Close()
	}
	defer d.unlisten(l)
	pause := shortestPause
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = shortestPause
			d.admit(nc)
		case d.isClosing():
			return nil // however the listener put it
		case !passes(err):
			return err
		default:
			d.options.Log.Warn("no connection can be accepted for now", "door", "resp", "err", err)
			d.rest(pause)
			pause = min(2*pause, longestPause)
		}
	}
}

const (
	shortestPause = 5 * time.Millisecond
	longestPause  = time.Second
)

// passes reports whether accepting may work again later, as when there are no file
// descriptors left.
func passes(err error) bool {
	var temporary interface{ Temporary() bool }
	return errors.As(err, &temporary) && temporary.Temporary()
}

func (d *Door) rest(pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-d.closed:
	}
}

// listen notes a listener, unless the door is closed already.
func (d *Door) listen(l net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.listeners[l] = struct{}{}
	if !d.watching {
		d.watching = true
		go d.watch()
	}
	return true
}

func (d *Door) unlisten(l net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.listeners, l)
	_ = l.Close() // as often as not it is closed already
}

func (d *Door) isClosing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing
}

// admit lets a connection in, if there is room for it.
func (d *Door) admit(nc net.Conn) {
	c := newConn(d, nc)
	d.mu.Lock()
	roomy := !d.closing && len(d.conns) < d.options.MaxConns &&
		(c.addr.IsLoopback() || d.perAddr[c.addr] < d.options.MaxConnsPerAddr)
	if roomy {
		d.conns[c] = struct{}{}
		d.perAddr[c.addr]++
		d.open.Add(1)
	}
	d.mu.Unlock()
	if !roomy {
		d.refuse(nc)
		return
	}
	d.accepted.Add(1)
	go c.serve()
}

// refuse tells a connection that there is no room, if that can be told at once.
func (d *Door) refuse(nc net.Conn) {
	d.refused.Add(1)
	_ = nc.SetDeadline(time.Now().Add(time.Millisecond)) // TLS would have to read first
	_, _ = nc.Write([]byte("-ERR max number of clients reached\r\n"))
	_ = nc.Close()
}

// Refused returns how many connections there was no room for.
func (d *Door) Refused() int64 { return d.refused.Load() }

// forget is called once by each connection that was let in.
func (d *Door) forget(c *conn) {
	d.mu.Lock()
	delete(d.conns, c)
	if d.perAddr[c.addr]--; d.perAddr[c.addr] == 0 {
		delete(d.perAddr, c.addr)
	}
	d.mu.Unlock()
	d.open.Done()
}

// Shutdown stops accepting, answers what has arrived, closes the connections and
// returns. What is not done when ctx ends is cut off.
func (d *Door) Shutdown(ctx context.Context) error {
	d.shut()
	done := make(chan struct{})
	go func() {
		d.open.Wait()
		close(done)
	}()
	select {
	case <-done:
		d.cancel()
		return nil
	case <-ctx.Done():
		d.cutOff()
		return ctx.Err()
	}
}

// shut lets nobody in any more, and wakes everybody who waits for a command.
func (d *Door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return
	}
	d.closing = true
	for l := range d.listeners {
		_ = l.Close() // what it says goes to Serve
	}
	for c := range d.conns {
		_ = c.net.SetReadDeadline(time.Unix(1, 0)) // long ago
	}
	close(d.closed)
}

func (d *Door) cutOff() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.net.Close()
	}
}
