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
	"time"
)

// ErrNotSent means that a command certainly did not reach a server.
var ErrNotSent = errors.New("not sent")

var (
	errClosed       = errors.New("the store is closed")
	errUnresponsive = fmt.Errorf("%w: it did not answer when it was last connected to", ErrNotSent)
	errTooOften     = fmt.Errorf("%w: it was connected to too often just now", ErrNotSent)
)

// A Dialer opens connections. The caller that finds none opens one within its own
// deadline, which may be shorter than connecting takes; all others wait for it. So
// an attempt whose caller has left goes on in the background, and the next caller
// gets its connection.
//
// However many callers need a connection, and for whatever reason, a server is not
// connected to more often than dialGap allows.
type Dialer struct {
	network string // "tcp" or "unix"
	timeout time.Duration
	ctx     context.Context // of attempts; ends on Close
	cancel  context.CancelFunc
	start   time.Time

	mu            sync.Mutex
	addresses     map[string]*addressState
	lastLostWrite int64 // on a connection that is closed now, in nanoseconds since start
}

// An addressState is what the dialer remembers of an address.
type addressState struct {
	pendingDials []*dial   // attempts whose caller has left
	nextDial     time.Time // by a schedule of one dial every dialGap
	unresponsive time.Time // when a handshake last timed out
	lastErr      error     // of the last connection; nil if it succeeded
}

const (
	// dialGap is the time between two connections to one address, after a burst
	// of dialBurst.
	dialGap   = 20 * time.Millisecond
	dialBurst = 10

	// unresponsiveGap is how long an address is left alone after a handshake
	// timed out. Setting up a connection costs the client more than all the calls
	// that would wait for it.
	unresponsiveGap = 100 * time.Millisecond
)

// A dial is a connection being opened.
type dial struct {
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

// Dial returns a connection, possibly one that was begun for another caller.
func (d *Dialer) Dial(ctx context.Context, address string, by *net.Dialer, secure *tls.Config) (net.Conn, error) {
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
	case <-a.done:
		return d.handshake(ctx, a, address)
	case <-ctx.Done():
		d.keep(a, address)
		return nil, fmt.Errorf("connecting to %s: %w", address, ctx.Err())
	}
}

// next returns a pending dial, or a new one to begin, if the schedule allows one.
func (d *Dialer) next(address string) (a *dial, begin bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, s := time.Now(), d.state(address)
	switch {
	case d.ctx.Err() != nil:
		return nil, false, errClosed
	case now.Sub(s.unresponsive) < unresponsiveGap:
		return nil, false, errUnresponsive
	case len(s.pendingDials) > 0:
		a, s.pendingDials = s.pendingDials[0], s.pendingDials[1:]
		return a, false, nil
	case s.nextDial.Sub(now) > (dialBurst-1)*dialGap && s.lastErr != nil:
		return nil, false, fmt.Errorf("%w: %w", errTooOften, s.lastErr)
	case s.nextDial.Sub(now) > (dialBurst-1)*dialGap:
		return nil, false, errTooOften
	case s.nextDial.Before(now):
		s.nextDial = now
	}
	s.nextDial = s.nextDial.Add(dialGap)
	return &dial{done: make(chan struct{})}, true, nil
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

func (d *Dialer) connect(a *dial, address string, by *net.Dialer, secure *tls.Config) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	by = &net.Dialer{KeepAlive: by.KeepAlive}
	if secure == nil {
		a.conn, a.err = by.DialContext(ctx, d.network, address)
		return
	}
	over := tls.Dialer{NetDialer: by, Config: secure}
	a.conn, a.err = over.DialContext(ctx, d.network, address)
}

// handshake returns the connection of a dial, ready for its first command.
func (d *Dialer) handshake(ctx context.Context, a *dial, address string) (net.Conn, error) {
	if a.err != nil {
		d.record(address, a.err)
		return nil, notSent(a.err)
	}
	deadline, _ := ctx.Deadline()
	return newConn(d, a.conn, address, deadline), nil
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

// keep leaves a dial to the next caller, for twice the timeout.
func (d *Dialer) keep(a *dial, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		go a.discard()
		return
	}
	s := d.state(address)
	s.pendingDials = append(s.pendingDials, a)
	time.AfterFunc(2*d.timeout, func() { d.expire(a, address) })
}

// expire discards a dial that is still pending.
func (d *Dialer) expire(a *dial, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state(address)
	if i := slices.Index(s.pendingDials, a); i >= 0 {
		s.pendingDials = slices.Delete(s.pendingDials, i, i+1)
		go a.discard()
	}
}

func (a *dial) discard() {
	if <-a.done; a.conn != nil {
		_ = a.conn.Close()
	}
}

// Close discards pending dials, and makes further ones fail. Connections that were
// returned stay open.
func (d *Dialer) Close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.addresses {
		for _, a := range s.pendingDials {
			go a.discard()
		}
		s.pendingDials = nil
	}
}
