package rls_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

// redis is a server with a clock that the tests set. Tests share it, each with its own
// key prefix.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		setClock(noon)
	}))
}

// noon is the time at the beginning of a test.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// now is the time of both kinds of store, in Unix nanoseconds.
var now atomic.Int64

func clockTime() time.Time { return time.Unix(0, now.Load()) }

func setClock(t time.Time) {
	now.Store(t.UnixNano())
	redis.Clock.Set(t)
}

var prefixes atomic.Int64

// onBothStores runs a test with each kind of store, at noon.
func onBothStores(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	setClock(noon)
	t.Run("memory", func(t *testing.T) { test(t, newMemory()) })
	setClock(noon)
	t.Run("redis", func(t *testing.T) { test(t, newRedisStore(t)) })
}

func newMemory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{
		Now:  clockTime,
		Tick: time.Millisecond,
	})
}

func newRedisStore(t *testing.T) penstock.Store {
	store, err := redisstore.Open(context.Background(), "unix://"+redis.Socket, &redisstore.Options{
		Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
		Timeout: time.Minute, // long enough for a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// newEngine returns an engine with the rules of one file.
func newEngine(t testing.TB, store penstock.Store, yaml string, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(yaml)})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(store, o)
	e.SetRules(set)
	return e
}

// userRules allow each user two requests an hour.
const userRules = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
`

// startServer serves on a free port until the test ends.
func startServer(t testing.TB, e *engine.Engine, o *rls.Options) (*rls.Server, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, e, o), l
}

// serveOn serves on a listener until the test ends.
func serveOn(t testing.TB, l net.Listener, e *engine.Engine, o *rls.Options) *rls.Server {
	t.Helper()
	s, err := rls.New(e, o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutting down: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return s
}

// dial returns a client connection that is closed when the test ends.
func dial(t testing.TB, l net.Listener, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	target := "passthrough:///" + l.Addr().String()
	if l.Addr().Network() == "unix" {
		target = "unix:" + l.Addr().String()
	}
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// newClient returns a client of a new server.
func newClient(t testing.TB, e *engine.Engine, o *rls.Options) pb.RateLimitServiceClient {
	t.Helper()
	_, l := startServer(t, e, o)
	return pb.NewRateLimitServiceClient(dial(t, l))
}
