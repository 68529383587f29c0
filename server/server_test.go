package server_test

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const shopRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
`

// onAllStores runs a test with each kind of store. The key prefix is unique, so
// that runs do not see each other's counters.
func onAllStores(t *testing.T, test func(t *testing.T, d *daemon)) {
	stores := map[string]string{"memory": "memory:", "redis": "redis://" + redis.Addr, "sqlite": sqliteFile(t)}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			test(t, start(t, map[string]string{
				"store": store, "redis-prefix": rand.Text(), "redis-timeout": "10s", "sql-timeout": "10s", "rules": writeRules(t, shopRules),
			}))
		})
	}
}

// APIs share a counter where they name the same rule and entries.
func TestServerAPIsShareCountersOfARule(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		byDomain := `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`
		if status, answer := post(t, d.addr("http"), byDomain); status != 200 || !strings.Contains(answer, `"remaining":4`) {
			t.Errorf("HTTP: %d %s", status, answer)
		}
		if s := takeGRPC(t, dialGRPC(t, d, nil), "42"); s.LimitRemaining != 3 {
			t.Errorf("gRPC: %v", s)
		}
		if status, _ := get(t, "http://"+d.addr("http")+"/v1/auth?domain=shop&user=42"); status != 200 {
			t.Errorf("/v1/auth: %d", status)
		}
		if left := remaining(t, d, "DOMAIN", "shop", "user", "42"); left != 1 {
			t.Errorf("RESP: %d left, want 1", left)
		}
		if _, answer := get(t, "http://"+d.addr("admin")+"/v1/keys?domain=shop&user=42"); !strings.Contains(answer, `"remaining": 1`) {
			t.Errorf("admin: %s", answer)
		}
		if left := remaining(t, d, "DOMAIN", "shop", "user", "42"); left != 0 {
			t.Errorf("RESP, last unit: %d left, want 0", left)
		}
		if s := takeGRPC(t, dialGRPC(t, d, nil), "42"); s.Code != envoyrls.RateLimitResponse_OVER_LIMIT {
			t.Errorf("gRPC, exhausted: %v", s)
		}
		if status, answer := post(t, d.addr("http"), byDomain); status != 429 {
			t.Errorf("HTTP, exhausted: %d %s", status, answer)
		}
	})
}

// APIs share a counter where requests bring the same key and limit, however it is written.
func TestServerAPIsShareCountersOfALimit(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		if _, answer := post(t, d.addr("http"), `{"key":"user:42","limit":"5/1h"}`); !strings.Contains(answer, `"remaining":4`) {
			t.Errorf("HTTP: %s", answer)
		}
		if left := remaining(t, d, "KEY", "user:42", "LIMIT", "5/60m burst=5"); left != 3 {
			t.Errorf("RESP: %d left, want 3", left)
		}
		if status, _ := get(t, "http://"+d.addr("http")+"/v1/auth?key=user:42&limit=5/1h"); status != 200 {
			t.Errorf("/v1/auth: %d", status)
		}
		if _, answer := get(t, "http://"+d.addr("admin")+"/v1/keys?limit=5/1h&key=user:42"); !strings.Contains(answer, `"remaining": 2`) {
			t.Errorf("admin: %s", answer)
		}
		if left := remaining(t, d, "KEY", "user:42", "LIMIT", "6/1h"); left != 5 {
			t.Errorf("another limit: %d left, want 5: a counter of its own", left)
		}
	})
}

// CL.THROTTLE has a counter for each key, whatever the parameters, under a name of its own.
func TestServerThrottleHasItsOwnCounters(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		if got := throttle(t, d, "k 4 5 3600 3"); got[1] != 5 || got[2] != 2 {
			t.Errorf("CL.THROTTLE: %v", got)
		}
		if left := remaining(t, d, "KEY", "k", "LIMIT", "5/1h"); left != 4 {
			t.Errorf("the same key and limit: %d left, want 4: a counter of its own", left)
		}
		if left := remaining(t, d, "KEY", "k", "LIMIT", "5/1h name=cl.throttle"); left != 1 {
			t.Errorf("the same key and name: %d left, want 1: the counter of CL.THROTTLE", left)
		}
		if got := throttle(t, d, "k 4 5 3600 0"); got[2] != 1 {
			t.Errorf("CL.THROTTLE after the take: %v", got)
		}
	})
}

// remaining takes one unit by PENSTOCK.TAKE, and returns how many are left.
func remaining(t *testing.T, d *daemon, arguments ...string) int64 {
	t.Helper()
	client := dialRESP(t, d)
	defer client.Close()
	reply, err := client.Do(t.Context(), client.B().Arbitrary("PENSTOCK.TAKE").Args(arguments...).Build()).AsMap()
	if err != nil {
		t.Fatal(err)
	}
	field := reply["remaining"]
	left, err := field.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// dialGRPC connects to the gRPC API, in plaintext without credentials.
func dialGRPC(t *testing.T, d *daemon, c credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if c == nil {
		c = insecure.NewCredentials()
	}
	traced := func(ctx context.Context, method string, r, answer any, c *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if d.trace != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", d.trace)
		}
		return call(ctx, method, r, answer, c, o...)
	}
	conn, err := grpc.NewClient(d.addr("grpc"), grpc.WithTransportCredentials(c), grpc.WithUnaryInterceptor(traced))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// takeGRPC takes one unit for a user, as Envoy does.
func takeGRPC(t *testing.T, conn *grpc.ClientConn, user string) *envoyrls.RateLimitResponse_DescriptorStatus {
	t.Helper()
	answer, err := shouldRateLimit(conn, user)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Statuses[0]
}

func shouldRateLimit(conn *grpc.ClientConn, user string) (*envoyrls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return envoyrls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &envoyrls.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
		}},
	})
}

func dialRESP(t *testing.T, d *daemon) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{d.addr("resp")}, DisableCache: true, ForceSingleClient: true,
		Dialer: net.Dialer{Timeout: testTimeout}, ConnWriteTimeout: testTimeout, // for a starved machine
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// throttle runs CL.THROTTLE with arguments.
func throttle(t *testing.T, d *daemon, arguments string) []int64 {
	t.Helper()
	client := dialRESP(t, d)
	defer client.Close()
	words := append([]string{"CL.THROTTLE"}, strings.Fields(arguments)...)
	answer, err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// With connections open and no time to wait, Run ends without an error.
func TestServerShutdownGraceOfZeroIsNoError(t *testing.T) {
	d := start(t, map[string]string{"shutdown-grace": "0s"})
	for _, listener := range []string{"grpc", "http", "resp", "admin"} {
		conn, err := net.Dial("tcp", d.addr(listener))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	d.end() // fails the test if Run returns an error
}

func TestServerRunLeavesNoGoroutines(t *testing.T) {
	http.DefaultClient.CloseIdleConnections()
	before := runtime.NumGoroutine()
	onAllStores(t, func(t *testing.T, d *daemon) {
		post(t, d.addr("http"), `{"key":"k","limit":"1/1h"}`)
		throttle(t, d, "k 15 1 3600")
		conn := dialGRPC(t, d, nil)
		takeGRPC(t, conn, "42")
		get(t, "http://"+d.addr("admin")+"/metrics")
		d.end()
		_ = conn.Close()
	})
	http.DefaultClient.CloseIdleConnections()
	await(t, func() string {
		stacks := make([]byte, 1<<20)
		return "no more goroutines than before:\n" + string(stacks[:runtime.Stack(stacks, true)])
	}, func() bool { return runtime.NumGoroutine() <= before })
}

func TestNewFailureClosesListeners(t *testing.T) {
	taken := listen(t)
	addr := reserveAddr(t)
	c := load(t, map[string]string{"grpc": addr, "admin": taken.Addr().String()})
	_, err := server.New(t.Context(), c, nil)
	if err == nil || !strings.Contains(err.Error(), "listener admin: listen tcp "+taken.Addr().String()) {
		t.Errorf("got %v, want address in use", err)
	}
	await(t, func() string { return "the gRPC listener to be closed" }, func() bool {
		again, err := net.Listen("tcp", addr)
		if err == nil {
			_ = again.Close()
		}
		return err == nil
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestNewRemoteAdminListenerRequiresToken(t *testing.T) {
	_, err := server.New(t.Context(), load(t, map[string]string{"admin": ":0"}), nil)
	if err == nil || !strings.Contains(err.Error(), "listener admin: ") || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v, want missing token", err)
	}
	d := start(t, map[string]string{"admin": ":0", "token": "open sesame"})
	_, port, _ := net.SplitHostPort(d.addr("admin"))
	if status, _ := get(t, "http://127.0.0.1:"+port+"/metrics"); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, _ := get(t, "http://127.0.0.1:"+port+"/readyz"); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
}

// Connections over the limit are closed; open ones are not affected.
func TestServerSkipsTrustedProxies(t *testing.T) {
	d := start(t, map[string]string{"trusted-proxies": "10.0.0.0/8"})
	for i, c := range []struct {
		forwardedFor string
		want         int
	}{
		{"203.0.113.9, 10.0.0.1", http.StatusOK},
		{"203.0.113.9, 10.0.0.2", http.StatusTooManyRequests},
		{"203.0.113.9, 192.168.0.1", http.StatusOK}, // not trusted, so the client
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.addr("http")+"/v1/auth?limit=1/1h&key=address:X-Forwarded-For", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", c.forwardedFor)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if read(t, answer); answer.StatusCode != c.want {
			t.Errorf("request %d: X-Forwarded-For: %s: got %d, want %d", i, c.forwardedFor, answer.StatusCode, c.want)
		}
	}
}

func TestServerLimitsConnections(t *testing.T) {
	d := start(t, map[string]string{"max-connections": "2"})
	open := []net.Conn{connect(t, d), connect(t, d)}
	for range 3 {
		conn, err := net.Dial("tcp", d.addr("http"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); err != nil {
			t.Logf("over the limit: %v", err)
		}
		_ = conn.Close()
	}
	for _, conn := range open {
		request(t, conn)
	}
	_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
	for _, want := range []string{`penstock_connections{listener="http"} 2`, `penstock_connections_refused_total{listener="http"} 3`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for range 3 {
		conn, err := net.Dial("tcp", d.addr("resp"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // not earlier, by its finalizer
	}
	d.await("a refused Redis client", func() bool {
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		return strings.Contains(metrics, `penstock_connections_refused_total{listener="resp"} 1`+"\n")
	})
	_ = open[0].Close()
	d.await("one open connection", func() bool {
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		return strings.Contains(metrics, `penstock_connections{listener="http"} 1`+"\n")
	})
	connect(t, d)
}

// connect opens an HTTP connection and sends a request.
func connect(t *testing.T, d *daemon) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", d.addr("http"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request(t, conn)
	return conn
}

// request sends a health check on a connection, and reads the response.
func request(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, buffer := "", make([]byte, 1<<12)
	for !strings.HasSuffix(answer, "\r\n\r\nOK") {
		n, err := conn.Read(buffer)
		if answer += string(buffer[:n]); err != nil {
			t.Fatalf("%v after %q", err, answer)
		}
	}
}

// Each request is decided by the old rules or by the new ones, never by a mix.
func TestServerReloadsRulesUnderLoad(t *testing.T) {
	const name = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: %}}]\n"
	path := writeRules(t, strings.Replace(name, "%", "1000000", 1))
	d := start(t, map[string]string{"rules": path})
	goroutines := runtime.NumGoroutine()

	var stop atomic.Bool
	var callers sync.WaitGroup
	conn := dialGRPC(t, d, nil)
	for range 4 {
		callers.Go(func() {
			for !stop.Load() {
				answer, err := shouldRateLimit(conn, "42")
				if err != nil {
					t.Errorf("request failed: %v", err)
					return
				}
				l := answer.Statuses[0].CurrentLimit.GetRequestsPerUnit()
				if answer.OverallCode != envoyrls.RateLimitResponse_OK || l != 1_000_000 && l != 2_000_000 {
					t.Errorf("decided by neither set of rules: %v", answer)
					return
				}
			}
		})
	}
	const rounds = 30
	for i := range rounds {
		replace(t, path, seal(strings.Replace(name, "%", []string{"2000000", "1000000"}[i%2], 1)))
		d.Reload()
		want := i + 2
		d.await("rules loaded", func() bool { return strings.Count(d.log.String(), "rules loaded") >= want })
	}
	stop.Store(true)
	callers.Wait()
	d.await("no more goroutines than before", func() bool { return runtime.NumGoroutine() <= goroutines+20 })
}

// writeRules writes a rule file that takes effect at once.
func writeRules(t *testing.T, text string) (path string) {
	t.Helper()
	return write(t, "rules.yaml", seal(text))
}

func seal(text string) string { return string(rules.Seal([]byte(text))) }

// replace renames a new file over an old one, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	next := filepath.Join(t.TempDir(), "next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// A log that is not read must not block decisions, even while Redis goes down.
func TestServerDecidesWhileLogBlocks(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	path, redis := writeRules(t, shopRules), startRedis(t)
	settings := map[string]string{"rules": path, "store": "redis://" + redis.Addr}
	s, err := server.New(t.Context(), load(t, settings), slog.New(slog.NewTextHandler(writer, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	filled := make(chan struct{})
	go func() {
		defer close(filled)
		_, _ = io.WriteString(writer, strings.Repeat("not read\n", 1<<16)) // more than a pipe holds
	}()
	if err := os.WriteFile(path, []byte("nonsense: true"), 0o600); err != nil { // so that the reload logs an error
		t.Fatal(err)
	}
	s.Reload()
	redis.Kill()
	for range 100 {
		if status, answer := post(t, s.Addr("http").String(), `{"key":"k","limit":"1000/1h"}`); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	<-filled
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	_ = writer.Close()
}
