package httpserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"golang.org/x/net/http2"
)

// serve starts a server, and returns its address and the result of Serve. No other program listens
// there until the test ends.
func serve(t testing.TB, d *Server) (address string, served chan error) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t))))
	if err != nil {
		t.Fatal(err)
	}
	served = make(chan error, 1)
	go func() { served <- d.Serve(connlimit.New(l, connlimit.Options{Max: 10_000})) }()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = d.Shutdown(ended)
	})
	return l.Addr().String(), served
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })

// within fails the test if what is waited for does not come.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case c := <-c:
		return c
	case <-time.After(time.Minute):
		t.Fatalf("waited a minute for %s", what)
		panic("unreachable")
	}
}

func TestServerShutdownFinishesRequestsInFlight(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}), make(chan struct{})
	d := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "finished")
	}), Options{Linger: -1})
	address, served := serve(t, d)
	answered := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + address)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer func() { _ = r.Body.Close() }()
		body, _ := io.ReadAll(r.Body)
		answered <- string(body)
	}()
	within(t, "the request", begun)
	down := make(chan error, 1)
	go func() { down <- d.Shutdown(context.Background()) }()
	if err := within(t, "Serve to return", served); err != nil {
		t.Errorf("Serve: got %v, want nil", err)
	}
	if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("new connection: got %v, want ECONNREFUSED", err)
	}
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v before the request was finished", err)
	default:
	}
	close(finish)
	if got := within(t, "the answer", answered); got != "finished" {
		t.Errorf("request in flight: got %q, want its response", got)
	}
	if err := within(t, "Shutdown to return", down); err != nil {
		t.Errorf("Shutdown: got %v, want nil", err)
	}
}

func TestServerShutdownDeadlineCancelsRequests(t *testing.T) {
	t.Parallel()
	begun, gone := make(chan struct{}), make(chan struct{})
	d := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	}), Options{})
	address, _ := serve(t, d)
	go func() {
		if r, err := http.Get("http://" + address); err == nil {
			_ = r.Body.Close()
		}
	}()
	within(t, "the request", begun)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want context.Canceled", err)
	}
	within(t, "the handler to notice", gone)
}

// Every request on a keep-alive connection is answered until a response asks the client to
// close the connection.
func TestServerShutdownUnderLoadAnswersAllRequests(t *testing.T) {
	t.Parallel()
	var handled atomic.Int64
	d := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		handled.Add(1)
		_, _ = io.WriteString(w, "hello")
	}), Options{Linger: 30 * time.Second})
	address, _ := serve(t, d)
	var answered atomic.Int64
	var busy, callers sync.WaitGroup
	for range 16 {
		busy.Add(1)
		callers.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport}
			for n := 0; ; n++ {
				r, err := c.Post("http://"+address, "text/plain", strings.NewReader("ask"))
				if err != nil {
					if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" { // refused, or reset before it was accepted
						t.Errorf("after %d responses: got %v, want no connection", n, err)
					}
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
				answered.Add(1)
				if n == 20 {
					busy.Done()
				}
			}
		})
	}
	busy.Wait()
	if err := d.Shutdown(context.Background()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	callers.Wait()
	if answered.Load() != handled.Load() {
		t.Errorf("%d requests handled, %d answered", handled.Load(), answered.Load())
	}
}

// Clients that may take longer to send their next request are given more time by a shutdown
// that has more.
func TestServerShutdownLingersForPartOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for left, want := range map[time.Duration]time.Duration{
			0: 250 * time.Millisecond, time.Second: 250 * time.Millisecond, 10 * time.Second: 250 * time.Millisecond, 10 * time.Minute: 15 * time.Second,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			if left == 0 {
				ctx = context.Background()
			}
			if got := New(hello, Options{}).lingerTime(ctx); got != want {
				t.Errorf("%v left: lingers for %v, want %v", left, got, want)
			}
			cancel()
		}
	})
}

func TestServerServeAfterShutdownReturnsNil(t *testing.T) {
	t.Parallel()
	d := New(hello, Options{})
	if err := d.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(l); err != nil {
		t.Errorf("Serve: got %v, want nil", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listener: got %v, want net.ErrClosed", err)
	}
}

func TestServerServeReturnsListenerError(t *testing.T) {
	t.Parallel()
	d := New(hello, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := d.Serve(l); err == nil {
		t.Error("Serve on a closed listener: want an error")
	}
}

// newFastServer returns a server whose time passes only when the test calls advance, so that
// a busy machine closes no connection. HTTP/2 streams have their time limit all the same.
func newFastServer(h http.HandlerFunc) *Server {
	d := New(h, Options{})
	d.tick, d.requestTimeout = time.Hour, time.Hour
	return d
}

// withStreamTimeout returns a handler for HTTP/2 streams of another time limit.
func withStreamTimeout(timeout time.Duration, h http.HandlerFunc) http.Handler {
	d := newFastServer(nil)
	d.requestTimeout = timeout
	return d.handler(h)
}

// advance lets ticks pass.
func (d *Server) advance(ticks int64) {
	for range ticks {
		d.conns.sweep()
	}
}

// advanceUntil lets ticks pass until the channel delivers.
func advanceUntil[T any](t testing.TB, d *Server, what string, c <-chan T) T {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		select {
		case got := <-c:
			return got
		case <-time.After(time.Millisecond):
			d.advance(1)
		}
	}
	t.Fatalf("waited a minute for %s", what)
	panic("unreachable")
}

// dial connects, and sends something.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServerClosesSlowClientsAndServesOthers(t *testing.T) {
	t.Parallel()
	d := newFastServer(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	address, _ := serve(t, d)
	closed := make(chan struct{}, 300)
	for i := range cap(closed) {
		conn := dial(t, address, []string{
			"",
			"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
			"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na",
			"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		}[i%4])
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	for done := 0; done < cap(closed); {
		select {
		case <-closed:
			done++
		default:
			r, err := http.Get("http://" + address)
			if err != nil {
				t.Fatalf("with %d slow clients: %v", cap(closed)-done, err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
			d.advance(1) // while no good client has a request in flight
		}
	}
}

// An idle connection has idleTicks. From the first byte of its next request it has only
// requestTicks, however little it sends at a time.
func TestServerClosesSlowSecondRequest(t *testing.T) {
	t.Parallel()
	d := newFastServer(hello)
	address, _ := serve(t, d)
	silent, slow := dial(t, address, ""), dial(t, address, "")
	for _, conn := range []net.Conn{silent, slow} {
		roundTrip(t, conn)
	}
	waitUntil(t, "both connections are idle", func() bool { return d.conns.count(isIdle) == 2 })
	before := d.conns.received()
	for ticks := range int64(idleTicks / 2) {
		if d.conns.open.Load() < 2 {
			if ticks < requestTicks {
				t.Errorf("closed after %d ticks, want %d", ticks, requestTicks)
			}
			roundTrip(t, silent)
			return
		}
		if _, err := io.WriteString(slow, "G"); err != nil {
			continue // closed; the tracker learns it soon
		}
		waitUntil(t, "the server has read it", func() bool { return d.conns.received() > before+ticks || d.conns.open.Load() < 2 })
		d.advance(1)
	}
	t.Errorf("still open after %d ticks of a request that never ends", idleTicks/2)
}

// Browsers keep connections in reserve that have sent nothing. A shutdown need not wait for
// them, but it waits for those that have begun to send a request.
func TestServerShutdownClosesSilentConnectionsOnRequest(t *testing.T) {
	t.Parallel()
	for _, begun := range []string{"", "GET /"} {
		d := newFastServer(hello) // no timeout closes the connection
		d.closeSilent = true
		address, _ := serve(t, d)
		dial(t, address, begun)
		waitUntil(t, "it is accepted and read", func() bool {
			return d.conns.count((*trackedConn).isNew) == 1 && d.conns.received() == int64(len(begun))
		})
		ended := make(chan error, 1)
		go func() { ended <- d.Shutdown(t.Context()) }()
		if begun == "" {
			if err := within(t, "the shutdown", ended); err != nil {
				t.Error(err)
			}
			continue
		}
		waitUntil(t, "the listener is closed", d.closing.Load)
		select {
		case err := <-ended:
			t.Errorf("the shutdown ended with a request half sent: %v", err)
		case <-time.After(2 * connlimit.LingerTime(t.Context())):
		}
		if err := advanceUntil(t, d, "the shutdown", ended); err != nil {
			t.Error(err)
		}
	}
}

// count returns how many connections satisfy the condition.
func (t *connTracker) count(condition func(*trackedConn) bool) (n int) {
	t.all.Range(func(_, c any) bool {
		if condition(c.(*trackedConn)) {
			n++
		}
		return true
	})
	return n
}

func isIdle(c *trackedConn) bool { return http.ConnState(c.state.Load()) == http.StateIdle }

func isMultiplexed(c *trackedConn) bool { return c.multiplexed.Load() }

// received returns how many bytes all open connections have received.
func (t *connTracker) received() (n int64) {
	t.all.Range(func(conn, _ any) bool {
		n += bytesRead(conn.(net.Conn))
		return true
	})
	return n
}

// waitUntil fails the test if the condition does not become true.
func waitUntil(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if !waitWhile(ctx, time.Millisecond, func() bool { return !condition() }) {
		t.Fatalf("waited a minute until %s", what)
	}
}

// HTTP/2 pings are not requests: the connection is not closed as slow, but as idle.
func TestServerTreatsPingingHTTP2ClientAsIdle(t *testing.T) {
	t.Parallel()
	d := newFastServer(hello)
	address, client := serveHTTP2(t, d)
	transport := client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2, transport.HTTP2 = true, &http.HTTP2Config{SendPingTimeout: 20 * time.Millisecond}
	for _, c := range []struct {
		again bool // on the same connection
		wait  int64
	}{{false, 3 * requestTicks}, {true, idleTicks + 5}} {
		again := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { again = c.Reused }})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.ProtoMajor != 2 || again != c.again {
			t.Errorf("%s, connection reused: %t, want HTTP/2.0 and %t", answer.Proto, again, c.again)
		}
		waitUntil(t, "the connection is idle", func() bool { return d.conns.count(isIdle) == 1 })
		pinged := d.conns.received()
		waitUntil(t, "the client has pinged", func() bool { return d.conns.received() > pinged })
		d.advance(c.wait)
	}
	waitUntil(t, "the idle connection is closed", func() bool { return !d.conns.anyOpen() })
}

// serveHTTP2 starts a server over TLS with HTTP/2, and returns its address and a client that
// trusts its certificate.
func serveHTTP2(t *testing.T, d *Server) (string, *http.Client) {
	t.Helper()
	certificates := httptest.NewTLSServer(nil)
	t.Cleanup(certificates.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := certificates.TLS.Clone()
	config.NextProtos = []string{"h2"}
	go func() { _ = d.Serve(tls.NewListener(connlimit.New(l, connlimit.Options{Max: 10}), config)) }()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = d.Shutdown(ended)
	})
	return l.Addr().String(), certificates.Client()
}

// An HTTP/2 client may connect long before its first request.
func TestServerKeepsHTTP2ConnectionWithoutRequest(t *testing.T) {
	t.Parallel()
	d := newFastServer(hello)
	address, client := serveHTTP2(t, d)
	config := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = []string{"h2"}, "example.com"
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	for _, write := range []func() error{func() error { return framer.WriteSettings() }, framer.WriteSettingsAck} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the server speaks HTTP/2", func() bool { return d.conns.count(isMultiplexed) == 1 })
		d.advance(2 * requestTicks)
	}
	if err := framer.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the connection was closed: %v", err)
		}
		if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
			return
		}
	}
}

// roundTrip sends a request on a connection, and reads the response.
func roundTrip(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
}

func TestServerClosesClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	begun, gone := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d := newFastServer(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		for range 1000 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				once.Do(func() { close(gone) })
				return
			}
		}
	})
	address, _ := serve(t, d)
	dial(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	within(t, "the request", begun)
	advanceUntil(t, d, "the connection to be closed", gone)
}

// A handler that waits for a slow store is not cut off.
func TestServerGivesHandlerItsTime(t *testing.T) {
	t.Parallel()
	d := New(nil, Options{HandlerTime: 30 * tick})
	d.tick = time.Hour
	d.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		d.advance(30 + requestTicks/2)
		_, _ = io.WriteString(w, "at last")
	})
	address, _ := serve(t, d)
	r, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r.Body); err != nil || string(text) != "at last" {
		t.Errorf("got %q, %v, want the response", text, err)
	}
	_ = r.Body.Close()
}

func TestSuspendTimeoutKeepsConnectionOpen(t *testing.T) {
	t.Parallel()
	d := newFastServer(nil)
	d.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resume := SuspendTimeout(r)
		d.advance(3 * requestTicks)
		resume()
		d.advance(3) // the limit counts from resume
		_, _ = io.WriteString(w, "at last")
	})
	address, _ := serve(t, d)
	r, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil || string(body) != "at last" {
		t.Errorf("got %q, %v, want the response", body, err)
	}
}

// An HTTP/2 connection that always has a request in flight is not closed, but each of its
// streams has a time limit.
func TestServerLimitsHTTP2StreamsNotConnections(t *testing.T) {
	t.Parallel()
	d, slow := newFastServer(nil), make(chan error, 1)
	mux := http.NewServeMux()
	mux.Handle("/", d.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { d.advance(requestTicks / 2) })))
	mux.Handle("/slow", withStreamTimeout(10*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		slow <- err
	}))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ConnContext, s.Config.ConnState, s.EnableHTTP2 = d.server.ConnContext, d.server.ConnState, true
	s.StartTLS()
	defer s.Close()
	if got := post(s, "/", http.NoBody); got != "200 HTTP/2.0 " { // so that all share one connection
		t.Fatalf("first request: got %q", got)
	}
	go post(s, "/slow", neverEnding{t.Context()})
	begin := d.conns.now.Load()
	for d.conns.now.Load() < begin+4*requestTicks {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if got := post(s, "/", http.NoBody); got != "200 HTTP/2.0 " {
					t.Errorf("concurrent request: got %q", got)
				}
			})
		}
		wg.Wait()
	}
	if err := within(t, "the slow request", slow); err == nil {
		t.Error("slow request: its body has ended, want an error")
	}
}

// A stream whose client does not read the response is closed. The limit of a suspended stream
// counts from resume.
func TestServerClosesHTTP2StreamThatIsNotRead(t *testing.T) {
	t.Parallel()
	d, ended := newFastServer(nil), make(chan error, 1)
	mux := http.NewServeMux()
	mux.Handle("/", withStreamTimeout(10*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for block := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(block)
		}
		ended <- err
	}))
	const timeout = 3 * time.Second // a busy machine is faster than twice that
	mux.Handle("/suspended", withStreamTimeout(timeout, func(w http.ResponseWriter, r *http.Request) {
		resume := SuspendTimeout(r)
		<-time.After(2*timeout + 100*time.Millisecond)
		resume()
		_, _ = io.WriteString(w, "at last")
	}))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ConnContext, s.Config.ConnState, s.EnableHTTP2 = d.server.ConnContext, d.server.ConnState, true
	s.StartTLS()
	defer s.Close()
	suspended := make(chan string, 1)
	go func() { suspended <- post(s, "/suspended", http.NoBody) }()
	if r, err := s.Client().Get(s.URL); err == nil { // or else it is aborted already
		defer func() { _ = r.Body.Close() }()
	}
	_ = within(t, "the response to be aborted", ended)
	if got := within(t, "the suspended request", suspended); got != "200 HTTP/2.0 at last" {
		t.Errorf("suspended request: got %q", got)
	}
}

func post(s *httptest.Server, path string, body io.Reader) string {
	r, err := s.Client().Post(s.URL+path, "text/plain", body)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	text, _ := io.ReadAll(r.Body)
	return fmt.Sprintf("%d %s %s", r.StatusCode, r.Proto, text)
}

// neverEnding is a body that sends nothing.
type neverEnding struct{ until context.Context }

func (n neverEnding) Read([]byte) (int, error) {
	<-n.until.Done()
	return 0, io.EOF
}

// statusLine sends bytes, and returns the first line of the response.
func statusLine(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(conn, text) }()
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}

func TestServerRejectsMalformedRequests(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, New(hello, Options{}))
	for text, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n": "HTTP/1.1 431",
		"*1\r\n$4\r\nPING\r\n\r\n":                                       "HTTP/1.1 400",
		"GET / HTTP/1.1\r\n\r\n":                                         "HTTP/1.1 400",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n":       "HTTP/1.1 400",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n":  "HTTP/1.1 501",
		"GET / HTTP/1.1\r\nHost: x\r\nBad Name: y\r\n\r\n":               "HTTP/1.1 400",
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":         "HTTP/1.1 200",
		"GET / HTTP/1.1\r\nHost: x\r\nName: a\x00b\r\nX: y\r\n\r\n":      "HTTP/1.1 400",
		"GET http://a/%00 HTTP/1.1\r\nHost: x\r\nConnection: x\r\n\r\n":  "HTTP/1.1 200",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r": "HTTP/1.1 400",
	} {
		if got := statusLine(t, address, text); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q: got %q, want %q", text, got, want)
		}
	}
}

func TestServerShutdownLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		d := New(hello, Options{Linger: -1})
		address, served := serve(t, d)
		for range 5 {
			r, err := http.Get("http://" + address)
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Body.Close()
		}
		if err := d.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := within(t, "Serve to return", served); err != nil {
			t.Fatal(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
	}
}
