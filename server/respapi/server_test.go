package respapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
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
)

// heldRedis is a Redis whose clock the tests hold. They share it, under prefixes of their
// own.
var heldRedis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) { heldRedis = shared }))
}

// testTimeout is how long a test waits for what is bound to happen, on a busy machine too.
const testTimeout = 20 * time.Second

// A fakeClock stands still until a test sets it.
type fakeClock struct{ nanos atomic.Int64 }

func newFakeClock() *fakeClock {
	c := &fakeClock{}
	c.set(time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC))
	return c
}

func (c *fakeClock) now() time.Time      { return time.Unix(0, c.nanos.Load()).UTC() }
func (c *fakeClock) set(t time.Time)     { c.nanos.Store(t.UnixNano()) }
func (c *fakeClock) add(d time.Duration) { c.nanos.Add(int64(d)) }

func (c *fakeClock) memory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: c.now, MaxKeys: 1000})
}

var prefixes atomic.Int64

// newRedisStore returns an empty store on a Redis.
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

// newServer returns a door to a store, on a clock that the test holds if there is one.
func newServer(t testing.TB, s penstock.Store, c *fakeClock, jo *engine.Options, o *Options) *Server {
	t.Helper()
	d, err := New(engine.New(s, jo), o)
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		d.now, d.started = c.now, c.now()
	}
	return d
}

// startServer opens the door on a free port until the test ends, and returns its address.
func startServer(t testing.TB, d *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, d, l)
	return l.Addr().String()
}

func serve(t testing.TB, d *Server, l net.Listener) {
	t.Helper()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := d.Serve(l); err != nil {
			t.Errorf("Serve: %v, want nil after Shutdown", err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		serving.Wait()
	})
}

// A client says words and hears replies, as they are on the wire.
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

// want fails the test unless the reply to a command is the one that is wanted.
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

// readReply reads one reply, and returns it in one line: what is counted in front of what
// it counts, and texts in quotes. The end is "closed".
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
		return "", fmt.Errorf("%q: want CRLF behind %d bytes", text, n)
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
