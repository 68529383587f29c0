package respapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// redisServer is a Redis with a clock that the tests set. Tests share it, each with its own
// key prefix.
var redisServer *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) { redisServer = shared }))
}

// testTimeout bounds how long a test waits, long enough for a busy machine.
const testTimeout = time.Minute

// A fakeClock stands still until a test sets it.
type fakeClock struct{ nanos atomic.Int64 }

func newFakeClock() *fakeClock {
	c := &fakeClock{}
	c.set(time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC))
	return c
}

func (c *fakeClock) now() time.Time { return time.Unix(0, c.nanos.Load()).UTC() }

func (c *fakeClock) set(t time.Time) { c.nanos.Store(t.UnixNano()) }

func (c *fakeClock) add(d time.Duration) { c.nanos.Add(int64(d)) }

func (c *fakeClock) memory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: c.now, MaxKeys: 1000})
}

var prefixes atomic.Int64

// newRedisStore returns an empty store on a Redis server.
func newRedisStore(t testing.TB, server *redistest.Server) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{
		Prefix: fmt.Sprintf("r%d-", prefixes.Add(1)), Timeout: testTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// noCeilings are above every valid limit, for tests that compare with redis-cell.
var noCeilings = requestlimits.Options{MaxPeriod: math.MaxInt64, MaxKeyBytes: math.MaxInt64}

// newServerWithClock returns a server with an empty store, both with a fake clock.
func newServerWithClock(c *fakeClock) *Server {
	s := must(New(engine.New(c.memory(), &engine.Options{Token: "secret", RequestLimits: noCeilings}), nil))
	s.now, s.started = c.now, c.now()
	return s
}

// newFakeClient returns a connection without a goroutine. Its do method executes commands.
func newFakeClient(s *Server) *conn { return newConn(s, &fakeConn{}) }

// do executes a command and returns the reply.
func (c *conn) do(t interface{ Fatalf(string, ...any) }, words ...string) string {
	c.in = []byte(encode(words...))
	c.start, c.end = 0, len(c.in)
	c.executeBuffered()
	text, err := readReply(bufio.NewReader(bytes.NewReader(c.out.buf)))
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	c.out.buf = c.out.buf[:0]
	return text
}

// A fakeConn is a network connection that reads given pieces and records writes.
type fakeConn struct {
	pieces  [][]byte
	sent    bytes.Buffer
	largest int // bytes sent at once
	closed  bool
}

func (c *fakeConn) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

func (c *fakeConn) Write(p []byte) (int, error) {
	c.largest = max(c.largest, len(p))
	return c.sent.Write(p)
}

func (c *fakeConn) Close() error { c.closed = true; return nil }

func (c *fakeConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6380} }

func (c *fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711} }

func (c *fakeConn) SetDeadline(time.Time) error { return nil }

func (c *fakeConn) SetReadDeadline(time.Time) error { return nil }

func (c *fakeConn) SetWriteDeadline(time.Time) error { return nil }

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// waitForConns waits until want connections are open.
func waitForConns(t testing.TB, s *Server, want int) {
	t.Helper()
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == want
	})
}

// waitFor waits until a condition is true.
func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	timeout, tick := time.After(testTimeout), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("the condition did not become true")
		}
	}
}

func write(nc net.Conn, text string) { _, _ = io.WriteString(nc, text) }

// newServer returns a server for a store, with a fake clock unless it is nil.
func newServer(t testing.TB, store penstock.Store, c *fakeClock, eo *engine.Options, o *Options) *Server {
	t.Helper()
	s, err := New(engine.New(store, eo), o)
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		s.now, s.started = c.now, c.now()
	}
	return s
}

// startServer serves on a free port until the test ends, and returns the address.
func startServer(t testing.TB, s *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s, l)
	return l.Addr().String()
}

// serve serves on a listener until the test ends. The server accepts from it when serve returns:
// one that is shut down before would only close it.
func serve(t testing.TB, s *Server, l net.Listener) {
	t.Helper()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Errorf("Serve: %v, want nil after Shutdown", err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		serving.Wait()
	})
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ok := s.listeners[l]
		return ok
	})
}

// A client sends commands and reads replies.
type client struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, nc)
}

func newClient(t testing.TB, nc net.Conn) *client {
	t.Helper()
	if err := nc.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return &client{t: t, conn: nc, r: bufio.NewReader(nc)}
}

// do sends a command and returns the reply.
func (c *client) do(words ...string) string {
	c.t.Helper()
	c.send(encode(words...))
	return c.read()
}

func (c *client) send(raw string) {
	c.t.Helper()
	_ = c.conn.SetDeadline(time.Now().Add(testTimeout)) // of each command, not of the test
	if _, err := io.WriteString(c.conn, raw); err != nil {
		c.t.Fatalf("sending %.80q: %v", raw, err)
	}
}

// read returns the next reply, or "closed".
func (c *client) read() string {
	c.t.Helper()
	text, err := readReply(c.r)
	if err != nil {
		c.t.Fatalf("waiting for a reply: %v", err)
	}
	return text
}

// want fails the test unless a command has that reply.
func (c *client) want(want string, words ...string) {
	c.t.Helper()
	if got := c.do(words...); got != want {
		c.t.Fatalf("%q: got %s, want %s", words, got, want)
	}
}

// encode returns a command as clients send it.
func encode(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

// readReply reads a reply and returns it in one line: aggregates with their header before
// their elements, and bulk strings in quotes. At EOF it returns "closed".
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err == io.EOF && line == "" {
		return "closed", nil
	}
	if err != nil {
		return "", fmt.Errorf("after %q: %w", line, err)
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", fmt.Errorf("an empty line")
	}
	switch line[0] {
	case '$':
		return readBulkReply(r, line)
	case '*', '%':
		return readAggregateReply(r, line)
	}
	return line, nil
}

func readBulkReply(r *bufio.Reader, line string) (string, error) {
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return line, err
	}
	text := make([]byte, n+2)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", err
	}
	if string(text[n:]) != "\r\n" {
		return "", fmt.Errorf("%q: want CRLF after %d bytes", text, n)
	}
	return strconv.Quote(string(text[:n])), nil
}

func readAggregateReply(r *bufio.Reader, line string) (string, error) {
	n, err := strconv.Atoi(line[1:])
	if err != nil {
		return "", err
	}
	if line[0] == '%' {
		n *= 2
	}
	parts := []string{line}
	for range n {
		part, err := readReply(r)
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " "), nil
}

// doAll executes a pipeline of commands and returns the replies.
func (c *conn) doAll(t testing.TB, commands ...string) []string {
	t.Helper()
	c.in = []byte(strings.Join(commands, ""))
	c.start, c.end = 0, len(c.in)
	c.executeBuffered()
	nc := c.net.(*fakeConn)
	nc.sent.Write(c.out.buf) // after what was sent before the end of the pipeline
	c.out.buf = c.out.buf[:0]
	var all []string
	for r := takeSent(nc); ; {
		text, err := readReply(r)
		if err != nil {
			t.Fatal(err)
		}
		if text == "closed" {
			return all
		}
		all = append(all, text)
	}
}

// takeSent returns the bytes sent since the last call.
func takeSent(nc *fakeConn) *bufio.Reader {
	text := bytes.Clone(nc.sent.Bytes())
	nc.sent.Reset()
	return bufio.NewReader(bytes.NewReader(text))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
