package grpcapi_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/grpcapi"
)

// takeRequest returns a request about one user.
func takeRequest(user string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "house", Descriptors: []*common.RateLimitDescriptor{{
		Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
	}}}
}

// refundRequest returns a request that gives one hit back.
func refundRequest(user string) *pb.RateLimitRequest {
	m := takeRequest(user)
	m.Descriptors[0].IsNegativeHits = true
	return m
}

// wantCode fails the test if an error is not of that code.
func wantCode(t testing.TB, err error, code codes.Code) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Errorf("got %v (%v), want %v", got, err, code)
	}
}

func TestNewRequiresEngine(t *testing.T) {
	if _, err := grpcapi.New(nil, nil); err == nil {
		t.Error("a door opened without a judge")
	}
}

func TestConcurrentCallsAreCountedExactly(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		c := newClient(t, newEngine(t, store, strings.Replace(userRules, "requests_per_unit: 2", "requests_per_unit: 500", 1), nil), nil)
		var passed atomic.Int64
		var asking64 sync.WaitGroup
		for range 64 {
			asking64.Go(func() {
				for range 20 {
					r, err := c.ShouldRateLimit(t.Context(), takeRequest("ada"))
					if err != nil {
						t.Error(err)
						return
					}
					if r.GetOverallCode() == pb.RateLimitResponse_OK {
						passed.Add(1)
					}
				}
			})
		}
		asking64.Wait()
		if passed.Load() != 500 {
			t.Errorf("%d of 1280 passed, want 500", passed.Load())
		}
	})
}

func TestHealth(t *testing.T) {
	d, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	health := healthpb.NewHealthClient(dial(t, l))
	check := func(service string) string {
		t.Helper()
		r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return r.GetStatus().String()
	}
	wantHealth := func(service, state string) {
		t.Helper()
		if got := check(service); got != state {
			t.Errorf("the health of %q is %s, want %s", service, got, state)
		}
	}
	wantHealth("", "SERVING")
	wantHealth("ratelimit", "SERVING")
	wantHealth("something else", "NotFound")
	d.SetServing(false)
	wantHealth("ratelimit", "NOT_SERVING")
	wantHealth("", "SERVING")
	d.SetServing(true)
	wantHealth("ratelimit", "SERVING")
}

func TestReflection(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	stream, err := reflectionpb.NewServerReflectionClient(dial(t, l)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(m *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	list := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	const service = "envoy.service.ratelimit.v3.RateLimitService"
	if all := strings.Join(names, " "); !strings.Contains(all, service) || !strings.Contains(all, "grpc.health.v1.Health") {
		t.Errorf("the services are %s", all)
	}
	file := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service + ".ShouldRateLimit"},
	})
	if len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("nothing describes the method: %v", file)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// A slow store says when it is asked, and answers when it is let.
type blockingStore struct {
	penstock.Store
	called   chan struct{}
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
	d, l := startServer(t, newEngine(t, store, userRules, nil), nil)
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
	go func() { down <- d.Shutdown(t.Context()) }()
	wantHealthUpdate(t, watch, healthpb.HealthCheckResponse_NOT_SERVING) // while the call is under way
	waitForRefusal(t, l)
	select {
	case err := <-down:
		t.Fatalf("the door did not wait for the call: %v", err)
	default:
	}
	close(store.release)
	if err := <-answered; err != nil {
		t.Errorf("the call under way was dropped: %v", err)
	}
	if err := <-down; err != nil {
		t.Errorf("shutting down: %v", err)
	}
}

// wantHealthUpdate waits until somebody who watches is told.
func wantHealthUpdate(t *testing.T, watch healthpb.Health_WatchClient, state healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	r, err := watch.Recv()
	if err != nil || r.GetStatus() != state {
		t.Fatalf("watching tells %v, %v, want %v", r.GetStatus(), err, state)
	}
}

// waitForRefusal waits until nobody listens any more.
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
	d, l := startServer(t, newEngine(t, store, userRules, nil), nil)
	answered := make(chan error, 1)
	go func() {
		_, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), takeRequest("ada"))
		answered <- err
	}()
	<-store.called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	wantCode(t, <-answered, codes.Unavailable)
}

func TestServeAfterShutdownReturnsNil(t *testing.T) {
	d, err := grpcapi.New(newEngine(t, newMemory(), userRules, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(l); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

func TestCallDeadline(t *testing.T) {
	c := newClient(t, newEngine(t, newBlockingStore(), userRules, nil), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.ShouldRateLimit(ctx, takeRequest("ada"))
	wantCode(t, err, codes.DeadlineExceeded)
}

func TestCallCancellationReachesStore(t *testing.T) {
	store := newBlockingStore()
	j := newEngine(t, store, userRules, nil)
	c := newClient(t, j, nil)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-store.called
		leave()
	}()
	_, err := c.ShouldRateLimit(ctx, takeRequest("ada"))
	wantCode(t, err, codes.Canceled)
	waitForErrors(t, j, 1) // for the store was told that the caller has left
}

// waitForErrors waits until so many requests were not decided.
func waitForErrors(t *testing.T, j *engine.Engine, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var errs uint64
		for _, c := range j.RuleCounters() {
			errs += c.Errors.Load()
		}
		if errs == n {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d errors were counted, want %d", errs, n)
		case <-tick.C:
		}
	}
}

func TestStoreUnavailableIsAnError(t *testing.T) {
	away := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, errors.Join(errors.New("redis: connection refused"), penstock.ErrUnavailable)
	})
	_, err := newClient(t, newEngine(t, away, userRules, nil), nil).ShouldRateLimit(t.Context(), takeRequest("ada"))
	wantCode(t, err, codes.Unknown)
	if !strings.Contains(status.Convert(err).Message(), "connection refused") {
		t.Errorf("the error does not say why: %v", err)
	}
}

// A remoteListener has those who connect come from elsewhere.
type remoteListener struct{ net.Listener }

func (l remoteListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return remoteConn{c}, err
}

type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7} }

func TestRemoteRefundNeedsToken(t *testing.T) {
	store := newMemory()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, remoteListener{l}, newEngine(t, store, userRules, &engine.Options{Token: "secret"}), nil)
	c := pb.NewRateLimitServiceClient(dial(t, l))
	if _, err := c.ShouldRateLimit(t.Context(), takeRequest("ada")); err != nil {
		t.Fatal(err)
	}
	with := func(values ...string) context.Context {
		return metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": values})
	}
	for _, ctx := range []context.Context{t.Context(), with("Bearer wrong"), with("Bearer "), with("secre"), with("secret"), with("Basic secret"), with("Bearer wrong", "Bearer secret"), with("Bearer secret", "Bearer wrong")} {
		_, err := c.ShouldRateLimit(ctx, refundRequest("ada"))
		wantCode(t, err, codes.PermissionDenied)
	}
	if _, err := c.ShouldRateLimit(with("bearer secret"), refundRequest("nobody")); err != nil {
		t.Errorf("with the scheme in small letters: %v", err)
	}
	r, err := c.ShouldRateLimit(with("Bearer secret"), refundRequest("ada"))
	if err != nil || r.GetStatuses()[0].GetLimitRemaining() != 2 {
		t.Errorf("with the token: got %v, %v, want 2 remaining", r, err)
	}
}

func TestUnixSocketCountsAsLoopback(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, newEngine(t, newMemory(), userRules, nil), nil)
	if _, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), refundRequest("ada")); err != nil {
		t.Error(err)
	}
}

func TestObserveLatencyEveryCall(t *testing.T) {
	var told atomic.Int64
	c := newClient(t, newEngine(t, newMemory(), userRules, nil), &grpcapi.Options{ObserveLatency: func(d time.Duration) {
		if d > 0 {
			told.Add(1)
		}
	}})
	for range 3 { // the last one is refused
		if _, err := c.ShouldRateLimit(t.Context(), takeRequest("ada")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{}); err == nil {
		t.Error("a request without a domain was decided")
	}
	if told.Load() != 4 {
		t.Errorf("told of %d calls, want 4", told.Load())
	}
}
