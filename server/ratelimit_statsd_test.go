package server_test

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
)

// A statsdServer receives lines over TCP or UDP, and adds them up by name, type and tags.
type statsdServer struct {
	addr *net.UDPAddr // or the same of TCP

	mu     sync.Mutex
	counts map[string]float64
	wrong  []string
}

func startStatsd(t *testing.T, network string) *statsdServer {
	t.Helper()
	s := &statsdServer{counts: map[string]float64{}}
	var source io.Closer
	if network == "udp" {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		source, s.addr = conn, conn.LocalAddr().(*net.UDPAddr)
		go s.readPackets(conn)
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		source, s.addr = l, &net.UDPAddr{Port: l.Addr().(*net.TCPAddr).Port}
		go s.accept(l)
	}
	t.Cleanup(func() { _ = source.Close() })
	return s
}

func (s *statsdServer) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			s.add(lines.Text())
		}
	}
}

func (s *statsdServer) readPackets(conn *net.UDPConn) {
	packet := make([]byte, 1<<16)
	for {
		n, err := conn.Read(packet)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(packet[:n])) {
			s.add(strings.TrimSuffix(line, "\n"))
		}
	}
}

// add adds a line: name:value|type, and then a rate after @ and tags after #.
func (s *statsdServer) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, rest, _ := strings.Cut(line, ":")
	parts := strings.Split(rest, "|")
	value, err := strconv.ParseFloat(parts[0], 64)
	if err != nil || len(parts) < 2 || value < 0 || math.IsInf(value, 0) {
		s.wrong = append(s.wrong, line)
		return
	}
	if parts[1] == "ms" {
		value = 1 // how many times were sent
	}
	name += "|" + parts[1]
	for _, part := range parts[2:] {
		if rate, isRate := strings.CutPrefix(part, "@"); isRate {
			if r, err := strconv.ParseFloat(rate, 64); err == nil && r > 0 {
				value /= r
			}
			continue
		}
		name += "|" + part
	}
	s.counts[name] += value
}

// text returns the sums of names that contain part.
func (s *statsdServer) text(part string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		if strings.Contains(name, part) {
			fmt.Fprintf(&b, "%s %.0f\n", name, s.counts[name])
		}
	}
	return b.String() + strings.Join(s.wrong, "\n")
}

const statsdRules = `
domain: shop
descriptors:
  - {key: path, value: login, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: user, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
`

// startRatelimit starts a server in place of envoyproxy/ratelimit, on free ports and in memory.
func startRatelimit(t *testing.T, rules string, environ ...string) *daemon {
	t.Helper()
	return startRatelimitOn(t, "memory:", rules, environ...)
}

// startRatelimitOn starts such a server on a store.
func startRatelimitOn(t *testing.T, store, rules string, environ ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "rules.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	environ = append([]string{"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0"}, environ...)
	c, err := server.LoadRatelimitConfig(map[string]string{"store": store}, append(environ, "RUNTIME_ROOT="+dir))
	if err != nil {
		t.Fatal(err)
	}
	return startConfig(t, c)
}

// hit makes a call with one entry.
func hit(t *testing.T, d *daemon, key, value string) {
	t.Helper()
	hitAll(t, d, "shop", key, value)
}

// hitAll makes a call with entries, each of which is a key and a value.
func hitAll(t *testing.T, d *daemon, domain string, pairs ...string) {
	t.Helper()
	descriptor := &envoyratelimit.RateLimitDescriptor{}
	for pair := range slices.Chunk(pairs, 2) {
		descriptor.Entries = append(descriptor.Entries, &envoyratelimit.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]})
	}
	request := &envoyrls.RateLimitRequest{Domain: domain, Descriptors: []*envoyratelimit.RateLimitDescriptor{descriptor}}
	if _, err := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil)).ShouldRateLimit(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

func TestStatsdGetsCountersOfRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, network, environ, suffix, tags string }{
		{"statsd over TCP", "tcp", "USE_STATSD=true", ".__env=a_b.__zone=1", ""},
		{"statsd over UDP", "udp", "STATSD_PROTOCOL=udp", ".__env=a_b.__zone=1", ""},
		{"DogStatsD", "udp", "USE_DOG_STATSD=true", "", "|#env:a.b,zone:1"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			receiver := startStatsd(t, c.network)
			d := startRatelimit(t, statsdRules, c.environ, "STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", receiver.addr.Port),
				"STATS_FLUSH_INTERVAL=10ms", "EXTRA_TAGS=zone:1,env:a.b")
			for range 3 {
				hit(t, d, "path", "login")
			}
			hit(t, d, "user", "10.1.2.3")
			hit(t, d, "user", "x:9|c\nforged:1|c")
			var want string
			for _, line := range []string{
				"ratelimit.service.config_load_success%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.path_login.near_limit%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.path_login.over_limit%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.path_login.total_hits%s|c%s 3\n",
				"ratelimit.service.rate_limit.shop.path_login.within_limit%s|c%s 2\n",
				"ratelimit.service.rate_limit.shop.user_10_1_2_3.total_hits%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.user_10_1_2_3.within_limit%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.user_x_9_c_forged_1_c.total_hits%s|c%s 1\n",
				"ratelimit.service.rate_limit.shop.user_x_9_c_forged_1_c.within_limit%s|c%s 1\n",
				"ratelimit_server.ShouldRateLimit.response_time%s|ms%s 5\n",
				"ratelimit_server.ShouldRateLimit.total_requests%s|c%s 5\n",
			} {
				want += fmt.Sprintf(line, c.suffix, c.tags)
			}
			got := func() string {
				return receiver.text("config_load_success") + receiver.text(".shop.") + receiver.text("ratelimit_server.")
			}
			await(t, func() string { return "got\n" + got() + "want\n" + want + d.log.String() }, func() bool { return got() == want })
			hit(t, d, "user", "later")
			await(t, func() string { return "a later count in\n" + receiver.text("") }, func() bool { return receiver.text("user_later.total_hits") != "" })
			if login := receiver.text("path_login.total_hits"); !strings.HasSuffix(login, " 3\n") {
				t.Errorf("sent again: got %q, want 3", login)
			}
		})
	}
}

// What was counted since the last flush is sent when the daemon ends.
func TestStatsdGetsLastCountsOnShutdown(t *testing.T) {
	t.Parallel()
	receiver := startStatsd(t, "tcp")
	d := startRatelimit(t, statsdRules, "STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", receiver.addr.Port), "STATS_FLUSH_INTERVAL=24h")
	hit(t, d, "path", "login")
	if early := receiver.text(""); early != "" {
		t.Errorf("sent before the interval was over: %s", early)
	}
	d.end()
	await(t, func() string { return "the last counts in\n" + receiver.text("") }, func() bool {
		return receiver.text("path_login.total_hits") == "ratelimit.service.rate_limit.shop.path_login.total_hits|c 1\n"
	})
}

// Without a server of statsd the daemon says so once, and counts what it could not send.
func TestStatsdServerThatComesLateGetsAllCounts(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	d := startRatelimit(t, statsdRules, "STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", port), "STATS_FLUSH_INTERVAL=10ms")
	hit(t, d, "path", "login")
	const lost = "statistics are not sent to statsd"
	d.await("a warning", func() bool { return strings.Contains(d.log.String(), lost) })
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	receiver := &statsdServer{counts: map[string]float64{}}
	go receiver.accept(l)
	await(t, func() string { return receiver.text("") + d.log.String() }, func() bool {
		return receiver.text("path_login.total_hits") == "ratelimit.service.rate_limit.shop.path_login.total_hits|c 1\n"
	})
	if n := strings.Count(d.log.String(), lost); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, d.log)
	}
}

// Values become labels only where rules ask for them, and whatever bytes a caller chooses, the page
// stays valid.
func TestPrometheusTellsValuesThatRulesAskFor(t *testing.T) {
	t.Parallel()
	d := startRatelimit(t, statsdRules, "USE_PROMETHEUS=true", "USE_STATSD=false", "PROMETHEUS_ADDR=127.0.0.1:0", "EXTRA_TAGS=zone:1,kube-cluster.io/a:b,1st:c")
	hit(t, d, "user", "ann")
	hit(t, d, "user", "a\"b\n\\")
	hit(t, d, "path", "login")
	_, page := get(t, "http://"+d.addr("prometheus")+"/metrics")
	for _, name := range []string{"go_memstats_gc_cpu_fraction", "go_goroutines", "process_resident_memory_bytes", "process_virtual_memory_bytes"} {
		if !strings.Contains(page, "\n"+name+" ") || strings.Contains(page, name+" NaN") {
			t.Errorf("no value of %s, which Envoy Gateway's dashboard shows, in\n%s", name, page)
		}
	}
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{_1st="c",domain="shop",key1="user_ann",key2="",kube_cluster_io_a="b",zone="1"} 1`,
		`ratelimit_service_rate_limit_total_hits{_1st="c",domain="shop",key1="user_a\"b_\\",key2="",kube_cluster_io_a="b",zone="1"} 1`,
		`ratelimit_service_rate_limit_total_hits{_1st="c",domain="shop",key1="path_login",key2="",kube_cluster_io_a="b",zone="1"} 1`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no line %s in\n%s", want, page)
		}
	}
}

// Labels are cleaned as envoyproxy/ratelimit cleans names, in each of them. Dots that are not those of an
// address stay: there they end a label.
func TestPrometheusCleansLabels(t *testing.T) {
	t.Parallel()
	d := startRatelimit(t, `
domain: a:b|c
descriptors:
  - key: ":path"
    value_to_metric: true
    rate_limit: {unit: year, requests_per_unit: 50}
    descriptors:
      - {key: "remote|address", value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 50}}
`, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	hits := map[string]int{}
	for _, c := range []struct{ path, address, key1, key2 string }{
		{"/a", "", "_path_/a", ""},
		{"/a:b|c", "", "_path_/a_b_c", ""},
		{"/a_b:c", "", "_path_/a_b_c", ""},
		{"10.0.0.0/16", "", "_path_10_0_0_0/16", ""},
		{"x.1.2.3.4.y", "", "_path_x.1_2_3_4.y", ""},
		{"v1.2.3", "", "_path_v1.2.3", ""},
		{"api.example.com", "", "_path_api.example.com", ""},
		{"/a", "192.168.7.9", "_path_/a", "remote_address_192_168_7_9"},
		{"/a", "::1", "_path_/a", "remote_address___1"},
		{"/a", "h.local:80", "_path_/a", "remote_address_h.local_80"},
	} {
		pairs := []string{":path", c.path}
		if c.address != "" {
			pairs = append(pairs, "remote|address", c.address)
		}
		hitAll(t, d, "a:b|c", pairs...)
		hits[fmt.Sprintf(`ratelimit_service_rate_limit_total_hits{domain="a_b_c",key1="%s",key2="%s"}`, c.key1, c.key2)]++
	}
	_, page := get(t, "http://"+d.addr("prometheus")+"/metrics")
	for series, n := range hits {
		if line := fmt.Sprintf("%s %d\n", series, n); !strings.Contains(page, line) {
			t.Errorf("no line %s in\n%s", line, page)
		}
	}
}

// Rules below the second node are one sum. It must not fall when one of them is removed: Prometheus
// would count all of the others again.
func TestPrometheusSumsDoNotFallWithARemovedRule(t *testing.T) {
	t.Parallel()
	text := func(users ...string) string {
		return "domain: shop\ndescriptors: [{key: route, value: a, descriptors: [{key: path, value: b, descriptors: [" +
			strings.Join(users, ", ") + "]}]}]"
	}
	const ann, bob = "{key: user, value: ann, rate_limit: {unit: year, requests_per_unit: 100}}", "{key: user, value: bob, rate_limit: {unit: year, requests_per_unit: 100}}"
	file := writeRules(t, text(ann, bob))
	d := startRatelimit(t, "", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "PENSTOCK_RULES="+file)
	hits := func() string {
		_, page := get(t, "http://"+d.addr("prometheus")+"/metrics")
		_, value, _ := strings.Cut(page, `ratelimit_service_rate_limit_total_hits{domain="shop",key1="route_a",key2="path_b"} `)
		value, _, _ = strings.Cut(value, "\n")
		return value
	}
	hitUser := func(user string) { hitAll(t, d, "shop", "route", "a", "path", "b", "user", user) }
	hitUser("ann")
	for range 5 {
		hitUser("bob")
	}
	if got := hits(); got != "6" {
		t.Fatalf("%s hits, want 6", got)
	}
	replace(t, file, seal(text(ann)))
	d.await("the rule is removed", func() bool { return strings.Count(d.log.String(), "rules loaded") > 1 })
	hitUser("ann")
	hitUser("bob") // without a limit
	for range 2 {
		if got := hits(); got != "7" {
			t.Errorf("%s hits after a rule was removed, want 7", got)
		}
	}
}

// With LOCAL_CACHE_SIZE_IN_BYTES the first denial of a window is remembered, and the last hit within it
// is not, whether or not denied hits are counted. The cache's gauges count descriptors.
func TestRatelimitTellsOfItsLocalCache(t *testing.T) {
	t.Parallel()
	for _, stop := range []string{"false", "true"} {
		t.Run("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT="+stop, func(t *testing.T) {
			t.Parallel()
			receiver := startStatsd(t, "tcp")
			d := startRatelimitOn(t, "redis://"+redis.Addr, statsdRules, "CACHE_KEY_PREFIX="+rand.Text(), "LOCAL_CACHE_SIZE_IN_BYTES=1000",
				"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT="+stop, "REDIS_TIMEOUT=1m",
				"STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", receiver.addr.Port), "STATS_FLUSH_INTERVAL=24h")
			hitAll(t, d, "nowhere", "path", "login")
			for range 7 { // two of two, a denial, and four that are known
				hit(t, d, "path", "login")
			}
			d.end() // sends the statistics once
			want := "ratelimit.localcache.hitCount|g 4\nratelimit.localcache.lookupCount|g 7\nratelimit.localcache.missCount|g 3\n" +
				"ratelimit.service.rate_limit.shop.path_login.over_limit_with_local_cache|c 4\n"
			got := func() string { return receiver.text("localcache") + receiver.text("local_cache") }
			await(t, func() string { return "got\n" + got() + "want\n" + want + d.log.String() }, func() bool { return got() == want })
		})
	}
}

func TestPrometheusTellsOfTheLocalCacheIfItIsOn(t *testing.T) {
	t.Parallel()
	const twoKeys = "  - {key: org, descriptors: [{key: team, rate_limit: {unit: year, requests_per_unit: 2}}]}\n"
	for size, isOn := range []bool{false, true} {
		d := startRatelimitOn(t, "redis://"+redis.Addr, statsdRules+twoKeys, fmt.Sprint("LOCAL_CACHE_SIZE_IN_BYTES=", size), "CACHE_KEY_PREFIX="+rand.Text(), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "REDIS_TIMEOUT=1m")
		for range 4 {
			hit(t, d, "path", "login")
			hitAll(t, d, "shop", "org", "a", "team", "b")
		}
		_, page := get(t, "http://"+d.addr("prometheus")+"/metrics")
		if strings.Contains(page, "shop_org_team_over_limit_with_local_cache") {
			t.Errorf("%d bytes: a rule of two keys has a name that it does not have there:\n%s", size, page)
		}
		for _, line := range []string{
			"ratelimit_localcache_hitCount 2\n", "ratelimit_localcache_missCount 6\n", "ratelimit_localcache_lookupCount 8\n",
			`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="org",key2="team"} 1` + "\n",
			"ratelimit_service_rate_limit_shop_path_login_over_limit_with_local_cache 1\n",
		} {
			if strings.Contains(page, line) != isOn {
				t.Errorf("%d bytes: want %q to be there: %v, in\n%s", size, line, isOn, page)
			}
		}
	}
}
