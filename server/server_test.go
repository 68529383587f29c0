package server_test

import (
	"context"
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
	"github.com/penstock-io/penstock/server"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const shopRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
`

// onBothStores runs a test on a server in memory and on one on Redis.
func onBothStores(t *testing.T, test func(t *testing.T, d *daemon)) {
	for name, store := range map[string]string{"memory": "memory:", "redis": "redis://" + redis.Addr} {
		t.Run(name, func(t *testing.T) {
			prefix := strings.NewReplacer("/", "_", "'", "").Replace(t.Name())
			test(t, start(t, map[string]string{
				"store": store, "redis-prefix": prefix, "redis-timeout": "10s", "rules": write(t, "rules.yaml", shopRules),
			}))
		})
	}
}

// Whoever names the same rule, or the same limit, meets the same counter.
func TestEveryDoorMeetsTheSameCounter(t *testing.T) {
	onBothStores(t, func(t *testing.T, d *daemon) {
		byDomain := `{"domain":"shop","cost":2,"descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`
		if status, answer := post(t, d.addr("http"), byDomain); status != 200 || !strings.Contains(answer, `"remaining":3`) {
			t.Errorf("HTTP: %d %s", status, answer)
		}
		if s := askEnvoy(t, dialGRPC(t, d, nil), "42"); s.LimitRemaining != 2 {
			t.Errorf("gRPC: %v", s)
		}
		if _, answer := get(t, "http://"+d.addr("admin")+"/v1/keys?domain=shop&user=42"); !strings.Contains(answer, `"remaining": 2`) {
			t.Errorf("admin: %s", answer)
		}
		if status, answer := post(t, d.addr("http"), byDomain); status != 200 || !strings.Contains(answer, `"remaining":0`) {
			t.Errorf("HTTP, the last of it: %d %s", status, answer)
		}
		if s := askEnvoy(t, dialGRPC(t, d, nil), "42"); s.Code != envoyrls.RateLimitResponse_OVER_LIMIT {
			t.Errorf("gRPC, with nothing left: %v", s)
		}

		// CL.THROTTLE's limit has a name, by which others reach it.
		if got := throttle(t, d, "k 15 1 3600 3"); got[1] != 16 || got[2] != 13 {
			t.Errorf("RESP: %v", got)
		}
		look := `{"key":"k","limit":"1/1h burst=16 name=cl.throttle","cost":1}`
		if _, answer := post(t, d.addr("http"), look); !strings.Contains(answer, `"remaining":12`) {
			t.Errorf("HTTP, under CL.THROTTLE's limit: %s", answer)
		}
		if got := throttle(t, d, "k 15 1 3600 0"); got[2] != 12 {
			t.Errorf("RESP, after HTTP: %v", got)
		}
	})
}

// dialGRPC connects to the gRPC door, in clear text if there are no credentials.
func dialGRPC(t *testing.T, d *daemon, c credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if c == nil {
		c = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(d.addr("grpc"), grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// askEnvoy asks for a unit of a user, as Envoy does.
func askEnvoy(t *testing.T, conn *grpc.ClientConn, user string) *envoyrls.RateLimitResponse_DescriptorStatus {
	t.Helper()
	answer, err := shouldRateLimit(conn, user)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Statuses[0]
}

func shouldRateLimit(conn *grpc.ClientConn, user string) (*envoyrls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return envoyrls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &envoyrls.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
		}},
	})
}

// throttle asks CL.THROTTLE with arguments.
func throttle(t *testing.T, d *daemon, arguments string) []int64 {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{d.addr("resp")}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	words := append([]string{"CL.THROTTLE"}, strings.Fields(arguments)...)
	answer, err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// Everything that a server started ends with it.
func TestNothingIsLeftBehind(t *testing.T) {
	http.DefaultClient.CloseIdleConnections()
	before := runtime.NumGoroutine()
	onBothStores(t, func(t *testing.T, d *daemon) {
		post(t, d.addr("http"), `{"key":"k","limit":"1/1h"}`)
		throttle(t, d, "k 15 1 3600")
		conn := dialGRPC(t, d, nil)
		askEnvoy(t, conn, "42")
		get(t, "http://"+d.addr("admin")+"/metrics")
		d.end()
		_ = conn.Close()
	})
	http.DefaultClient.CloseIdleConnections()
	await(t, func() string {
		stacks := make([]byte, 1<<20)
		return "as few goroutines as before:\n" + string(stacks[:runtime.Stack(stacks, true)])
	}, func() bool { return runtime.NumGoroutine() <= before })
}

// What cannot be opened leaves nothing open.
func TestAFailedStartClosesWhatItOpened(t *testing.T) {
	taken := listen(t)
	free := listen(t)
	addr := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	c := load(t, map[string]string{"grpc": addr, "admin": taken.Addr().String()})
	_, err := server.New(t.Context(), c, nil)
	if err == nil || !strings.Contains(err.Error(), "door admin: listen tcp "+taken.Addr().String()) {
		t.Errorf("got %v, want that the address is in use", err)
	}
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatalf("the gRPC door was left open: %v", err)
	}
	_ = again.Close()
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

func TestAnAdminDoorForOthersWantsAToken(t *testing.T) {
	_, err := server.New(t.Context(), load(t, map[string]string{"admin": ":0"}), nil)
	if err == nil || !strings.Contains(err.Error(), "door admin: ") || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v, want that a token is missing", err)
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

// A door takes so many connections; others are closed, and everybody inside goes on.
func TestConnectionsAreCounted(t *testing.T) {
	d := start(t, map[string]string{"max-connections": "2"})
	inside := []net.Conn{hold(t, d), hold(t, d)}
	for range 3 {
		conn, err := net.Dial("tcp", d.addr("http"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); err != nil {
			t.Logf("one too many: %v", err)
		}
		_ = conn.Close()
	}
	for _, conn := range inside {
		request(t, conn)
	}
	_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
	for _, want := range []string{`penstock_connections{door="http"} 2`, `penstock_connections_refused_total{door="http"} 3`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics do not have %s", want)
		}
	}
	for range 3 {
		if _, err := net.Dial("tcp", d.addr("resp")); err != nil {
			t.Fatal(err)
		}
	}
	d.await("a Redis client too many", func() bool {
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		return strings.Contains(metrics, `penstock_connections_refused_total{door="resp"} 1`+"\n")
	})
	_ = inside[0].Close()
	d.await("room for another", func() bool {
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		return strings.Contains(metrics, `penstock_connections{door="http"} 1`+"\n")
	})
	hold(t, d)
}

// hold opens a connection to the HTTP door and keeps it.
func hold(t *testing.T, d *daemon) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", d.addr("http"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request(t, conn)
	return conn
}

// request asks for health on a connection, and reads the answer.
func request(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
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

// Rules are replaced between requests: each is decided by one set of them or by the
// other, whatever happens meanwhile.
func TestRulesAreReplacedUnderLoad(t *testing.T) {
	const name = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: %}}]\n"
	path := write(t, "rules.yaml", strings.Replace(name, "%", "1000000", 1))
	d := start(t, map[string]string{"rules": path})
	goroutines := runtime.NumGoroutine()

	var stop atomic.Bool
	var asking sync.WaitGroup
	conn := dialGRPC(t, d, nil)
	for range 4 {
		asking.Go(func() {
			for !stop.Load() {
				answer, err := shouldRateLimit(conn, "42")
				if err != nil {
					t.Errorf("no answer: %v", err)
					return
				}
				l := answer.Statuses[0].CurrentLimit.GetRequestsPerUnit()
				if answer.OverallCode != envoyrls.RateLimitResponse_OK || l != 1_000_000 && l != 2_000_000 {
					t.Errorf("decided by neither: %v", answer)
					return
				}
			}
		})
	}
	const rounds = 30
	for i := range rounds {
		replace(t, path, strings.Replace(name, "%", []string{"2000000", "1000000"}[i%2], 1))
		d.Reload()
		want := i + 2
		d.await("loaded once more", func() bool { return strings.Count(d.log.String(), "rules loaded") >= want })
	}
	stop.Store(true)
	asking.Wait()
	d.await("as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines+20 })
}

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

// Whoever reads the log may stop reading. Decisions go on, also when Redis goes.
func TestALogThatIsStuckHoldsNobodyUp(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	path, redis := write(t, "rules.yaml", shopRules), own(t)
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
		_, _ = io.WriteString(writer, strings.Repeat("nobody reads this\n", 1<<16)) // more than a pipe holds
	}()
	if err := os.WriteFile(path, []byte("nonsense: true"), 0o600); err != nil { // which is told to the log
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
