// Package dialer opens connections to Redis for callers with short deadlines.
package dialer

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

// ErrNotSent means that a command certainly did not reach a server.
var ErrNotSent = errors.New("not sent")

var (
	errClosed       = errors.New("the store is closed")
	errUnresponsive = fmt.Errorf("%w: the server did not answer the last handshake", ErrNotSent)
	errTooOften     = fmt.Errorf("%w: too many connections to the server in a short time", ErrNotSent)
)

// A Dialer opens connections. The deadline of a caller may be too short to connect, so
// an attempt continues in the background when its caller leaves, and the next caller
// gets the connection. However many callers need one, an address is dialed only once
// every dialGap, after a burst of dialBurst.
type Dialer struct {
	network string // "tcp" or "unix"
	timeout time.Duration
	ctx     context.Context // of attempts; ends on Close
	cancel  context.CancelFunc
	start   time.Time

	// OnReplaced is called when a connection is opened after another has failed or was closed: the server may be another
	// one. Connections that are idle look open even then.
	OnReplaced func()

	connecting atomic.Int64 // connections that callers are opening, handshakes included
	lost       atomic.Bool  // whether a connection failed or was closed since the last was opened

	mu            sync.Mutex
	addresses     map[string]*addressState
	lastLostWrite int64 // on a connection that is closed now, in nanoseconds since start
}

// An addressState is the dialer's record of one address.
type addressState struct {
	pending      []*attempt // whose caller has left
	nextDial     time.Time  // by a schedule of one dial every dialGap
	unresponsive time.Time  // when a handshake last timed out
	lastErr      error      // of the last connection; nil if it succeeded
}

const (
	dialGap   = 20 * time.Millisecond
	dialBurst = 10

	// unresponsiveGap is how long an address is left alone after a handshake
	// timed out. Setting up a connection costs the client more than all the calls
	// that would wait for it.
	unresponsiveGap = 100 * time.Millisecond
)

// An attempt is a connection being opened.
type attempt struct {
	done chan struct{} // closed when conn or err is set
	conn net.Conn
	err  error
}

// New returns a dialer for a network, "tcp" or "unix". An attempt ends after the
// timeout.
func New(network string, timeout time.Duration) *Dialer {
	d := &Dialer{network: network, timeout: timeout, start: time.Now(), addresses: map[string]*addressState{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Connecting reports whether a caller is opening a connection. Another caller that needs the
// same one waits for it, however long the first one does.
func (d *Dialer) Connecting() bool { return d.connecting.Load() > 0 }

// Dial returns a connection, possibly from an attempt of an earlier caller.
func (d *Dialer) Dial(ctx context.Context, address string, netDialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	d.connecting.Add(1)
	c, err := d.dial(ctx, address, netDialer, config)
	if err != nil {
		d.connecting.Add(-1)
		return nil, err
	}
	return c, nil
}

// DialWithoutHello is Dial for servers that do not know HELLO. The connection sends PING in its place.
func (d *Dialer) DialWithoutHello(ctx context.Context, address string, netDialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	c, err := d.Dial(ctx, address, netDialer, config)
	if err != nil {
		return nil, err
	}
	return &pingConn{Conn: c}, nil
}

// dial returns a connection whose handshake counts as connecting.
func (d *Dialer) dial(caller context.Context, address string, netDialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	ctx := caller
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, netDialer.Timeout)
		defer cancel()
	}
	a, begin, err := d.next(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if begin {
		go d.connect(a, address, netDialer, config)
	}
	select {
	case <-a.done:
		deadline, _ := ctx.Deadline()
		return d.newConn(caller, a, address, deadline)
	case <-ctx.Done():
		d.keep(a, address)
		return nil, fmt.Errorf("connecting to %s: %w", address, ctx.Err())
	}
}

// next returns a pending attempt, or a new one to begin, if the schedule allows one.
func (d *Dialer) next(address string) (a *attempt, begin bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, s := time.Now(), d.state(address)
	switch {
	case d.ctx.Err() != nil:
		return nil, false, errClosed
	case now.Sub(s.unresponsive) < unresponsiveGap:
		return nil, false, errUnresponsive
	case len(s.pending) > 0:
		a, s.pending = s.pending[0], s.pending[1:]
		return a, false, nil
	case s.nextDial.Sub(now) > (dialBurst-1)*dialGap && s.lastErr != nil:
		return nil, false, fmt.Errorf("%w: %w", errTooOften, s.lastErr)
	case s.nextDial.Sub(now) > (dialBurst-1)*dialGap:
		return nil, false, errTooOften
	case s.nextDial.Before(now):
		s.nextDial = now
	}
	s.nextDial = s.nextDial.Add(dialGap)
	return &attempt{done: make(chan struct{})}, true, nil
}

// state returns the state of an address; the lock is held.
func (d *Dialer) state(address string) *addressState {
	s := d.addresses[address]
	if s == nil {
		s = &addressState{}
		d.addresses[address] = s
	}
	return s
}

func (d *Dialer) connect(a *attempt, address string, netDialer *net.Dialer, config *tls.Config) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	netDialer = &net.Dialer{KeepAlive: netDialer.KeepAlive} // without its timeout
	if config == nil {
		a.conn, a.err = netDialer.DialContext(ctx, d.network, address)
		return
	}
	overTLS := tls.Dialer{NetDialer: netDialer, Config: config}
	a.conn, a.err = overTLS.DialContext(ctx, d.network, address)
}

// newConn returns the connection of an attempt, ready for the handshake of the client.
func (d *Dialer) newConn(caller context.Context, a *attempt, address string, deadline time.Time) (net.Conn, error) {
	if a.err != nil {
		d.record(address, a.err)
		return nil, notSent(a.err)
	}
	if d.lost.Swap(false) && d.OnReplaced != nil {
		d.OnReplaced()
	}
	return newConn(caller, d, a.conn, address, deadline), nil
}

func notSent(err error) error { return fmt.Errorf("%w: %w", ErrNotSent, err) }

// record remembers whether a connection succeeded, or why it failed.
func (d *Dialer) record(address string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state(address)
	s.lastErr = err
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.unresponsive = time.Now()
	}
}

// recordClosed remembers when a connection that is closed now was last written to.
func (d *Dialer) recordClosed(lastWrite int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastLostWrite = max(d.lastLostWrite, lastWrite)
}

// LostWriteSince reports whether a connection has been closed to which a command was
// written since t. If not, no command sent since t has lost its reply.
func (d *Dialer) LostWriteSince(t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lastLostWrite >= d.elapsed(t)
}

func (d *Dialer) elapsed(t time.Time) int64 { return int64(t.Sub(d.start)) }

// keep leaves an attempt to the next caller, for twice the timeout.
func (d *Dialer) keep(a *attempt, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		go a.discard()
		return
	}
	s := d.state(address)
	s.pending = append(s.pending, a)
	time.AfterFunc(2*d.timeout, func() { d.expire(a, address) })
}

// expire discards an attempt that is still pending.
func (d *Dialer) expire(a *attempt, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state(address)
	if i := slices.Index(s.pending, a); i >= 0 {
		s.pending = slices.Delete(s.pending, i, i+1)
		go a.discard()
	}
}

func (a *attempt) discard() {
	if <-a.done; a.conn != nil {
		_ = a.conn.Close()
	}
}

// Close discards pending attempts, and makes Dial fail. Connections that were returned
// stay open.
func (d *Dialer) Close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.addresses {
		for _, a := range s.pending {
			go a.discard()
		}
		s.pending = nil
	}
}
