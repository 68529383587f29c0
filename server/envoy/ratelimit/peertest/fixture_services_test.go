// Package peertest_test holds the daemon, in the place of envoyproxy/ratelimit, against that service
// itself: both get the same environment, rules and requests. It is a module of its own, so that
// make test does not build that service.
package peertest_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var peerDir = flag.String("peer.dir", "", "checkout of envoyproxy/ratelimit to build; main of July 2026 or newer")

// redis is shared by both services, each with a prefix of its own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}

// peer returns the path of envoyproxy/ratelimit, which it builds once.
func peer(t *testing.T) string {
	t.Helper()
	if *peerDir == "" {
		t.Fatal("want -peer.dir, a checkout of envoyproxy/ratelimit: make peer PEER=CHECKOUT")
	}
	path, err := buildPeer()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildPeer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(redis.Socket), "peer") // which ends with the tests
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ratelimit")
	_, err = run(*peerDir, "go", "build", "-trimpath", "-o", path, "./src/service_cmd")
	return path, err
})

func run(dir, name string, args ...string) (string, error) {
	c := exec.Command(name, args...) //nolint:noctx // ends with the test
	c.Dir, c.Env = dir, append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	var out, failed bytes.Buffer
	c.Stdout, c.Stderr = &out, &failed
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, failed.String())
	}
	return out.String(), nil
}

// A service is the daemon or its peer.
type service struct {
	pb.RateLimitServiceClient
	statsd *statsdServer
	log    *logBuffer
}

// environ returns the environment of a service with the rule files of a directory.
func environ(rules, prefix string, s *statsdServer, mode []string) []string {
	return append([]string{
		"RUNTIME_ROOT=" + rules, "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=1m",
		"CACHE_KEY_PREFIX=" + prefix, "USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + s.port, "STATS_FLUSH_INTERVAL=100ms",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "LOG_LEVEL=error",
	}, mode...)
}

// startPeer starts envoyproxy/ratelimit.
func startPeer(t *testing.T, rules string, mode []string) *service {
	t.Helper()
	s := &service{statsd: startStatsd(t), log: &logBuffer{}}
	c := exec.Command(peer(t)) //nolint:noctx // killed with the test
	c.Env = environ(rules, "peer/"+t.Name(), s.statsd, mode)
	port := strconv.Itoa(redistest.FreePort(t))
	for _, name := range []string{"PORT", "DEBUG_PORT"} {
		c.Env = append(c.Env, name+"="+strconv.Itoa(redistest.FreePort(t)))
	}
	c.Env = append(c.Env, "GRPC_PORT="+port)
	c.Stdout, c.Stderr = s.log, s.log
	redistest.DieWithParent(c)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	s.connect(t, net.JoinHostPort("127.0.0.1", port))
	return s
}

// startDaemon starts the daemon in its place.
func startDaemon(t *testing.T, rules string, mode []string) *service {
	t.Helper()
	s := &service{statsd: startStatsd(t), log: &logBuffer{}}
	prefix := strings.Map(func(r rune) rune {
		if r == '#' || r == '\'' {
			return '-'
		}
		return r
	}, "ours/"+t.Name())
	c, err := server.LoadRatelimitConfig(nil, append(environ(rules, prefix, s.statsd, mode), "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := server.New(t.Context(), c, slog.New(slog.NewTextHandler(s.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.connect(t, d.Addr("grpc").String())
	return s
}

func (s *service) connect(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.RateLimitServiceClient = pb.NewRateLimitServiceClient(conn)
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
