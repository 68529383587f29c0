package server_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/server"
)

// metric returns the value of a metric with its labels, or "".
func (d *daemon) metric(name string) string {
	d.t.Helper()
	_, text := get(d.t, "http://"+d.addr("admin")+"/metrics")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

// isDegraded reports whether /readyz and the metrics say that decisions are made without
// Redis. It checks that the server stays ready.
func (d *daemon) isDegraded() bool {
	d.t.Helper()
	status, body := get(d.t, "http://"+d.addr("admin")+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `"ready": true`) {
		d.t.Errorf("/readyz: got %d %s, want ready", status, body)
	}
	if status, body := get(d.t, "http://"+d.addr("admin")+"/healthz"); status != http.StatusOK {
		d.t.Errorf("/healthz: %d %s", status, body)
	}
	conn := dialGRPC(d.t, d, nil)
	defer func() { _ = conn.Close() }() // polls would leave many open
	answer, err := healthpb.NewHealthClient(conn).Check(d.t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		d.t.Errorf("gRPC health: %v, %v", answer, err)
	}
	degraded := strings.Contains(body, `"degraded": true`)
	if degraded != strings.Contains(body, "redis ") {
		d.t.Errorf("/readyz: degraded and its reason do not match: %s", body)
	}
	return degraded && d.metric("penstock_degraded") == "1"
}

// take takes units of a key, and returns the source of the decision and whether it allows. The HTTP
// API would close a connection whose request waits for Redis longer than five seconds.
func (d *daemon) take(key, limit, cost string) (source string, allowed bool) {
	d.t.Helper()
	listener := &redistest.Server{Addr: d.addr("resp")}
	answer := redistest.MustCommand(d.t, listener, "PENSTOCK.TAKE", "KEY", key, "LIMIT", limit, "COST", cost)
	m := regexp.MustCompile(`(?s)allowed\n(\d).*source\n([\w-]+)`).FindStringSubmatch(answer)
	if m == nil {
		d.t.Fatal(answer)
	}
	return m[2], m[1] == "1"
}

// takeAtOnce takes one unit of a key in each of n calls at the same time, which wait for Redis
// together. It returns the sources of the decisions and whether they allow.
func (d *daemon) takeAtOnce(n int, key, limit string) (answers []string) {
	d.t.Helper()
	answers = make([]string, n)
	var calls sync.WaitGroup
	for i := range answers {
		calls.Go(func() {
			source, allowed := d.take(key, limit, "1")
			answers[i] = fmt.Sprint(source, " ", allowed)
		})
	}
	calls.Wait()
	return answers
}

// remaining returns the remaining units of a key, as in JSON.
func (d *daemon) remaining(key, limit string) string {
	d.t.Helper()
	_, answer := post(d.t, d.addr("http"), `{"key":"`+key+`","limit":"`+limit+`","cost":0}`)
	return regexp.MustCompile(`"remaining":(\d+)`).FindStringSubmatch(answer)[1]
}

// startRedis starts a Redis for one test.
func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

const quota = "10/366d fixed-window"

// While Redis is down, requests are decided locally, and what was granted is charged to Redis
// later.
func TestServerDecidesWhileRedisIsDownAndSettles(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	d := start(t, map[string]string{"store": "redis://" + redis.Addr, "redis-timeout": "10s", "nodes": "2"})
	if source, allowed := d.take("k", quota, "2"); source != "store" || !allowed {
		t.Errorf("with Redis: %s, %v", source, allowed)
	}
	if d.isDegraded() {
		t.Error("degraded from the start")
	}
	if err := redis.Pause(); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(func() { d.takeAtOnce(5, "others", quota) }) // which open the breaker
	for _, answer := range d.takeAtOnce(3, "k", quota) {
		if answer != "fallback true" {
			t.Errorf("while Redis hangs: %s", answer)
		}
	}
	others.Wait()
	if source, allowed := d.take("k", quota, "3"); source != "fallback" || allowed {
		t.Errorf("beyond half of the limit: %s, %v", source, allowed)
	}
	d.await("degraded", d.isDegraded)
	d.await("outage logged", func() bool { return d.log.has("Redis unavailable") })
	if err := redis.Resume(); err != nil {
		t.Fatal(err)
	}
	d.await("decided by Redis again", func() bool { return !d.isDegraded() && d.log.has("Redis available again") })
	d.await("settled", func() bool { return d.remaining("k", quota) <= "5" })
	if n := strings.Count(d.log.String(), "Redis unavailable"); n != 1 {
		t.Errorf("outage logged %d times, want once:\n%s", n, d.log)
	}
	if d.metric(`penstock_store_transitions_total{state="down",store="redis"}`) != "1" || d.metric(`penstock_store_unavailable{shard="0",store="redis"}`) != "0" {
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		t.Errorf("metrics:\n%s", penstockMetrics(text))
	}
	if d.metric(`penstock_decisions_by_source_total{source="fallback"}`) != "9" {
		t.Error("want nine decisions of the fallback")
	}
}

func TestServerStartsWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	redis.Kill()
	d := start(t, map[string]string{"store": "redis://" + redis.Addr, "redis-timeout": "30s"})
	lines := strings.Split(d.log.String(), "\n")
	without := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "Redis unavailable") })
	if without < 0 || !strings.Contains(lines[without], "connection refused") {
		t.Errorf("the outage and its cause are not logged:\n%s", d.log)
	}
	if !d.isDegraded() {
		t.Error("not degraded")
	}
	if source, allowed := d.take("k", quota, "4"); source != "fallback" || !allowed {
		t.Errorf("without Redis: %s, %v", source, allowed)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	d.await("decided by Redis", func() bool {
		source, _ := d.take("other", "1000000/1h", "1")
		return source == "store" && !d.isDegraded()
	})
	d.await("settled", func() bool { return d.remaining("k", quota) == "6" })
}

// Errors that do not pass by themselves are fatal at startup.
func TestNewRejectsMisconfiguredRedis(t *testing.T) {
	for name, url := range map[string]string{
		"wrong password":   "redis://unknown:wrong@" + redis.Addr,
		"no such database": "redis://" + redis.Addr + "/99",
		"bad database":     "redis://" + redis.Addr + "/nonsense",
	} {
		if s, err := server.New(t.Context(), load(t, map[string]string{"store": url, "redis-timeout": "1m"}), nil); err == nil || !strings.HasPrefix(err.Error(), "--store: ") {
			t.Errorf("%s: %v, %v, want an error that names the setting", name, s, err)
		}
	}
}

// A Redis that answers, but refuses, ends the start. While the daemon runs it is told apart from an outage, on every
// page, and the breaker does not hide it.
func TestServerTellsThatRedisRefuses(t *testing.T) {
	server1 := startRedis(t)
	refuses := redisproxy.Preset{Replies: map[string]string{"EVAL": "-ERR bad lua script", "EVALSHA": "-ERR bad lua script"}}
	p := redisproxy.Start(t, refuses, server1)
	settings := map[string]string{"store": p.URL(), "redis-timeout": "1m"}
	s, err := server.New(t.Context(), load(t, settings), nil)
	if err == nil || !strings.Contains(err.Error(), "bad lua script") || !strings.Contains(err.Error(), "script_check_enable") {
		t.Fatalf("got %v, %v, want the words of the server, and what to do", s, err)
	}
	p.Behave(redisproxy.Preset{})
	d := start(t, settings)
	if source, _ := d.take("k", "10/h", "1"); source != "store" {
		t.Fatalf("decided by %s, want the store", source)
	}
	p.Behave(refuses)
	d.await("refusals are told", func() bool {
		source, _ := d.take("k", "10/h", "1")
		_, ready := get(t, "http://"+d.addr("admin")+"/readyz")
		return source == "fallback" && d.isDegraded() && strings.Contains(ready, "refuses calls") && d.metric(`penstock_store_refusing{store="redis"}`) == "1"
	})
	before := d.metric(`penstock_store_refusals_total{store="redis"}`)
	d.await("refusals are counted behind the open breaker", func() bool {
		_, live := get(t, "http://"+d.addr("admin")+"/v1/live")
		return d.metric(`penstock_store_refusals_total{store="redis"}`) != before && regexp.MustCompile(`"refusals": ?[1-9]`).MatchString(live)
	})
	d.await("a refusal is logged", func() bool { return d.log.has("Redis refuses calls") })
	if d.log.has("Redis unavailable") {
		t.Errorf("the log: %s, want a refusal and no outage", d.log)
	}
	p.Behave(redisproxy.Preset{})
	d.await("the store decides again", func() bool {
		source, _ := d.take("k", "10/h", "1")
		return source == "store" && !d.isDegraded() && d.metric(`penstock_store_refusing{store="redis"}`) == "0"
	})
}

func TestServerShutdownReturnsLeasedUnits(t *testing.T) {
	const busy = "100000/366d"
	settings := map[string]string{"store": "redis://" + startRedis(t).Addr, "redis-timeout": "10s", "lease": "true"}
	d := start(t, settings)
	spent := 0
	d.await("decided by the lease", func() bool {
		spent += 10
		source, allowed := d.take("k", busy, "10")
		if !allowed {
			t.Fatal("denied")
		}
		return source == "lease"
	})
	if d.metric("penstock_lease_units_total") != "10" {
		t.Errorf("%s leased units, want 10", d.metric("penstock_lease_units_total"))
	}
	d.end()
	left, err := strconv.Atoi(start(t, settings).remaining("k", busy))
	if most := 100_000 - spent; err != nil || left > most || left < most-1 {
		t.Errorf("%d are left after %d of 100000 were spent", left, spent)
	}
}

func TestServerCachesDenials(t *testing.T) {
	for flag, want := range map[string]string{"true": "deny-cache", "false": "store"} {
		d := start(t, map[string]string{
			"store": "redis://" + redis.Addr, "redis-prefix": rand.Text(), "redis-timeout": "10s", "deny-cache": flag,
		})
		d.take("k", "1/366d", "1")
		for range 3 {
			if _, allowed := d.take("k", "1/366d", "1"); allowed {
				t.Errorf("--deny-cache=%s: allowed beyond the limit", flag)
			}
		}
		// A denial is cached for a while, which may pass before the next take.
		d.await("decided by "+want, func() bool {
			source, _ := d.take("k", "1/366d", "1")
			if source == "deny-cache" && flag == "false" {
				t.Fatal("--deny-cache=false: decided by the deny cache")
			}
			return source == want
		})
	}
}

// A denial outlives the state that it is about, for as long as the setting says.
func TestServerCachesDenialsForDenyCacheAge(t *testing.T) {
	for _, age := range []string{"1h", "1ms"} {
		prefix := rand.Text()
		d := start(t, map[string]string{
			"store": "redis://" + redis.Addr, "redis-prefix": prefix, "redis-timeout": "10s", "deny-cache-age": age,
		})
		d.take("k", "1/366d", "1")
		d.take("k", "1/366d", "1")
		if _, err := redis.Command("EVAL", "for _, k in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do redis.call('DEL', k) end", "0", prefix); err != nil {
			t.Fatal(err)
		}
		if age == "1h" {
			if source, allowed := d.take("k", "1/366d", "1"); allowed || source != "deny-cache" {
				t.Errorf("an hour: allowed %t by %s, want the cached denial", allowed, source)
			}
			continue
		}
		d.await("the denial ends", func() bool {
			_, allowed := d.take("k", "1/366d", "1")
			return allowed
		})
	}
}
