package server_test

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
)

// metric returns the value of a metric, labels included, or "" if it is not there.
func (d *daemon) metric(name string) string {
	d.t.Helper()
	_, text := get(d.t, "http://"+d.addr("admin")+"/metrics")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

// isDegraded reports whether the server says, to everybody who asks, that it decides
// without Redis; and checks that it is ready all the same.
func (d *daemon) isDegraded() bool {
	d.t.Helper()
	status, body := get(d.t, "http://"+d.addr("admin")+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `"ready": true`) {
		d.t.Errorf("/readyz: %d %s, want it to be ready", status, body)
	}
	if status, body := get(d.t, "http://"+d.addr("admin")+"/healthz"); status != http.StatusOK {
		d.t.Errorf("/healthz: %d %s", status, body)
	}
	answer, err := healthpb.NewHealthClient(dialGRPC(d.t, d, nil)).Check(d.t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		d.t.Errorf("gRPC's health: %v, %v", answer, err)
	}
	degraded := strings.Contains(body, `"degraded": true`)
	if degraded != strings.Contains(body, "redis ") {
		d.t.Errorf("/readyz without its reason, or with one too many: %s", body)
	}
	return degraded && d.metric("penstock_degraded") == "1"
}

// takes asks for units of a key, and returns who decided and whether they were granted.
func (d *daemon) takes(key, limit, cost string) (source string, allowed bool) {
	d.t.Helper()
	status, answer := post(d.t, d.addr("http"), `{"key":"`+key+`","limit":"`+limit+`","cost":`+cost+`}`)
	m := regexp.MustCompile(`"allowed":(\w+).*"source":"([\w-]+)"`).FindStringSubmatch(answer)
	if m == nil {
		d.t.Fatalf("%d %s", status, answer)
	}
	return m[2], m[1] == "true"
}

// remains returns what is left of a key, as JSON has it.
func (d *daemon) remains(key, limit string) string {
	d.t.Helper()
	_, answer := post(d.t, d.addr("http"), `{"key":"`+key+`","limit":"`+limit+`","cost":0}`)
	return regexp.MustCompile(`"remaining":(\d+)`).FindStringSubmatch(answer)[1]
}

// own starts a Redis for one test.
func own(t *testing.T) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

const quota = "10/366d fixed-window"

// Whatever becomes of Redis, everybody gets an answer, and hears whose it is; and what
// was granted without it is charged to it in the end.
func TestDecidesWithoutRedisAndSettles(t *testing.T) {
	redis := own(t)
	d := start(t, map[string]string{"store": "redis://" + redis.Addr, "redis-timeout": "1s", "nodes": "2"})
	if source, allowed := d.takes("k", quota, "2"); source != "store" || !allowed {
		t.Errorf("with Redis: %s, %v", source, allowed)
	}
	if d.isDegraded() {
		t.Error("degraded from the start")
	}
	if err := redis.Pause(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if source, allowed := d.takes("k", quota, "1"); source != "fallback" || !allowed {
			t.Errorf("while Redis hangs: %s, %v", source, allowed)
		}
	}
	if source, allowed := d.takes("k", quota, "3"); source != "fallback" || allowed {
		t.Errorf("beyond the share of two nodes: %s, %v", source, allowed)
	}
	for range 5 {
		d.takes("others", quota, "1")
	}
	d.await("known to be degraded", d.isDegraded)
	d.await("said so", func() bool { return d.log.has("deciding without Redis") })
	if err := redis.Resume(); err != nil {
		t.Fatal(err)
	}
	d.await("by Redis again", func() bool { return !d.isDegraded() && d.log.has("deciding by Redis again") })
	d.await("settled", func() bool { return d.remains("k", quota) <= "5" })
	if n := strings.Count(d.log.String(), "deciding without Redis"); n != 1 {
		t.Errorf("said %d times that Redis is away:\n%s", n, d.log)
	}
	if d.metric(`penstock_store_changes_total{state="away",store="redis"}`) != "1" || d.metric(`penstock_store_away{shard="0",store="redis"}`) != "0" {
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		t.Errorf("metrics:\n%s", ours(text))
	}
	if d.metric(`penstock_source_decisions_total{source="fallback"}`) != "9" {
		t.Error("not nine decisions without Redis")
	}
}

// A server starts without Redis, says so, and goes by Redis as soon as it is there.
func TestStartsWithoutRedis(t *testing.T) {
	redis := own(t)
	redis.Kill()
	d := start(t, map[string]string{"store": "redis://" + redis.Addr, "redis-timeout": "1s"})
	lines := strings.Split(d.log.String(), "\n")
	without := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "deciding without Redis") })
	if without < 0 || !strings.Contains(lines[without], "connection refused") {
		t.Errorf("the log does not begin with that, and why:\n%s", d.log)
	}
	if !d.isDegraded() {
		t.Error("not said to be degraded")
	}
	if source, allowed := d.takes("k", quota, "4"); source != "fallback" || !allowed {
		t.Errorf("without Redis: %s, %v", source, allowed)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	d.await("by Redis", func() bool {
		source, _ := d.takes("other", "1000000/1h", "1")
		return source == "store" && !d.isDegraded()
	})
	d.await("settled", func() bool { return d.remains("k", quota) == "6" })
}

// What will not pass by itself ends the start.
func TestRefusesARedisThatWillNotDo(t *testing.T) {
	for name, url := range map[string]string{
		"a password that is wrong": "redis://nobody:wrong@" + redis.Addr,
		"no such database":         "redis://" + redis.Addr + "/99",
		"no database at all":       "redis://" + redis.Addr + "/nonsense",
	} {
		if s, err := server.New(t.Context(), load(t, map[string]string{"store": url}), nil); err == nil || !strings.HasPrefix(err.Error(), "--store: ") {
			t.Errorf("%s: %v, %v, want an error that names the setting", name, s, err)
		}
	}
}

// What was taken ahead and not spent is given back when a server ends.
func TestLeasesAreGivenBackAtTheEnd(t *testing.T) {
	const busy = "100000/366d"
	settings := map[string]string{"store": "redis://" + own(t).Addr, "redis-timeout": "10s", "lease": "true"}
	d := start(t, settings)
	spent := 0
	d.await("spending units that were taken ahead", func() bool {
		spent += 10
		source, allowed := d.takes("k", busy, "10")
		if !allowed {
			t.Fatal("denied")
		}
		return source == "lease"
	})
	if d.metric("penstock_lease_units_total") != "10" {
		t.Errorf("%s units of leases, want 10", d.metric("penstock_lease_units_total"))
	}
	d.end()
	left, err := strconv.Atoi(start(t, settings).remains("k", busy))
	if most := 100_000 - spent; err != nil || left > most || left < most-1 {
		t.Errorf("%d are left after %d of 100000 were spent", left, spent)
	}
}

// A key that keeps asking costs Redis nothing, unless its rule wants it to.
func TestDenialsAreRemembered(t *testing.T) {
	for flag, want := range map[string]string{"true": "deny-cache", "false": "store"} {
		d := start(t, map[string]string{
			"store": "redis://" + redis.Addr, "redis-prefix": "deny" + flag, "redis-timeout": "10s", "deny-cache": flag,
		})
		d.takes("k", "1/366d", "1")
		d.takes("k", "1/366d", "1")
		if source, allowed := d.takes("k", "1/366d", "1"); source != want || allowed {
			t.Errorf("--deny-cache=%s: decided by %s, %v", flag, source, allowed)
		}
	}
}
