package respapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// A blockingStore store decides when it is let.
type blockingStore struct {
	penstock.Store
	called  chan struct{}
	release chan struct{}
}

func newBlockingStore() *blockingStore {
	return &blockingStore{Store: penstock.NewMemory(nil), called: make(chan struct{}, 100), release: make(chan struct{})}
}

func (g *blockingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	g.called <- struct{}{}
	select {
	case <-g.release:
		return g.Store.Take(ctx, r)
	case <-ctx.Done():
		return penstock.Decision{}, ctx.Err()
	}
}

func TestShutdownAnswersReceivedCommands(t *testing.T) {
	store := newBlockingStore()
	d := newServer(t, store, nil, nil, nil)
	addr := startServer(t, d)
	idler, asker := dial(t, addr), dial(t, addr)
	idler.want("+PONG", "PING")
	take := encode("CL.THROTTLE", "k", "15", "30", "60")
	asker.send(take)
	<-store.called
	asker.send(take + encode("PING")) // which nobody reads while the first is decided

	done := make(chan error)
	go func() { done <- d.Shutdown(t.Context()) }()
	if got := idler.read(); got != "closed" {
		t.Errorf("who was idle hears %s", got)
	}
	if _, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
		t.Error("somebody new is let in")
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned while a command was being decided: %v", err)
	default:
	}
	close(store.release)
	for _, want := range []string{"*5 :0 :16 :15 :-1 :2", "*5 :0 :16 :14 :-1 :4", "+PONG", "closed"} {
		if got := asker.read(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownDeadlineClosesConnections(t *testing.T) {
	store := newBlockingStore() // that is never let
	d := newServer(t, store, nil, nil, nil)
	c := dial(t, startServer(t, d))
	c.send(encode("CL.THROTTLE", "k", "15", "30", "60"))
	<-store.called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want that it was cut short", err)
	}
	if _, err := io.Copy(io.Discard, c.conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the client hears %v", err)
	}
	d.openConns.Wait() // for the store was told to give up
}

// Everything that was decided before the end was answered, however busy it was.
func TestShutdownUnderLoadAnswersEveryTake(t *testing.T) {
	before := runtime.NumGoroutine()
	memory := penstock.NewMemory(nil)
	d := newServer(t, memory, nil, nil, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(l) }()
	const burst = 1_000_000
	take := encode("CL.THROTTLE", "k", "999999", "1", "60")
	var clients sync.WaitGroup
	var granted atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = nc.Close() }()
			pipeline, r := strings.Repeat(take, 1+i*5), bufio.NewReader(nc)
			for {
				if _, err := io.WriteString(nc, pipeline); err != nil {
					break
				}
				if !readGrants(r, 1+i*5, &granted) {
					return
				}
			}
			readGrants(r, 1<<30, &granted)
		})
	}
	waitForConns(t, d, 8)
	waitFor(t, func() bool { return granted.Load() > 1000 })
	if err := d.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	clients.Wait()
	look := must(d.limiters.get(throttleParams{burst - 1, 1, 60}))
	left := must(look.limiter.Peek(t.Context(), "k"))
	if taken := burst - left.Remaining; taken != granted.Load() {
		t.Errorf("%d were taken, and %d of them answered", taken, granted.Load())
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

// readGrants hears n grants, and reports whether there were as many.
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

// Who is still sending when the connection ends is heard out, so that the last answer
// arrives and is followed by the end, and not by an error.
func TestQuitDeliversLastReply(t *testing.T) {
	c := dial(t, startServer(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil)))
	c.send(encode("QUIT") + strings.Repeat(encode("PING"), 4000))
	for _, want := range []string{"+OK", "closed"} {
		if got := c.read(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestServeAfterShutdownReturnsNil(t *testing.T) {
	d := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	for range 2 {
		if err := d.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	l := newTestListener(t)
	if err := d.Serve(l); err != nil {
		t.Errorf("Serve: got %v, want nil", err)
	}
	if _, err := l.Listener.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

var errBroken = errors.New("broken")

// A failingListener listener fails before it works.
type failingListener struct {
	*testListener
	errors []error
}

func (b *failingListener) Accept() (net.Conn, error) {
	if len(b.errors) > 0 {
		err := b.errors[0]
		b.errors = b.errors[1:]
		return nil, err
	}
	return b.testListener.Accept()
}

func TestServeReturnsListenerError(t *testing.T) {
	d := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	if err := d.Serve(&failingListener{newTestListener(t), []error{errBroken}}); !errors.Is(err, errBroken) {
		t.Errorf("Serve: got %v, want %v", err, errBroken)
	}
	if err := d.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestUnixSocketCountsAsLoopback(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/resp")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	c.want("*5 :0 :16 :15 :-1 :2", "CL.THROTTLE", "k", "15", "30", "60")
	c.want(":1", "DEL", "k")
}

func TestObserveLatencyOncePerPipeline(t *testing.T) {
	var batches atomic.Int64
	d := newServer(t, penstock.NewMemory(nil), nil, nil, &Options{ObserveLatency: func(took time.Duration) {
		if took < 0 || took > testTimeout {
			t.Errorf("it took %v", took)
		}
		batches.Add(1)
	}})
	c := newFakeClient(d)
	c.doAll(t, encode("PING"), encode("PING"), encode("PING"))
	c.doAll(t, "PI")
	if got := batches.Load(); got != 1 {
		t.Errorf("told %d times, want once for what came together", got)
	}
}
