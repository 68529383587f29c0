package respapi

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// runTool runs one of Redis's own programs against the server.
func runTool(t *testing.T, addr, stdin, tool string, args ...string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, append([]string{"-p", port}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func TestServerWorksWithRedisCLI(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			testRedisCLI(t, startServer(t, newServer(t, store, nil, &engine.Options{Token: "secret"}, nil)))
		})
	}
}

func testRedisCLI(t *testing.T, addr string) {
	for _, line := range []struct{ args, want string }{
		{"cl.throttle k 15 30 60", "0\n16\n15\n-1\n2\n"},
		{"-3 cl.throttle k 15 30 60", "0\n16\n14\n-1\n4\n"},
		{"exists k", "1\n"},
		{"-a secret --no-auth-warning del k", "1\n"},
		{"get k", "\n"},
		{"-3 ping", "PONG\n"},
		{"-n 0 echo hello", "hello\n"},
		{"cl.throttle k fifteen 30 60", "Cell error: Store error: Couldn't parse as integer: fifteen\n\n"},
		{"PENSTOCK.TAKE KEY k LIMIT 3/1m COST 2", "allowed\n1\ngranted\n2\nlimit\n3\nremaining\n1\nretry_after_ms\n0\nreset_after_ms\n40000\ndelay_ms\n0\nsource\nstore\n"},
		{"-3 penstock.take key j limit 3/1m", "allowed 1\ngranted 1\nlimit 3\nremaining 2\nretry_after_ms 0\nreset_after_ms 20000\ndelay_ms 0\nsource store\n"},
		{"penstock.take help", strings.Join(takeHelp, "\n") + "\n"},
		{"command count", fmt.Sprintln(len(commands))},
	} {
		if got := runTool(t, addr, "", "redis-cli", strings.Fields(line.args)...); got != line.want {
			t.Errorf("redis-cli %s: got %q, want %q", line.args, got, line.want)
		}
	}
	if got := runTool(t, addr, "cl.throttle j 4 1 60\nttl j\n", "redis-cli"); got != "0\n5\n4\n-1\n60\n60\n" {
		t.Errorf("redis-cli with a script: got %q", got)
	}
	script := strings.Repeat(encode("CL.THROTTLE", "j", "4", "1", "60"), 10_000)
	if got := runTool(t, addr, script, "redis-cli", "--pipe"); !strings.Contains(got, "errors: 0, replies: 10000") {
		t.Errorf("redis-cli --pipe: got %q", got)
	}
}

// stores returns an empty store of each kind, with a clock that stands still.
func stores(t *testing.T) map[string]penstock.Store {
	c := newFakeClock()
	redisServer.Clock.Set(c.now())
	return map[string]penstock.Store{"memory": c.memory(), "redis": newRedisStore(t, redisServer)}
}

func TestServerWorksWithRedisBenchmark(t *testing.T) {
	for _, args := range []string{"-P 16", "-P 1 -3", "-P 100 -k 1"} {
		for name, store := range stores(t) {
			t.Run(args+" "+name, func(t *testing.T) { runRedisBenchmark(t, store, args) })
		}
	}
}

func runRedisBenchmark(t *testing.T, store penstock.Store, args string) {
	const n = 4000
	s := newServer(t, store, nil, nil, nil)
	all := append(strings.Fields(args), "-q", "-c", "20", "-n", fmt.Sprint(n), "-r", "50", "CL.THROTTLE", "key:__rand_int__", "15", "30", "60")
	got := runTool(t, startServer(t, s), "", "redis-benchmark", all...)
	if !strings.Contains(got, "requests per second") || strings.Contains(strings.ToLower(got), "err") || strings.Contains(got, "WARN") {
		t.Errorf("redis-benchmark printed %s", got)
	}
	counts := s.engine.RuleStats()[0]
	if a, b := counts.Allowed(), counts.Denied.Load(); a < 800 || a+b < n {
		t.Errorf("%d allowed and %d denied, want 16 of each of 50 keys and %d in all", a, b, n)
	}
}

// TestServerWorksWithRueidis uses rueidis as with Redis, with its defaults and without.
func TestServerWorksWithRueidis(t *testing.T) {
	for _, option := range []rueidis.ClientOption{
		{}, {AlwaysRESP2: true, DisableCache: true}, {Password: "secret", ClientName: "web-1"}, {ForceSingleClient: true},
	} {
		for _, store := range stores(t) {
			s := newServer(t, store, nil, &engine.Options{Token: option.Password}, nil)
			option.InitAddress = []string{startServer(t, s)}
			option.Dialer.Timeout, option.ConnWriteTimeout = testTimeout, testTimeout // for a starved machine
			c, err := rueidis.NewClient(option)
			if err != nil {
				t.Fatalf("%+v: %v", option, err)
			}
			testRueidis(t, c)
			c.Close()
		}
	}
}

func testRueidis(t *testing.T, c rueidis.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	take := func(key string) rueidis.Completed {
		return c.B().Arbitrary("CL.THROTTLE").Keys(key).Args("99", "1", "60").Build()
	}
	got, err := c.Do(ctx, take("alice")).AsIntSlice()
	if want := []int64{0, 100, 99, -1, 60}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	var pipeline rueidis.Commands
	for range 50 {
		pipeline = append(pipeline, take("alice"))
	}
	for i, r := range c.DoMulti(ctx, pipeline...) {
		got, err := r.AsIntSlice()
		if want := []int64{0, 100, int64(98 - i), -1, int64(2+i) * 60}; err != nil || !slices.Equal(got, want) {
			t.Errorf("in a pipeline: got %v, %v, want %v", got, err, want)
		}
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := c.Do(ctx, take("bob")).Error(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	testRueidisTake(ctx, t, c)
	testRueidisKeys(ctx, t, c)
}

func testRueidisTake(ctx context.Context, t *testing.T, c rueidis.Client) {
	reply, err := c.Do(ctx, c.B().Arbitrary("PENSTOCK.TAKE", "KEY", "carol", "LIMIT", "3/1m", "COST", "2").Build()).AsMap()
	if err != nil {
		t.Fatal(err)
	}
	remaining, source := reply["remaining"], reply["source"]
	if n, err := remaining.AsInt64(); err != nil || n != 1 || len(reply) != 8 {
		t.Errorf("PENSTOCK.TAKE: got %v, %v, want remaining 1", reply, err)
	}
	if text, err := source.ToString(); err != nil || text != "store" {
		t.Errorf("PENSTOCK.TAKE: got %v, %v, want source store", reply, err)
	}
}

func testRueidisKeys(ctx context.Context, t *testing.T, c rueidis.Client) {
	if left, err := c.Do(ctx, c.B().Ttl().Key("bob").Build()).AsInt64(); err != nil || left < 1190 || left > 1200 {
		t.Errorf("TTL: got %d, %v", left, err)
	}
	if err := c.Do(ctx, c.B().Arbitrary("CL.THROTTLE").Keys("bob").Args("x", "1", "60").Build()).Error(); err == nil ||
		err.Error() != "Cell error: Store error: Couldn't parse as integer: x" {
		t.Errorf("a bad number: got %v", err)
	}
	if n, err := c.Do(ctx, c.B().Del().Key("alice", "bob").Build()).AsInt64(); err != nil || n != 2 {
		t.Errorf("DEL: got %d, %v", n, err)
	}
	if err := c.Do(ctx, c.B().Get().Key("alice").Build()).Error(); !rueidis.IsRedisNil(err) {
		t.Errorf("GET: got %v, want nil", err)
	}
}

// A wrong password makes rueidis fail, not hang.
func TestServerWrongPasswordFailsRueidis(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, &engine.Options{Token: "secret"}, nil)
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{startServer(t, s)}, Password: "sesame", Dialer: net.Dialer{Timeout: testTimeout}, ConnWriteTimeout: testTimeout,
	})
	if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("got %v, want WRONGPASS", err)
	}
	if err == nil {
		c.Close()
	}
}
