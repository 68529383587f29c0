// Package httpserver is what the doors that speak HTTP have in common: a server with
// limits on what comes from outside, who is asking, and how to say what is wrong
// with a request.
package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxHeaderBytes is how much a caller may send before its request has begun.
const maxHeaderBytes = 16 << 10

const defaultLinger = 250 * time.Millisecond

// Options configure a Door.
type Options struct {
	// Linger is for how long, on shutdown, open connections are still
	// answered. Default: 250 ms. Negative: not at all.
	Linger time.Duration

	// Log is told what an operator must know. Default: nobody is.
	Log *slog.Logger
}

// A Server serves a handler. Whoever takes more than five seconds to send a request
// or to receive the answer is cut off, and so is whoever does nothing for a minute.
type Server struct {
	server  http.Server
	conns   connTracker
	tick    time.Duration
	linger  time.Duration
	closing atomic.Bool

	mu        sync.Mutex
	listeners []net.Listener
	stop      context.CancelFunc // of watching visitors
}

// New returns a door to the handler.
func New(h http.Handler, o Options) *Server {
	s := &Server{linger: o.Linger, tick: tick}
	if s.linger == 0 {
		s.linger = defaultLinger
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s.server = http.Server{
		Handler:        s.handler(h),
		MaxHeaderBytes: maxHeaderBytes,
		ConnContext:    s.conns.add,
		ConnState:      s.conns.setState,
		HTTP2:          &http.HTTP2Config{WriteByteTimeout: requestTicks * tick},
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	return s
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	l = &listener{Listener: l}
	if !s.register(l) {
		return l.Close()
	}
	err := s.server.Serve(l)
	if s.closing.Load() {
		return nil // however the listener put it
	}
	return err
}

// register notes a listener, and has visitors watched from the first on. It returns
// false if the door is closing.
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

// Shutdown stops accepting, finishes what is in flight and returns. What is not
// finished when ctx ends is cut off.
//
// A caller that keeps its connection may have sent a request that nobody has read
// yet. So connections stay open for a moment, and the next answer on each tells
// the caller to close it.
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

// A listener can be closed twice: by the door, and then by the server that does not
// know.
type listener struct {
	net.Listener
	once sync.Once
	err  error
}

func (l *listener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

// closeListeners closes the listeners, and returns what is left to stop.
func (s *Server) closeListeners() (stop context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing.Store(true)
	for _, l := range s.listeners {
		_ = l.Close() // Shutdown of the server says what came of it
	}
	s.listeners = nil
	if s.stop == nil {
		return func() {}
	}
	return s.stop
}

// drain waits until no connection is open, or for as long as is allowed.
func (s *Server) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(s.linger, 0))
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for s.conns.open.Load() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// handler asks callers to close their connections once the door is closing, and
// sees to those by HTTP/2, where a connection is never done.
func (s *Server) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.closing.Load() {
			w.Header().Set("Connection", "close")
		}
		if r.ProtoMajor > 1 {
			r = limitStream(w, r)
		}
		h.ServeHTTP(w, r)
	})
}

// limitStream gives one of many requests on a connection the time that a connection
// with one would have: to send it, and to receive the answer. A client of HTTP/2 says
// how much it wants to receive, and may never want any.
func limitStream(w http.ResponseWriter, r *http.Request) *http.Request {
	s := &stream{http.NewResponseController(w)}
	_ = s.SetReadDeadline(time.Now().Add(requestTicks * tick)) // which a stream has
	s.setDeadline()
	return r.WithContext(context.WithValue(r.Context(), streamKey{}, s))
}

// A stream is one of many requests on a connection.
type stream struct{ *http.ResponseController }

type streamKey struct{}

// setDeadline gives a stream the time that there is for a request and for its answer, from
// now on. It is both, so that whoever was too slow with the one can still be told.
func (s *stream) setDeadline() { _ = s.SetWriteDeadline(time.Now().Add(2 * requestTicks * tick)) }

// clearDeadline gives it all the time there is.
func (s *stream) clearDeadline() { _ = s.SetWriteDeadline(time.Time{}) }
