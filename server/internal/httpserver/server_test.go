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
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server/internal/connlimit"
	"golang.org/x/net/http2"
)

// open serves a door on a port, and returns its address and what Serve returned.
func open(t testing.TB, d *Server) (address string, served chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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

// What is in flight is finished, and nobody new is let in.
func TestShutdownFinishesWhatIsInFlight(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	d := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "finished")
	}), Options{Linger: -1})
	address, served := open(t, d)
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
		t.Errorf("a new connection: got %v, want that it is refused", err)
	}
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v before the request was finished", err)
	default:
	}
	close(finish)
	if got := within(t, "the answer", answered); got != "finished" {
		t.Errorf("the request in flight: got %q, want that it is finished", got)
	}
	if err := within(t, "Shutdown to return", down); err != nil {
		t.Errorf("Shutdown: got %v, want nil", err)
	}
}

// When the time is up, what is in flight is cut off.
func TestShutdownByForce(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	d := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	}), Options{})
	address, _ := open(t, d)
	go func() {
		if r, err := http.Get("http://" + address); err == nil {
			_ = r.Body.Close()
		}
	}()
	within(t, "the request", begun)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want that its time was up", err)
	}
	within(t, "the handler to notice", gone)
}

// Callers that keep their connections and never pause lose nothing: every request
// that was sent is answered, until they are told to close.
func TestShutdownUnderLoadDropsNothing(t *testing.T) {
	var decided atomic.Int64
	d := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		decided.Add(1)
		_, _ = io.WriteString(w, "hello")
	}), Options{Linger: 30 * time.Second})
	address, _ := open(t, d)
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
						t.Errorf("after %d answers: %v, want none but a refused connection", n, err)
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
	if answered.Load() != decided.Load() {
		t.Errorf("%d requests were decided, and %d answered", decided.Load(), answered.Load())
	}
}

func TestServingAfterShutdown(t *testing.T) {
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
		t.Errorf("the listener: got %v, want that it is closed", err)
	}
}

func TestAListenerThatFails(t *testing.T) {
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

// hasty returns a door whose time goes by faster, to spare tests the time.
func hasty(h http.HandlerFunc) *Server {
	d := New(h, Options{})
	d.tick = 20 * time.Millisecond
	return d
}

// letPass waits for so many ticks.
func (d *Server) letPass(ticks int64) {
	for begin := d.conns.now.Load(); d.conns.now.Load() < begin+ticks; {
		runtime.Gosched()
	}
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

// Those who send slowly are cut off, and all the while others are served.
func TestSlowCallersAreCutOff(t *testing.T) {
	address, _ := open(t, hasty(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	}))
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
				t.Fatalf("among %d slow callers: %v", cap(closed)-done, err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
	}
}

// Who has been answered may be silent for a while. But once it begins to ask again, it
// has the time of a request, however little it sends at a time.
func TestASecondRequestHasNoMoreTimeThanTheFirst(t *testing.T) {
	d := hasty(hello)
	address, _ := open(t, d)
	silent, slow := dial(t, address, ""), dial(t, address, "")
	for _, conn := range []net.Conn{silent, slow} {
		ask(t, conn)
	}
	begin := d.conns.now.Load()
	closed := make(chan int64)
	go func() {
		_, _ = io.Copy(io.Discard, slow)
		closed <- d.conns.now.Load() - begin
	}()
	go func() {
		for _, b := range []byte("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: " + strings.Repeat("a", idleTicks)) {
			if _, err := slow.Write([]byte{b}); err != nil {
				return
			}
			d.letPass(1)
		}
	}()
	if ticks := within(t, "the slow request to be cut off", closed); ticks > idleTicks/2 {
		t.Errorf("it was cut off after %d ticks, want about %d", ticks, requestTicks)
	}
	ask(t, silent)
}

// By HTTP/2 an idle client asks now and then whether the server is there, which is no
// request: it is not cut off as one that is slow, and is cut off as one that is idle.
func TestAClientThatPingsIsIdle(t *testing.T) {
	d := hasty(hello)
	address, client := openHTTP2(t, d)
	transport := client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2, transport.HTTP2 = true, &http.HTTP2Config{SendPingTimeout: d.tick}
	for _, c := range []struct {
		again bool // on the same connection
		wait  int64
	}{{false, 3 * requestTicks}, {true, idleTicks + 5}, {false, 0}} {
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
			t.Errorf("%s, on the same connection: %t, want %t", answer.Proto, again, c.again)
		}
		d.letPass(c.wait)
	}
}

// openHTTP2 serves a door by HTTP/2, and returns its address and a client that knows
// its certificate.
func openHTTP2(t *testing.T, d *Server) (string, *http.Client) {
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

// By HTTP/2 there is something to say before the first request, for which a client may
// take its time.
func TestAClientThatHasNothingToAskYet(t *testing.T) {
	d := hasty(hello)
	address, client := openHTTP2(t, d)
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
		d.letPass(2 * requestTicks)
	}
	if err := framer.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("it was cut off: %v", err)
		}
		if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
			return
		}
	}
}

// ask asks on a connection, and reads the answer.
func ask(t *testing.T, conn net.Conn) {
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

// Who asks and asks and never listens is cut off as well.
func TestWhoDoesNotListenIsCutOff(t *testing.T) {
	gone := make(chan struct{})
	var once sync.Once
	address, _ := open(t, hasty(func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				once.Do(func() { close(gone) })
				return
			}
		}
	}))
	dial(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	within(t, "the caller to be cut off", gone)
}

// Who is held on purpose is not, however long it takes.
func TestWhoIsHeldIsNotCutOff(t *testing.T) {
	d := hasty(nil)
	d.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release := SuspendTimeout(r)
		d.letPass(3 * requestTicks)
		release()
		d.letPass(3) // and from now on it has the time of any other
		_, _ = io.WriteString(w, "at last")
	})
	address, _ := open(t, d)
	r, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil || string(body) != "at last" {
		t.Errorf("got %q, %v, want the answer", body, err)
	}
}

// A connection that is never done, because it has many requests at once, is not cut
// off; but each of the requests has only so much time.
func TestManyRequestsAtOnce(t *testing.T) {
	d, slow := hasty(nil), make(chan error, 1)
	d.server.Handler = d.handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			_, err := io.Copy(io.Discard, r.Body)
			slow <- err
			return
		}
		d.letPass(requestTicks / 2)
	}))
	s := httptest.NewUnstartedServer(d.server.Handler)
	s.Config.ConnContext, s.Config.ConnState, s.EnableHTTP2 = d.server.ConnContext, d.server.ConnState, true
	s.StartTLS()
	defer s.Close()
	go d.conns.run(t.Context(), d.tick)
	go post(s, "/slow", neverEnding{t.Context()})
	begin := d.conns.now.Load()
	for d.conns.now.Load() < begin+4*requestTicks {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if got := post(s, "/", http.NoBody); got != "200 HTTP/2.0 " {
					t.Errorf("one of many requests: got %q", got)
				}
			})
		}
		wg.Wait()
	}
	if err := within(t, "the slow request", slow); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a slow request: got %v, want that its time was up", err)
	}
}

// A client that does not want the answer to one of many requests is not waited for;
// one that was held on purpose has its time from then on.
func TestWhoWantsNoAnswerByHTTP2(t *testing.T) {
	d := New(nil, Options{})
	ended := make(chan error, 1)
	s := httptest.NewUnstartedServer(d.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			release := SuspendTimeout(r)
			<-time.After(2*requestTicks*tick + tick)
			release()
			_, _ = io.WriteString(w, "at last")
			return
		}
		var err error
		for block := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(block)
		}
		ended <- err
	})))
	s.Config.ConnContext, s.Config.ConnState, s.EnableHTTP2 = d.server.ConnContext, d.server.ConnState, true
	s.StartTLS()
	defer s.Close()
	r, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	held := make(chan string, 1)
	go func() { held <- post(s, "/held", http.NoBody) }()
	_ = within(t, "the answer to be given up", ended)
	if got := within(t, "the request that was held", held); got != "200 HTTP/2.0 at last" {
		t.Errorf("a request that was held: got %q", got)
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

// neverEnding is a body that says nothing.
type neverEnding struct{ until context.Context }

func (n neverEnding) Read([]byte) (int, error) {
	<-n.until.Done()
	return 0, io.EOF
}

// raw sends bytes, and returns the first line of the answer.
func raw(t *testing.T, address, text string) string {
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

func TestWhatIsNotHTTP(t *testing.T) {
	address, _ := open(t, New(hello, Options{}))
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
		if got := raw(t, address, text); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q: got %q, want %q", text, got, want)
		}
	}
}

// A door that was used and shut leaves nothing running.
func TestNothingIsLeftRunning(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		d := New(hello, Options{Linger: -1})
		address, served := open(t, d)
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
