//go:build unix

package connlimit

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

const testTimeout = time.Minute

// listen returns a listener on a free port, which stays free when the listener is closed.
func listen(t *testing.T) *Listener {
	t.Helper()
	tcp, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t))))
	if err != nil {
		t.Fatal(err)
	}
	l := New(tcp, Options{Max: 1000})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial connects, and sends a byte.
func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(testTimeout))
	if _, err := nc.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	return nc
}

// echo returns the first byte of every connection to its client, until Accept fails.
func echo(l *Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = nc.Close() }()
			var b [1]byte
			if _, err := nc.Read(b[:]); err == nil {
				_, _ = nc.Write(b[:])
			}
		}()
	}
}

func wantEcho(t *testing.T, nc net.Conn) {
	t.Helper()
	var b [1]byte
	if _, err := nc.Read(b[:]); err != nil {
		t.Errorf("a queued connection was not served: %v", err)
	}
}

func await[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(testTimeout):
		t.Fatalf("%s: nothing happened for %v", what, testTimeout)
	}
	return v
}

// The accept loop starts only after the drain, so all clients are in the accept queue then.
func TestListenerDrainAcceptsQueuedConnections(t *testing.T) {
	l := listen(t)
	var clients []net.Conn
	for range 50 {
		clients = append(clients, dial(t, l))
	}
	drained := make(chan struct{})
	go func() {
		l.Drain(t.Context())
		close(drained)
	}()
	for !l.draining.Load() {
		runtime.Gosched()
	}
	served := make(chan error, 1)
	go func() { served <- echo(l) }()
	await(t, drained, "Drain")
	for _, nc := range clients {
		wantEcho(t, nc)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the socket is open after Drain")
	}
	select {
	case err := <-served:
		t.Errorf("Accept returned %v before Close", err)
	default:
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := await(t, served, "Accept"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: got %v, want net.ErrClosed", err)
	}
}

func TestListenerDrainWakesIdleAccept(t *testing.T) {
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- echo(l) }()
	wantEcho(t, dial(t, l)) // so Accept is called
	l.Drain(t.Context())
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := await(t, served, "Accept"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: got %v, want net.ErrClosed", err)
	}
}

// Bytes that have arrived are waited for, however late the server begins to read.
func TestListenerDrainWaitsForFirstRead(t *testing.T) {
	for _, wait := range []time.Duration{time.Millisecond, time.Hour} {
		l := listen(t)
		l.firstReadWait = wait
		accepted := make(chan net.Conn, 1)
		go func() {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- nc
			_, _ = l.Accept()
		}()
		dial(t, l)
		nc := await(t, accepted, "Accept")
		drained := make(chan struct{})
		go func() {
			l.Drain(t.Context())
			close(drained)
		}()
		await(t, l.drained, "draining the queue")
		select {
		case <-drained:
			t.Errorf("Drain returned before the first read, with a wait of %v", wait)
		case <-time.After(100 * time.Millisecond):
		}
		if _, err := nc.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		await(t, drained, "Drain")
	}
}

// A connection that has been silent for some time may be silent for ever.
func TestListenerDrainDoesNotWaitForSilentClients(t *testing.T) {
	l := listen(t)
	l.firstReadWait = time.Hour
	go func() { _ = echo(l) }()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	wantEcho(t, dial(t, l)) // so the silent one is accepted
	l.mu.Lock()
	l.lastAdmitted = l.lastAdmitted.Add(-time.Hour)
	l.mu.Unlock()
	drained := make(chan struct{})
	go func() {
		l.Drain(t.Context())
		close(drained)
	}()
	await(t, drained, "Drain")
}

func TestListenerDrainIsBounded(t *testing.T) {
	l := listen(t)
	dial(t, l) // and never accepted
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	l.Drain(ctx)
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("Accept works after Close")
	}
}

// A server that does not accept again, because its listener failed, is not waited for.
func TestListenerDrainAfterFailedAcceptReturns(t *testing.T) {
	l := listen(t)
	_ = l.Listener.Close()
	if _, err := l.Accept(); err == nil {
		t.Fatal("Accept works on a closed socket")
	}
	drained := make(chan struct{})
	go func() {
		l.Drain(t.Context())
		close(drained)
	}()
	await(t, drained, "Drain")
}

func TestListenerDrainLeavesHalfOfTheTime(t *testing.T) {
	start, deadline := time.Now(), time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	half, cancel := withHalfTimeout(ctx)
	defer cancel()
	ends, ok := half.Deadline()
	if earliest, latest := start.Add(deadline.Sub(start)/2), time.Now().Add(deadline.Sub(start)/2); !ok || ends.Before(earliest) || ends.After(latest) {
		t.Errorf("Drain ends at %v, want half of the time to %v", ends, deadline)
	}
}

// A server whose Accept fails during a shutdown would report a failed listener.
func TestListenerDrainWithoutTimeBlocksAccept(t *testing.T) {
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- echo(l) }()
	wantEcho(t, dial(t, l)) // so Accept is called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Drain(ctx)
	await(t, l.drained, "the end of the drain")
	select {
	case err := <-served:
		t.Errorf("Accept returned %v before Close", err)
	default:
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := await(t, served, "Accept"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: got %v, want net.ErrClosed", err)
	}
}

func TestListenerDrainAfterCloseReturns(t *testing.T) {
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Drain(t.Context())
	if _, err := l.Accept(); err == nil {
		t.Error("Accept works after Close")
	}
}

// A machine that stands still keeps clients and server from speaking, so its pauses do not count as silence.
func TestListenerDrainForgivesPausesOfTheMachine(t *testing.T) {
	for slept, want := range map[time.Duration]time.Duration{
		0: 0, time.Millisecond: 0, 10 * time.Millisecond: 0, 11 * time.Millisecond: time.Millisecond, 10*time.Millisecond + firstReadWait: firstReadWait,
	} {
		if got := oversleep(slept); got != want {
			t.Errorf("of %v asleep %v are forgiven, want %v", slept, got, want)
		}
	}
}
