// Package httpserver is the HTTP server of the HTTP and admin APIs: time limits for
// slow clients, a shutdown that answers what was sent, and shared responses.
package httpserver

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// maxHeaderBytes limits the request line and headers of a request.
const maxHeaderBytes = 16 << 10

// Options configure a [Server].
type Options struct {
	// Linger is how long a shutdown keeps answering on open connections.
	// Default: [connlimit.LingerTime].
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
// send a request or to receive its response, and those that are idle for a minute.
type Server struct {
	server         http.Server
	conns          connTracker
	tick           time.Duration
	requestTimeout time.Duration // of an HTTP/2 stream
	linger         time.Duration
	closeSilent    bool
	closing        atomic.Bool
	lastRequests   atomic.Bool // responses ask clients to close their connections

	mu        sync.Mutex
	listeners []net.Listener
	stop      context.CancelFunc // of the connection tracker
}

// New returns a server of the handler.
func New(h http.Handler, o Options) *Server {
	s := &Server{linger: o.Linger, closeSilent: o.CloseSilent, tick: tick, requestTimeout: requestTicks*tick + o.HandlerTime}
	s.conns.handlerTicks = int64(o.HandlerTime / tick)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s.server = http.Server{
		Handler:        s.handler(h),
		MaxHeaderBytes: maxHeaderBytes,
		ConnContext:    s.conns.add,
		ConnState:      s.conns.setState,
		HTTP2:          &http.HTTP2Config{WriteByteTimeout: s.requestTimeout},
		ErrorLog:       newErrorLog(o.Log),
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

// register notes a listener, and starts the connection tracker with the first. It
// returns false after Shutdown.
func (s *Server) register(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.listeners = append(s.listeners, l)
	if s.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		go s.conns.run(ctx, s.tick)
	}
	return true
}

// Shutdown closes the listeners, answers the requests that connections have sent, and
// returns. When ctx ends first, it aborts them and returns ctx's error.
//
// A client may have sent a request that is not read yet, and net/http drops requests that
// it reads during its own shutdown. So Shutdown first keeps serving open connections: all
// of them for the linger time, with Connection: close in the responses, and after that
// those whose first request is still outstanding.
func (s *Server) Shutdown(ctx context.Context) error {
	stop := s.closeListeners()
	defer stop()
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

// closeListeners closes the listeners, and returns a function that stops the connection
// tracker. Responses ask for a close only after that: a client that was asked before could
// reconnect to a listener that is about to reset its queue.
func (s *Server) closeListeners() (stop context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for _, l := range s.listeners {
		_ = l.Close() // the server's own Shutdown returns the error
	}
	s.listeners = nil
	s.lastRequests.Store(true)
	if s.stop == nil {
		return func() {}
	}
	return s.stop
}

// drain waits until no connection is open. After the linger time it waits only for
// connections without a complete request, which have requestTicks from their start. The
// last wait is for requests that were just read, until their handlers have started.
func (s *Server) drain(ctx context.Context) {
	linger, cancel := context.WithTimeout(ctx, s.lingerTime(ctx))
	defer cancel()
	if waitWhile(linger, time.Millisecond, s.conns.anyOpen) {
		return
	}
	if s.closeSilent {
		s.conns.closeSilent()
	}
	_ = waitWhile(ctx, drainInterval, s.conns.anyNew)
	_ = monotime.Sleep(ctx, drainInterval)
}

func (s *Server) lingerTime(ctx context.Context) time.Duration {
	if s.linger != 0 {
		return max(s.linger, 0)
	}
	return connlimit.LingerTime(ctx)
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

// handler asks clients to close their connections during a shutdown, and limits the time
// of HTTP/2 streams.
func (s *Server) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.lastRequests.Load() {
			w.Header().Set("Connection", "close")
		}
		if r.ProtoMajor > 1 {
			r = limitStream(w, r, s.requestTimeout)
		}
		h.ServeHTTP(w, r)
	})
}

// limitStream gives an HTTP/2 stream the time limits of an HTTP/1 connection: one for
// sending the request, one for receiving the response. HTTP/2 flow control lets a client
// refuse to receive anything.
func limitStream(w http.ResponseWriter, r *http.Request, timeout time.Duration) *http.Request {
	s := &stream{http.NewResponseController(w), timeout}
	_ = s.SetReadDeadline(time.Now().Add(timeout)) // streams support it
	s.setDeadline()
	return r.WithContext(context.WithValue(r.Context(), streamKey{}, s))
}

// A stream is one request of an HTTP/2 connection.
type stream struct {
	*http.ResponseController
	timeout time.Duration
}

type streamKey struct{}

// setDeadline sets the write deadline from now. It covers both limits, so that a request
// that took too long to arrive can still be answered.
func (s *stream) setDeadline() { _ = s.SetWriteDeadline(time.Now().Add(2 * s.timeout)) }

func (s *stream) clearDeadline() { _ = s.SetWriteDeadline(time.Time{}) }
