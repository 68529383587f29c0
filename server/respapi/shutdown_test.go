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

// A gated store decides when it is let.
type gated struct {
	penstock.Store
	asked chan struct{}
	gate  chan struct{}
}

func newGated() *gated {
	return &gated{Store: penstock.NewMemory(nil), asked: make(chan struct{}, 100), gate: make(chan struct{})}
}

func (g *gated) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	g.asked <- struct{}{}
	select {
	case <-g.gate:
		return g.Store.Take(ctx, r)
	case <-ctx.Done():
		return penstock.Decision{}, ctx.Err()
	}
}

func TestShutdownAnswersWhatHasArrived(t *testing.T) {
	store := newGated()
	d := newDoor(t, store, nil, nil, nil)
	addr := open(t, d)
	idler, asker := dial(t, addr), dial(t, addr)
	idler.want("+PONG", "PING")
	take := encode("CL.THROTTLE", "k", "15", "30", "60")
	asker.send(take)
	<-store.asked
	asker.send(take + encode("PING")) // which nobody reads while the first is decided

	done := make(chan error)
	go func() { done <- d.Shutdown(t.Context()) }()
	if got := idler.hear(); got != "closed" {
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
	close(store.gate)
	for _, want := range []string{"*5 :0 :16 :15 :-1 :2", "*5 :0 :16 :14 :-1 :4", "+PONG", "closed"} {
		if got := asker.hear(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownByForce(t *testing.T) {
	store := newGated() // that is never let
	d := newDoor(t, store, nil, nil, nil)
	c := dial(t, open(t, d))
	c.send(encode("CL.THROTTLE", "k", "15", "30", "60"))
	<-store.asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want that it was cut short", err)
	}
	if _, err := io.Copy(io.Discard, c.conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the client hears %v", err)
	}
	d.open.Wait() // for the store was told to give up
}

// Everything that was decided before the end was answered, however busy it was.
func TestShutdownUnderLoad(t *testing.T) {
	before := runtime.NumGoroutine()
	memory := penstock.NewMemory(nil)
	d := newDoor(t, memory, nil, nil, nil)
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
				if !hearAll(r, 1+i*5, &granted) {
					return
				}
			}
			hearAll(r, 1<<30, &granted)
		})
	}
	awaitConns(t, d, 8)
	await(t, func() bool { return granted.Load() > 1000 })
	if err := d.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	clients.Wait()
	look := must(d.throttles.get(params{burst - 1, 1, 60}))
	left := must(look.limiter.Peek(t.Context(), "k"))
	if taken := burst - left.Remaining; taken != granted.Load() {
		t.Errorf("%d were taken, and %d of them answered", taken, granted.Load())
	}
	await(t, func() bool { return runtime.NumGoroutine() <= before })
}

// hearAll hears n grants, and reports whether there were as many.
func hearAll(r *bufio.Reader, n int, granted *atomic.Int64) bool {
	for range n {
		text, err := hear(r)
		if err != nil || !strings.HasPrefix(text, "*5 :0 ") {
			return false
		}
		granted.Add(1)
	}
	return true
}

// Who is still sending when the connection ends is heard out, so that the last answer
// arrives and is followed by the end, and not by an error.
func TestGoodbyes(t *testing.T) {
	c := dial(t, open(t, newDoor(t, penstock.NewMemory(nil), nil, nil, nil)))
	c.send(encode("QUIT") + strings.Repeat(encode("PING"), 4000))
	for _, want := range []string{"+OK", "closed"} {
		if got := c.hear(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestServeAfterShutdown(t *testing.T) {
	d := newDoor(t, penstock.NewMemory(nil), nil, nil, nil)
	for range 2 {
		if err := d.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	l := newRoad(t)
	if err := d.Serve(l); err != nil {
		t.Errorf("Serve: got %v, want nil", err)
	}
	if _, err := l.Listener.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

var errBroken = errors.New("broken")

// A bumpy listener fails before it works.
type bumpy struct {
	*road
	errors []error
}

func (b *bumpy) Accept() (net.Conn, error) {
	if len(b.errors) > 0 {
		err := b.errors[0]
		b.errors = b.errors[1:]
		return nil, err
	}
	return b.road.Accept()
}

func TestAcceptingEndsWithTheListener(t *testing.T) {
	d := newDoor(t, penstock.NewMemory(nil), nil, nil, nil)
	if err := d.Serve(&bumpy{newRoad(t), []error{errBroken}}); !errors.Is(err, errBroken) {
		t.Errorf("Serve: got %v, want %v", err, errBroken)
	}
	if err := d.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestUnixSocketIsThisMachine(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/resp")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, newDoor(t, penstock.NewMemory(nil), nil, nil, nil), l)
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	c.want("*5 :0 :16 :15 :-1 :2", "CL.THROTTLE", "k", "15", "30", "60")
	c.want(":1", "DEL", "k")
}

func TestTook(t *testing.T) {
	var batches atomic.Int64
	d := newDoor(t, penstock.NewMemory(nil), nil, nil, &Options{ObserveLatency: func(took time.Duration) {
		if took < 0 || took > patient {
			t.Errorf("it took %v", took)
		}
		batches.Add(1)
	}})
	c := direct(d)
	c.replies(t, encode("PING"), encode("PING"), encode("PING"))
	c.replies(t, "PI")
	if got := batches.Load(); got != 1 {
		t.Errorf("told %d times, want once for what came together", got)
	}
}
