// Package respapi is the door for Redis clients. It speaks RESP2 and RESP3, answers
// CL.THROTTLE as redis-cell does, and the commands that clients and operators send
// around it.
package respapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// Options configure a Door. The zero value is good for nearly everyone.
type Options struct {
	// RequireAuth lets nobody do anything before AUTH with the judge's token.
	// Default: only undoing needs that, and only from other machines.
	RequireAuth bool

	// Listener is what the clients come by, for INFO to tell of. Default: it
	// tells zeros.
	Listener *connlimit.Listener

	// IdleTimeout is for how long a connection may say nothing, CommandTimeout
	// how long a command may take to arrive once it has begun, and WriteTimeout
	// how long a client may take to receive its answers. They are kept to within
	// a quarter. Default: 10 minutes, 5 seconds, 10 seconds.
	IdleTimeout, CommandTimeout, WriteTimeout time.Duration

	// ObserveLatency is told how long it took to decide the commands that came together.
	// It is called by many goroutines at once. Default: nobody is.
	ObserveLatency func(time.Duration)
}

const (
	defaultIdleTimeout    = 10 * time.Minute
	defaultCommandTimeout = 5 * time.Second
	defaultWriteTimeout   = 10 * time.Second
)

func (o *Options) withDefaults() (n Options, err error) {
	if o != nil {
		n = *o
	}
	for name, value := range map[string]time.Duration{
		"IdleTimeout": n.IdleTimeout, "CommandTimeout": n.CommandTimeout, "WriteTimeout": n.WriteTimeout,
	} {
		if value < 0 {
			return n, fmt.Errorf("respapi: Options.%s %v: must not be negative", name, value)
		}
	}
	n.IdleTimeout = orDefault(n.IdleTimeout, defaultIdleTimeout)
	n.CommandTimeout = orDefault(n.CommandTimeout, defaultCommandTimeout)
	n.WriteTimeout = orDefault(n.WriteTimeout, defaultWriteTimeout)
	return n, nil
}

func orDefault(value, otherwise time.Duration) time.Duration {
	if value == 0 {
		return otherwise
	}
	return value
}

// A Server serves Redis clients.
type Server struct {
	engine      *engine.Engine
	options     Options
	memory      *penstock.Memory // the judge's store, if it is one: then it is asked directly
	limiters    limiterCache
	keyLimiters []*penstock.Limiter // that show how a key stands under any limit
	now         func() time.Time
	started     time.Time

	ctx    context.Context // of all that is asked of the store
	cancel context.CancelFunc

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	closing   bool
	reaping   bool
	closed    chan struct{}  // nobody is let in any more, and everybody was told
	openConns sync.WaitGroup // connections

	lastID, accepted, commands atomic.Int64
}

// New returns a door to the judge. Nil options are all defaults.
func New(j *engine.Engine, o *Options) (*Server, error) {
	if j == nil {
		return nil, errors.New("respapi: no judge")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Server{
		engine:    j,
		options:   options,
		limiters:  limiterCache{store: j.Store()},
		now:       time.Now,
		started:   time.Now(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
		closed:    make(chan struct{}),
	}
	d.memory, _ = j.Store().(*penstock.Memory)
	if d.keyLimiters, err = newKeyLimiters(j.Store()); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (d *Server) Serve(l net.Listener) error {
	if !d.addListener(l) {
		return l.Close()
	}
	defer d.removeListener(l)
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			d.startConn(nc)
		case d.isClosing():
			return nil // however the listener put it
		default:
			return err
		}
	}
}

// addListener notes a listener, unless the door is closed already.
func (d *Server) addListener(l net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.listeners[l] = struct{}{}
	if !d.reaping {
		d.reaping = true
		go d.reap()
	}
	return true
}

func (d *Server) removeListener(l net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.listeners, l)
	_ = l.Close() // as often as not it is closed already
}

func (d *Server) isClosing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing
}

// startConn lets a connection in, unless the door has just closed.
func (d *Server) startConn(nc net.Conn) {
	c := newConn(d, nc)
	d.mu.Lock()
	open := !d.closing
	if open {
		d.conns[c] = struct{}{}
		d.openConns.Add(1)
	}
	d.mu.Unlock()
	if !open {
		_ = nc.Close()
		return
	}
	d.accepted.Add(1)
	go c.serve()
}

// WriteMaxClients tells a client that there is no room for it, if that can be told at once.
func WriteMaxClients(nc net.Conn) {
	_ = nc.SetDeadline(time.Now().Add(time.Millisecond))
	_, _ = nc.Write([]byte("-ERR max number of clients reached\r\n"))
}

// markEstablished notes that a connection's TLS handshake is done. A shutdown lets
// handshakes finish, since the client's first command comes right behind.
func (d *Server) markEstablished(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.established = true
	if d.closing {
		c.interruptRead()
	}
}

// removeConn is called once by each connection that was let in.
func (d *Server) removeConn(c *conn) {
	d.mu.Lock()
	delete(d.conns, c)
	d.mu.Unlock()
	d.openConns.Done()
}

// Shutdown stops accepting, answers what has arrived, closes the connections and
// returns. What is not done when ctx ends is cut off.
func (d *Server) Shutdown(ctx context.Context) error {
	d.beginShutdown()
	done := make(chan struct{})
	go func() {
		d.openConns.Wait()
		close(done)
	}()
	select {
	case <-done:
		d.cancel()
		return nil
	case <-ctx.Done():
		d.closeConns()
		return ctx.Err()
	}
}

// beginShutdown lets nobody in any more, and wakes everybody who waits for a command.
func (d *Server) beginShutdown() {
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
		if c.established {
			c.interruptRead()
		}
	}
	close(d.closed)
}

func (d *Server) closeConns() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.net.Close()
	}
}
