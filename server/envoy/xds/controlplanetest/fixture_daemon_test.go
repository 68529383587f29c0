// Package controlplanetest_test runs the daemon against go-control-plane, the xDS server of
// Envoy Gateway. It is a module of its own, so that users of penstock do not download it.
package controlplanetest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
)

// patience bounds each wait for what must happen; it only matters when a test fails.
const patience = 2 * time.Minute

// redis is shared by the tests, each with a prefix of its own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}

// node is the name by which Envoy Gateway knows its rate limit service.
const node = "envoy-ratelimit"

// A controlPlane serves snapshots of rules.
type controlPlane struct {
	t      *testing.T
	addr   string
	cache  cache.SnapshotCache
	server *grpc.Server

	mu       sync.Mutex
	requests []*discovery.DiscoveryRequest
}

// startControlPlane serves on an address, or without one on a port that stays the test's while the
// control plane is stopped.
func startControlPlane(t *testing.T, addr string, o ...grpc.ServerOption) *controlPlane {
	t.Helper()
	if addr == "" {
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))
	}
	l, err := net.Listen("tcp", addr) //nolint:noctx // the listener of a test
	if err != nil {
		t.Fatal(err)
	}
	c := &controlPlane{t: t, addr: l.Addr().String(), cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil), server: grpc.NewServer(o...)}
	callbacks := xds.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests = append(c.requests, r)
		return nil
	}}
	ctx, cancel := context.WithCancel(context.Background())
	discovery.RegisterAggregatedDiscoveryServiceServer(c.server, xds.NewServer(ctx, c.cache, callbacks))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.server.Serve(l) // until Stop
	}()
	t.Cleanup(func() {
		c.server.Stop()
		cancel()
		<-done
	})
	return c
}

// serve replaces the rules.
func (c *controlPlane) serve(version string, rules ...*config.RateLimitConfig) {
	c.t.Helper()
	all := []types.Resource{}
	for _, r := range rules {
		all = append(all, r)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: all})
	if err == nil {
		err = c.cache.SetSnapshot(context.Background(), node, snapshot)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// answered reports whether a client accepted a version, or rejected one for a reason.
func (c *controlPlane) answered(version, reason string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		rejected := r.GetErrorDetail() != nil
		if reason == "" && !rejected && r.GetVersionInfo() == version || reason != "" && rejected && strings.Contains(r.GetErrorDetail().GetMessage(), reason) {
			return true
		}
	}
	return false
}

func (c *controlPlane) awaitAccepted(version string) {
	c.t.Helper()
	await(c.t, "acknowledgment of version "+version, func() bool { return c.answered(version, "") })
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for ; !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// A daemon is a running server with a client of its gRPC API.
type daemon struct {
	*server.Server
	log    *logBuffer
	client pb.RateLimitServiceClient
	health health.HealthClient
	end    func()
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// startDaemon starts the daemon in place of envoyproxy/ratelimit, with its variables.
func startDaemon(t *testing.T, environ ...string) *daemon {
	t.Helper()
	c, err := server.LoadRatelimitConfig(map[string]string{"grpc": "127.0.0.1:0", "http": "", "admin": "127.0.0.1:0"}, append([]string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=" + node, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr,
		fmt.Sprintf("CACHE_KEY_PREFIX=%s%d", t.Name(), time.Now().UnixNano()), "LOG_LEVEL=debug", "REDIS_TIMEOUT=1m",
	}, environ...))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{log: &logBuffer{}}
	if d.Server, err = server.New(t.Context(), c, slog.New(slog.NewTextHandler(d.log, nil))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- d.Run(ctx)
		close(done)
	}()
	d.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(d.end)
	d.connect(t)
	return d
}

func (d *daemon) connect(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(d.Addr("grpc").String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.client, d.health = pb.NewRateLimitServiceClient(conn), health.NewHealthClient(conn)
}

func (d *daemon) isServing(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := d.health.Check(ctx, &health.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetStatus() == health.HealthCheckResponse_SERVING
}
