package httpserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
					if !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("after %d responses: got %v, want ECONNREFUSED", n, err)
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

// A pipeListener accepts one end of each pipe. Pipes have deadlines, whose time is that of the bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// dialer connects to a server in a bubble.
type dialer func() net.Conn

// servePipes starts a server in a bubble. Call stop at the end of the test.
func servePipes(t *testing.T, d *Server) (dial dialer, stop func()) {
	t.Helper()
	l := &pipeListener{make(chan net.Conn), make(chan struct{})}
	go func() { _ = d.Serve(connlimit.New(l, connlimit.Options{Max: 1000})) }()
	dial = func() net.Conn {
		client, server := net.Pipe()
		l.conns <- server
		return client
	}
	return dial, func() {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = d.Shutdown(ended)
	}
}

// send connects, and sends something.
func (dial dialer) send(t *testing.T, text string) net.Conn {
	t.Helper()
	conn := dial()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// withHTTP2 lets a server serve HTTP/2, without TLS.
func withHTTP2(d *Server) *Server {
	d.server.Protocols = &http.Protocols{}
	d.server.Protocols.SetHTTP1(true)
	d.server.Protocols.SetUnencryptedHTTP2(true)
	return d
}

// newHTTP2Client returns a client whose requests share one connection.
func (dial dialer) newHTTP2Client(o *http.HTTP2Config) *http.Client {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil },
		Protocols:   protocols, HTTP2: o, MaxConnsPerHost: 1,
	}}
}

// untilClosed reads what a connection receives, and returns how long that takes.
func untilClosed(conn net.Conn) time.Duration {
	began := time.Now()
	_, _ = io.Copy(io.Discard, conn)
	return time.Since(began)
}

func TestServerClosesSlowClientsAndServesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "hello")
		}), Options{})
		dial, stop := servePipes(t, d)
		defer stop()
		var slow sync.WaitGroup
		for i := range 300 {
			text := []string{
				"",
				"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
				"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na",
				"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
			}[i%4]
			conn := dial()
			go func() { _, _ = io.WriteString(conn, text) }()
			slow.Go(func() {
				if open := untilClosed(conn); open != requestTime {
					t.Errorf("%q: closed after %v, want %v", text, open, requestTime)
				}
			})
		}
		for range 10 {
			conn := dial()
			roundTrip(t, conn)
			_ = conn.Close()
			time.Sleep(requestTime / 8)
		}
		slow.Wait()
	})
}

// An idle connection has idleTime. From the beginning of its next request it has only
// requestTime, however little it sends at a time.
func TestServerClosesSlowSecondRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, stop := servePipes(t, New(hello, Options{}))
		defer stop()
		silent, slow := dial(), dial()
		for _, conn := range []net.Conn{silent, slow} {
			roundTrip(t, conn)
		}
		go untilClosed(slow) // its answer is 400
		began := time.Now()
		for text := "GET /" + strings.Repeat("x", 100); ; text = text[1:] {
			if _, err := io.WriteString(slow, text[:1]); err != nil {
				break
			}
			time.Sleep(requestTime / 10)
		}
		if open := time.Since(began); open < requestTime || open > 2*requestTime {
			t.Errorf("slow request: closed after %v, want about %v", open, requestTime)
		}
		roundTrip(t, silent)
		if open := untilClosed(silent); open != idleTime {
			t.Errorf("idle connection: closed after %v, want %v", open, idleTime)
		}
	})
}

// Browsers keep connections in reserve that have sent nothing. A shutdown need not wait for
// them, but it waits for those that have begun to send a request.
func TestServerShutdownClosesSilentConnectionsOnRequest(t *testing.T) {
	for begun, want := range map[string]time.Duration{"": minLinger + 2*drainInterval, "GET /": requestTime + 2*drainInterval} {
		synctest.Test(t, func(t *testing.T) {
			d := New(hello, Options{CloseSilent: true})
			dial, _ := servePipes(t, d)
			conn := dial.send(t, begun)
			defer func() { _ = conn.Close() }()
			go untilClosed(conn)
			synctest.Wait()
			began := time.Now()
			if err := d.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > want || took < want-2*drainInterval {
				t.Errorf("after %q: the shutdown took %v, want about %v", begun, took, want)
			}
		})
	}
}

// HTTP/2 pings are not requests: the connection is not closed as slow, but as idle.
func TestServerTreatsPingingHTTP2ClientAsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(hello, Options{})
		dial, stop := servePipes(t, withHTTP2(d))
		defer stop()
		client := dial.newHTTP2Client(&http.HTTP2Config{SendPingTimeout: time.Second})
		defer client.CloseIdleConnections()
		for _, again := range []bool{false, true} {
			if got := post(t, client, "/", http.NoBody, again); got != "200 HTTP/2.0 hello" {
				t.Errorf("got %q", got)
			}
			time.Sleep(3 * requestTime)
		}
		if n := d.open.Load(); n != 1 {
			t.Errorf("%d connections are open, want 1 that is idle", n)
		}
		time.Sleep(idleTime)
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d connections are open after %v, want none", n, idleTime)
		}
	})
}

// An HTTP/2 client may connect long before its first request.
func TestServerKeepsHTTP2ConnectionWithoutRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, stop := servePipes(t, withHTTP2(New(hello, Options{})))
		defer stop()
		conn := dial.send(t, http2.ClientPreface)
		defer func() { _ = conn.Close() }()
		framer, answered := http2.NewFramer(conn, conn), make(chan error, 1)
		go func() {
			for {
				frame, err := framer.ReadFrame()
				if ping, ok := frame.(*http2.PingFrame); err != nil || ok && ping.IsAck() {
					answered <- err
					return
				}
			}
		}()
		for _, write := range []func() error{
			func() error { return framer.WriteSettings() }, framer.WriteSettingsAck, func() error { return framer.WritePing(false, [8]byte{1}) },
		} {
			if err := write(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * requestTime)
		}
		if err := <-answered; err != nil {
			t.Errorf("the connection was closed: %v", err)
		}
	})
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

// writeUntilError writes a response that never ends.
func writeUntilError(w http.ResponseWriter) {
	for block := make([]byte, 64<<10); ; {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func TestServerClosesClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 1)
		dial, stop := servePipes(t, New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			writeUntilError(w)
			took <- time.Since(began)
		}), Options{}))
		defer stop()
		conn := dial.send(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		defer func() { _ = conn.Close() }()
		if open := <-took; open != 2*requestTime {
			t.Errorf("closed after %v, want %v", open, 2*requestTime)
		}
	})
}

// A handler that waits for a slow store is not cut off.
func TestServerGivesHandlerItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const handlerTime = 15 * time.Second
		dial, stop := servePipes(t, New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(handlerTime + requestTime/2)
			_, _ = fmt.Fprint(w, "at last", r.Context().Err())
		}), Options{HandlerTime: handlerTime}))
		defer stop()
		conn := dial.send(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if text, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(text), "at last<nil>") {
			t.Errorf("got %q, %v, want the response", text, err)
		}
	})
}

func TestSuspendTimeoutKeepsConnectionOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, stop := servePipes(t, withHTTP2(New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			resume := SuspendTimeout(w)
			time.Sleep(6 * requestTime)
			resume()
			time.Sleep(requestTime / 2) // the limit counts from resume
			_, _ = fmt.Fprint(w, "at last", r.Context().Err())
		}), Options{})))
		defer stop()
		conn := dial.send(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if text, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(text), "at last<nil>") {
			t.Errorf("got %q, %v, want the response", text, err)
		}
		client := dial.newHTTP2Client(nil)
		defer client.CloseIdleConnections()
		if got := post(t, client, "/", http.NoBody, false); got != "200 HTTP/2.0 at last<nil>" {
			t.Errorf("HTTP/2: got %q", got)
		}
	})
}

// A client that does not read is closed after a suspension too, from its end.
func TestSuspendTimeoutEndsWithResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 2)
		dial, stop := servePipes(t, withHTTP2(New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			resume := SuspendTimeout(w)
			time.Sleep(6 * requestTime)
			resume()
			began := time.Now()
			writeUntilError(w)
			took <- time.Since(began)
		}), Options{})))
		defer stop()
		conn := dial.send(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		defer func() { _ = conn.Close() }()
		client := dial.newHTTP2Client(nil)
		defer client.CloseIdleConnections()
		if r, err := client.Get("http://x/"); err == nil { // or else it is aborted already
			defer func() { _ = r.Body.Close() }()
		}
		for range 2 {
			if open := <-took; open != requestTime {
				t.Errorf("closed %v after the end of the suspension, want %v", open, requestTime)
			}
		}
	})
}

// An HTTP/2 connection that always has a request in flight is not closed, but each of its
// streams has a time limit.
func TestServerLimitsHTTP2StreamsNotConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan time.Duration, 1)
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) { time.Sleep(requestTime / 2) })
		mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
			began := time.Now()
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				t.Error("slow request: its body has ended, want an error")
			}
			slow <- time.Since(began)
		})
		dial, stop := servePipes(t, withHTTP2(New(mux, Options{})))
		defer stop()
		client := dial.newHTTP2Client(nil)
		defer client.CloseIdleConnections()
		if got := post(t, client, "/", http.NoBody, false); got != "200 HTTP/2.0 " {
			t.Fatalf("first request: got %q", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go post(t, client, "/slow", neverEnding{ctx}, true)
		for range 8 {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if got := post(t, client, "/", http.NoBody, true); got != "200 HTTP/2.0 " {
						t.Errorf("concurrent request: got %q", got)
					}
				})
			}
			wg.Wait()
		}
		if took := <-slow; took != requestTime {
			t.Errorf("slow request: its body was cut off after %v, want %v", took, requestTime)
		}
	})
}

// A stream whose client does not read the response is closed.
func TestServerClosesHTTP2StreamThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := make(chan time.Duration, 1)
		dial, stop := servePipes(t, withHTTP2(New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			writeUntilError(w)
			took <- time.Since(began)
		}), Options{})))
		defer stop()
		client := dial.newHTTP2Client(nil)
		defer client.CloseIdleConnections()
		if r, err := client.Get("http://x/"); err == nil { // or else it is aborted already
			defer func() { _ = r.Body.Close() }()
		}
		if open := <-took; open != 2*requestTime {
			t.Errorf("closed after %v, want %v", open, 2*requestTime)
		}
	})
}

// post sends a request, on a new connection or again on the one that there is.
func post(t *testing.T, client *http.Client, path string, body io.Reader, again bool) string {
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if c.Reused != again {
			t.Errorf("connection reused: %t, want %t", c.Reused, again)
		}
	}}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, "http://x"+path, body)
	if err != nil {
		return err.Error()
	}
	answer, err := client.Do(r)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s %s", answer.StatusCode, answer.Proto, text)
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
