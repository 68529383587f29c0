// Package respapi serves Redis clients over RESP2 and RESP3. It answers CL.THROTTLE as
// redis-cell does, offers every kind of take as PENSTOCK.TAKE, and supports the other
// commands that clients and operators send.
//
// A command takes this path: conn.go reads bytes and runs the commands in them,
// parser.go splits the bytes into arguments, commands.go finds the command,
// throttle.go parses a CL.THROTTLE and encodes the reply to it, the take*.go files do so
// for PENSTOCK.TAKE, pipeline.go sends both to the store in batches, and reply.go encodes
// everything else. The commands_*.go files hold the other commands.
package respapi

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// Options configure a [Server]. The zero value has all defaults.
type Options struct {
	// RequireAuth rejects every command before AUTH with the engine's token.
	// Default: only refunds and resets need AUTH, if the engine has a token.
	RequireAuth bool

	// Listener is where INFO reads connection limits and rejections from.
	// Default: INFO reports zeros.
	Listener *connlimit.Listener

	// ObserveLatency is called with the duration of each pipeline of commands that asks
	// for a decision. It is called concurrently, and must not block. Default: none.
	ObserveLatency func(time.Duration)

	// Requests logs invalid commands and denials. Default: none are.
	Requests *requestlog.Log

	// Audit records refunds and resets, done or refused. Default: none are.
	Audit *audit.Log
}

// A Server serves Redis clients. It is safe for concurrent use.
type Server struct {
	engine        *engine.Engine
	options       Options
	transientKeys bool                // whether the store is a penstock.TransientKeyStore
	keyCounter    keyCounter          // the store, for INFO; nil if it cannot count its keys
	limiters      limiterCache        // of CL.THROTTLE
	keyLimiters   []*penstock.Limiter // to peek at and reset a key of CL.THROTTLE under any limit
	now           func() time.Time
	started       time.Time

	ctx    context.Context // of all calls to the store; ends when Shutdown does
	cancel context.CancelFunc

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	closing   bool      // Shutdown was called
	lingerEnd time.Time // until then Shutdown waits for further commands; set with closing
	reaping   sync.Once
	accepting sync.WaitGroup // calls of Serve
	openConns sync.WaitGroup

	lastID, accepted, commands atomic.Int64

	timeouts   timeouts
	closeWaits closeWaits
	lingerTime func(context.Context) time.Duration // connlimit.LingerTime, unless a test changes it
}

// A keyCounter is a store that knows its number of keys, such as penstock.Memory.
type keyCounter interface {
	Stats() penstock.MemoryStats
}

// New returns a server for an engine. Nil options are all defaults.
func New(e *engine.Engine, o *Options) (*Server, error) {
	if e == nil {
		return nil, errors.New("respapi: no engine")
	}
	s := &Server{
		engine:    e,
		options:   *cmp.Or(o, &Options{}),
		limiters:  limiterCache{engine: e},
		now:       time.Now,
		started:   time.Now(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},

		timeouts:   defaultTimeouts,
		closeWaits: defaultCloseWaits,
		lingerTime: connlimit.LingerTime,
	}
	_, s.transientKeys = e.Store().(penstock.TransientKeyStore)
	s.keyCounter, _ = e.Store().(keyCounter)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	s.keyLimiters, err = newKeyLimiters(e.Store())
	return s, err
}

// Serve accepts connections until Shutdown, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if !s.addListener(l) {
		return l.Close()
	}
	defer s.removeListener(l)
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			s.startConn(nc)
		case s.isClosing():
			return nil // the listener was closed by Shutdown
		default:
			return err
		}
	}
}

// addListener registers a listener, unless Shutdown was called.
func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.listeners[l] = struct{}{}
	s.accepting.Add(1)
	s.reaping.Do(func() { go s.reap() })
	return true
}

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	_ = l.Close() // it may be closed already
	s.accepting.Done()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// startConn serves a connection in a new goroutine. During Shutdown it still does: what
// the client has sent is answered.
func (s *Server) startConn(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.accepted.Add(1)
	s.openConns.Go(c.serve)
}

// markEstablished marks a connection whose TLS handshake is done. Shutdown lets
// handshakes finish, since the client's first command follows them.
func (s *Server) markEstablished(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.established = true
	if s.closing {
		c.interruptRead()
	}
}

// removeConn is called once by each connection that was started.
func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// WriteMaxClients writes Redis's error for a connection over the limit. It takes at most ten
// seconds, and usually no time at all, since the send buffer of a new connection is empty. A
// shorter deadline could pass on a busy machine before the write is tried.
func WriteMaxClients(nc net.Conn) {
	_ = nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, _ = nc.Write([]byte("-ERR max number of clients reached\r\n"))
}

// Shutdown stops accepting, answers the commands that connections have sent, closes
// the connections and returns. When ctx ends first, it closes them without waiting, and
// returns ctx's error, unless there were none.
//
// A client may be about to send a command on an open connection. So Shutdown waits for
// [connlimit.LingerTime], and a connection ends with the replies to its next commands that
// name a key. Commands that set up or check a connection do not end it, since clients send
// another right after them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.beginShutdown(ctx)
	done := make(chan struct{})
	go func() {
		s.accepting.Wait() // only then no connection is added
		s.openConns.Wait()
		close(done)
	}()
	select {
	case <-done:
		s.cancel()
		return nil
	case <-ctx.Done():
		if s.closeConns() == 0 {
			return nil
		}
		return ctx.Err()
	}
}

// beginShutdown closes the listeners, and then interrupts connections that wait for a
// command. It does not hold the lock while it closes listeners, since Close may wait until
// Serve has accepted the last connections.
func (s *Server) beginShutdown(ctx context.Context) {
	for _, l := range s.setClosing(s.lingerTime(ctx)) {
		_ = l.Close() // Serve sees the error
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.established {
			c.interruptRead()
		}
	}
}

// setClosing returns the listeners to close.
func (s *Server) setClosing(linger time.Duration) []net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil
	}
	s.closing, s.lingerEnd = true, time.Now().Add(linger)
	return slices.Collect(maps.Keys(s.listeners))
}

// closeConns closes all connections without waiting for them, and returns how many there were.
func (s *Server) closeConns() int {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.net.Close()
	}
	return len(s.conns)
}
