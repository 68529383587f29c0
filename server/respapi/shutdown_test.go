//go:build unix

package respapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// A blockingStore signals each call, and decides after release is closed.
type blockingStore struct {
	penstock.Store
	called  chan struct{}
	release chan struct{}
}

func newBlockingStore() *blockingStore {
	return &blockingStore{Store: newFakeClock().memory(), called: make(chan struct{}, 100), release: make(chan struct{})}
}

func (s *blockingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.called <- struct{}{}
	select {
	case <-s.release:
		return s.Store.Take(ctx, r)
	case <-ctx.Done():
		return penstock.Decision{}, ctx.Err()
	}
}

// There is no time to wait, so only what has arrived decides.
func TestShutdownAnswersReceivedCommands(t *testing.T) {
	t.Parallel()
	store := newBlockingStore()
	s := newServer(t, store, nil, nil, nil)
	s.closeWaits.finalRead, s.lingerTime = 0, func(context.Context) time.Duration { return 0 }
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t))) // no other program listens there later
	serve(t, s, must(net.Listen("tcp", addr)))
	idle := dial(t, addr)
	idle.want("+PONG", "PING")
	waitForConns(t, s, 1)
	active := dial(t, addr)
	take := encode("CL.THROTTLE", "k", "15", "30", "60")
	active.send(take)
	<-store.called
	active.send(take + encode("PING"))
	waitForUnread(t, s)

	done := make(chan error)
	go func() { done <- s.Shutdown(t.Context()) }()
	if got := idle.read(); got != "closed" {
		t.Errorf("the idle client got %s, want closed", got)
	}
	waitForRefusal(t, addr)
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned while a command was being decided: %v", err)
	default:
	}
	close(store.release)
	for _, want := range []string{"*5 :0 :16 :15 :-1 :2", "*5 :0 :16 :14 :-1 :4", "+PONG", "closed"} {
		if got := active.read(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// waitForRefusal waits until new connections are refused. A process that another test forks
// has the listener's socket open for a moment longer, until it runs its program.
func waitForRefusal(t *testing.T, addr string) {
	t.Helper()
	waitFor(t, func() bool {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			_ = nc.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// waitForUnread waits until a connection has received bytes that the server has not read.
func waitForUnread(t *testing.T, s *Server) {
	t.Helper()
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			if connlimit.HasUnread(c.net) {
				return true
			}
		}
		return false
	})
}

// Each write of a TLS client is a record, and a read returns one record.
func TestShutdownAnswersReceivedTLSRecords(t *testing.T) {
	store := newBlockingStore()
	s := newServer(t, store, nil, nil, nil)
	s.closeWaits.finalRead, s.lingerTime = 0, func(context.Context) time.Duration { return 0 }
	l := newTestListener(t)
	serve(t, s, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{newCertificate(t)}}))
	c := newClient(t, must(tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})))
	c.send(encode("CL.THROTTLE", "k", "15", "30", "60"))
	<-store.called
	for range 3 {
		c.send(encode("PING"))
	}
	waitForUnread(t, s)

	done := make(chan error)
	go func() { done <- s.Shutdown(t.Context()) }()
	waitFor(t, s.isClosing)
	close(store.release)
	for _, want := range []string{"*5 :0 :16 :15 :-1 :2", "+PONG", "+PONG", "+PONG", "closed"} {
		if got := c.read(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownEndsDespiteClientThatKeepsSending(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	c := dial(t, startServer(t, s))
	c.want("+PONG", "PING")
	var client sync.WaitGroup
	client.Go(func() {
		for pipeline := strings.Repeat(encode("PING"), 10_000); ; {
			if _, err := io.WriteString(c.conn, pipeline); err != nil {
				return
			}
		}
	})
	client.Go(func() { _, _ = io.Copy(io.Discard, c.conn) })
	waitFor(t, func() bool { return s.commands.Load() > 10_000 })
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	client.Wait()
}

// The bytes after QUIT fill the read buffer and are never parsed.
func TestShutdownEndsAfterQuit(t *testing.T) {
	store := newBlockingStore()
	s := newServer(t, store, nil, nil, nil)
	c := dial(t, startServer(t, s))
	c.send(encode("CL.THROTTLE", "k", "15", "30", "60"))
	<-store.called
	go write(c.conn, encode("QUIT")+strings.Repeat("x", 4*maxReadBuffer))
	waitForUnread(t, s)

	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	go func() { done <- s.Shutdown(ctx) }()
	waitFor(t, s.isClosing)
	close(store.release)
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// A process that was suspended for longer than its grace has cut off no connection if there is none.
func TestShutdownAfterDeadlineWithoutConnections(t *testing.T) {
	for range 100 { // what is ready first differs
		s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatalf("Shutdown: %v", err)
		}
	}
}

func TestShutdownDeadlineClosesConnections(t *testing.T) {
	store := newBlockingStore() // never released
	s := newServer(t, store, nil, nil, nil)
	c := dial(t, startServer(t, s))
	c.send(encode("CL.THROTTLE", "k", "15", "30", "60"))
	<-store.called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want context.Canceled", err)
	}
	if _, err := io.Copy(io.Discard, c.conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the client got %v", err)
	}
	s.openConns.Wait() // the call of the store was canceled
}

// Every take that was charged before the shutdown was answered.
func TestShutdownUnderLoadAnswersEveryTake(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newServer(t, newFakeClock().memory(), nil, nil, nil)
	s.closeWaits.linger = testTimeout
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	const burst = 1_000_000
	var clients sync.WaitGroup
	var granted atomic.Int64
	for i := range 8 {
		clients.Go(func() { takeUntilClosed(t, l.Addr().String(), 1+i*5, &granted) })
	}
	waitForConns(t, s, 8)
	waitFor(t, func() bool { return granted.Load() > 1000 })
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	clients.Wait()
	cached := must(s.limiters.get(throttleParams{burst - 1, 1, 60}))
	left := must(cached.limiter.Peek(t.Context(), "k"))
	if taken := burst - left.Remaining; taken != granted.Load() {
		t.Errorf("%d units were taken, but %d grants answered", taken, granted.Load())
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

// takeUntilClosed sends pipelines of n takes and counts the grants, until the server closes
// the connection.
func takeUntilClosed(t *testing.T, addr string, n int, granted *atomic.Int64) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = nc.Close() }()
	pipeline, r := strings.Repeat(encode("CL.THROTTLE", "k", "999999", "1", "60"), n), bufio.NewReader(nc)
	for {
		if _, err := io.WriteString(nc, pipeline); err != nil {
			break
		}
		if !readGrants(r, n, granted) {
			return
		}
	}
	readGrants(r, 1<<30, granted)
}

// readGrants reads up to n grants, and reports whether there were n.
func readGrants(r *bufio.Reader, n int, granted *atomic.Int64) bool {
	for range n {
		text, err := readReply(r)
		if err != nil || !strings.HasPrefix(text, "*5 :0 ") {
			return false
		}
		granted.Add(1)
	}
	return true
}

func TestServeAfterShutdownReturnsNil(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	for range 2 {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	l := newTestListener(t)
	if err := s.Serve(l); err != nil {
		t.Errorf("Serve: got %v, want nil", err)
	}
	if _, err := l.Listener.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

// Commands that were sent before Shutdown are answered even if their connection was not
// accepted yet.
func TestShutdownAnswersQueuedConnections(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	l := &queueListener{testListener: newTestListener(t), queue: make(chan net.Conn, 10), closed: make(chan struct{})}
	serve(t, s, l)
	var clients []*client
	for range cap(l.queue) {
		c := l.dial(t)
		c.send(encode("CL.THROTTLE", "k", "15", "30", "60") + encode("PING"))
		clients = append(clients, c)
		nc, err := l.testListener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.queue <- nc
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	for i, c := range clients {
		if got := c.read(); !strings.HasPrefix(got, "*5 :0 :16 ") {
			t.Errorf("client %d: got %s, want a grant", i, got)
		}
		for _, want := range []string{"+PONG", "closed"} {
			if got := c.read(); got != want {
				t.Errorf("client %d: got %s, want %s", i, got, want)
			}
		}
	}
}
