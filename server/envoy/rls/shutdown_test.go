package rls_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// A blockingStore signals each call, and decides after release is closed.
type blockingStore struct {
	penstock.Store
	called  chan struct{}
	release chan struct{}
}

func newBlockingStore() *blockingStore {
	return &blockingStore{Store: newMemory(), called: make(chan struct{}, 100), release: make(chan struct{})}
}

func (s *blockingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.called <- struct{}{}
	select {
	case <-s.release:
		return s.Store.Take(ctx, r)
	case <-ctx.Done():
		return penstock.Decision{}, errors.Join(penstock.ErrUnavailable, ctx.Err())
	}
}

func TestShutdownFinishesCalls(t *testing.T) {
	store := newBlockingStore()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))) // no other program listens there later
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, l, newEngine(t, store, userRules, nil), nil)
	conn := dial(t, l)
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	wantHealthUpdate(t, watch, healthpb.HealthCheckResponse_SERVING)

	answered := make(chan error, 1)
	go func() {
		r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), takeRequest("ada"))
		if err == nil && r.GetOverallCode() != pb.RateLimitResponse_OK {
			err = errors.New(r.String())
		}
		answered <- err
	}()
	<-store.called

	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	wantHealthUpdate(t, watch, healthpb.HealthCheckResponse_NOT_SERVING) // while the call is in flight
	waitForRefusal(t, l)
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned before the call: %v", err)
	default:
	}
	close(store.release)
	if err := <-answered; err != nil {
		t.Errorf("the call in flight failed: %v", err)
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// wantHealthUpdate waits for the next status of a Watch call.
func wantHealthUpdate(t *testing.T, watch healthpb.Health_WatchClient, state healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	r, err := watch.Recv()
	if err != nil || r.GetStatus() != state {
		t.Fatalf("health update: got %v, %v, want %v", r.GetStatus(), err, state)
	}
}

// waitForRefusal waits until new connections are refused.
func waitForRefusal(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		conn, err := net.DialTimeout(l.Addr().Network(), l.Addr().String(), time.Second)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
	t.Fatal("new connections are still accepted")
}

func TestShutdownDeadlineAbortsCalls(t *testing.T) {
	store := newBlockingStore()
	s, l := startServer(t, newEngine(t, store, userRules, nil), nil)
	answered := make(chan error, 1)
	go func() {
		_, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), takeRequest("ada"))
		answered <- err
	}()
	<-store.called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: got %v, want context.Canceled", err)
	}
	wantCode(t, <-answered, codes.Unavailable)
}

func TestServeAfterShutdownReturnsNil(t *testing.T) {
	s, err := rls.New(newEngine(t, newMemory(), userRules, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

// A call that was sent before the shutdown is answered even if its connection waited in
// the accept queue.
func TestShutdownServesQueuedConnections(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("connlimit cannot inspect the accept queue")
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := connlimit.New(tcp, connlimit.Options{Max: 100})
	clients := make([]*h2Client, 10)
	for i := range clients {
		clients[i] = newH2Client(t, l)
		if !clients[i].startCall(1) || clients[i].WriteData(1, true, grpcMessage(userRequest("ada"))) != nil {
			t.Fatal("the call could not be sent")
		}
	}
	s := serveOn(t, l, newEngine(t, newMemory(), userRules, nil), nil)
	l.Drain(t.Context())
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	for i, c := range clients {
		answered := c.readUntil(func(f http2.Frame) bool {
			data, ok := f.(*http2.DataFrame)
			return ok && len(data.Data()) > 0
		})
		if !answered {
			t.Errorf("the call of queued connection %d was not answered", i)
		}
		_ = c.conn.Close()
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// grpcMessage returns a message with gRPC's prefix: not compressed, and its length.
func grpcMessage(data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(data))), data...)
}
