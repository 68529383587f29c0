// Package httpserver is the HTTP server of the HTTP and admin APIs: time limits for
// slow clients, a shutdown that answers what was sent, and shared responses.
package httpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// maxHeaderBytes limits the request line and headers of a request.
const maxHeaderBytes = 16 << 10

const (
	requestTime = 5 * time.Second // to send a request, or to receive its response
	idleTime    = time.Minute     // between requests
)

// By default a shutdown lingers for a part of the time that it has, and at least minLinger.
const (
	lingerPart = 40
	minLinger  = 250 * time.Millisecond
)

// Options configure a [Server].
type Options struct {
	// Linger is how long a shutdown keeps answering on open connections.
	// Default: a fortieth of the time until its context ends, at least 250 ms.
	// Negative: not at all.
	Linger time.Duration

	// CloseSilent lets a shutdown close connections that have sent nothing until the
	// end of the linger time; a request that arrives at that moment is lost. Browsers
	// keep such connections in reserve. Default: a shutdown waits for their requests,
	// at most five seconds.
	CloseSilent bool

	// HandlerTime is how long the handler may take. Clients have that much longer to
	// receive a response. Default: no longer.
	HandlerTime time.Duration

	// Log receives errors of connections. Default: none.
	Log *slog.Logger
}

// A Server serves a handler. It closes connections that take more than five seconds to
// send a request, or ten until they have its response too, and those that are idle for a
// minute.
type Server struct {
	server       http.Server
	linger       time.Duration
	closeSilent  bool
	closing      atomic.Bool
	lastRequests atomic.Bool // responses ask clients to close their connections

	open   atomic.Int64 // connections
	unsent sync.Map     // connections that have not sent a complete request yet

	mu        sync.Mutex
	listeners []net.Listener
}

// New returns a server of the handler.
func New(h http.Handler, o Options) *Server {
	s := &Server{linger: o.Linger, closeSilent: o.CloseSilent}
	timeout := requestTime + o.HandlerTime
	s.server = http.Server{
		Handler:           s.handler(h),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: requestTime,
		ReadTimeout:       timeout,     // ends the context of a handler, too
		WriteTimeout:      2 * timeout, // so that a request that took too long to arrive can still be answered
		IdleTimeout:       idleTime,
		ConnState:         s.track,
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: timeout},
		ErrorLog:          newErrorLog(cmp.Or(o.Log, slog.New(slog.DiscardHandler))),
	}
	return s
}

// Serve accepts connections until Shutdown, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	l = &onceListener{Listener: l}
	if !s.register(l) {
		return l.Close()
	}
	err := s.server.Serve(l)
	if s.closing.Load() {
		return nil // the error is that of the closed listener
	}
	return err
}

// register notes a listener. It returns false after Shutdown.
func (s *Server) register(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.listeners = append(s.listeners, l)
	return true
}

// track is the server's ConnState hook.
func (s *Server) track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.open.Add(1)
		s.unsent.Store(conn, nil)
		return
	case http.StateClosed, http.StateHijacked:
		s.open.Add(-1)
	}
	s.unsent.Delete(conn)
}

// Shutdown closes the listeners, answers the requests that connections have sent, and
// returns. When ctx ends first, it aborts them and returns ctx's error.
//
// A client may have sent a request that is not read yet, and net/http drops requests that
// it reads during its own shutdown. So Shutdown first keeps serving open connections: all
// of them for the linger time, with Connection: close in the responses, and after that
// those whose first request is still outstanding.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closeListeners()
	s.drain(ctx)
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.server.Close())
	}
	return err
}

// A onceListener can be closed twice: by Shutdown, and then by net/http.
type onceListener struct {
	net.Listener
	once sync.Once
	err  error
}

func (l *onceListener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

// closeListeners closes the listeners. Responses ask for a close only after that: a client
// that was asked before could reconnect to a listener that is about to reset its queue.
func (s *Server) closeListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for _, l := range s.listeners {
		_ = l.Close() // the server's own Shutdown returns the error
	}
	s.lastRequests.Store(true)
}

// drain waits until no connection is open. After the linger time it waits only for
// connections without a complete request, which have requestTime from their start. The
// last wait is for requests that were just read, until their handlers have started.
func (s *Server) drain(ctx context.Context) {
	linger, cancel := context.WithTimeout(ctx, s.lingerTime(ctx))
	defer cancel()
	if waitWhile(linger, time.Millisecond, s.anyOpen) {
		return
	}
	if s.closeSilent {
		s.closeSilentConns()
	}
	_ = waitWhile(ctx, drainInterval, s.anyUnsent)
	_ = monotime.Sleep(ctx, drainInterval)
}

func (s *Server) anyOpen() bool { return s.open.Load() > 0 }

// anyUnsent reports whether a connection has not sent a complete request yet.
func (s *Server) anyUnsent() bool {
	for range s.unsent.Range {
		return true
	}
	return false
}

// closeSilentConns closes the connections that are known to have sent nothing: those of package
// connlimit, which count bytes. Closing the connection below TLS does not block, as the close of
// TLS does, which sends an alert first.
func (s *Server) closeSilentConns() {
	for conn := range s.unsent.Range {
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if c, ok := conn.(interface{ BytesRead() int64 }); ok && c.BytesRead() == 0 {
			_ = conn.(net.Conn).Close() // net/http then reports StateClosed
		}
	}
}

func (s *Server) lingerTime(ctx context.Context) time.Duration {
	if s.linger != 0 {
		return max(s.linger, 0)
	}
	end, ok := ctx.Deadline()
	if !ok {
		return minLinger
	}
	return max(time.Until(end)/lingerPart, minLinger)
}

const drainInterval = 10 * time.Millisecond

// waitWhile waits until the condition is false. It returns false if ctx ends before.
func waitWhile(ctx context.Context, interval time.Duration, condition func() bool) bool {
	for condition() {
		if monotime.Sleep(ctx, interval) != nil {
			return false
		}
	}
	return true
}

// handler asks clients to close their connections during a shutdown.
func (s *Server) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.lastRequests.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// SuspendTimeout exempts a request from the time limits until resume is called: for a
// handler that delays its response on purpose.
func SuspendTimeout(w http.ResponseWriter) (resume func()) {
	c := http.NewResponseController(w) // its errors are those of tests, whose writers have no deadlines
	_ = c.SetReadDeadline(time.Time{})
	_ = c.SetWriteDeadline(time.Time{})
	return func() { _ = c.SetWriteDeadline(time.Now().Add(requestTime)) }
}
