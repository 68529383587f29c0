//go:build integration

package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// span is that of all rates: longer than the test, so that two scrapes are enough, however far apart.
const span = "5m"

// ratelimitQueries are what dashboards ask of envoyproxy/ratelimit. The first six are those of Envoy
// Gateway's: gauges of the process, two of them with a label of its pods, and the hits of one rule.
var ratelimitQueries = []string{
	`go_memstats_gc_cpu_fraction * 1e6`,
	`process_resident_memory_bytes{app_kubernetes_io_component="ratelimit"} / 1e6`,
	`process_virtual_memory_bytes{app_kubernetes_io_component="ratelimit"} / 1e6`,
	`ratelimit_service_rate_limit_total_hits` + gatewayRule + ` == 1`,
	`ratelimit_service_rate_limit_near_limit` + gatewayRule + ` == 1`,
	`ratelimit_service_rate_limit_over_limit` + gatewayRule + ` == 0`,
	`sum(rate(ratelimit_service_rate_limit_total_hits[` + span + `])) by (domain, key1, key2)`,
	`sum(rate(ratelimit_service_rate_limit_over_limit[` + span + `])) by (domain, key1, key2)`,
	`sum(rate(ratelimit_service_rate_limit_near_limit[` + span + `])) by (domain, key1, key2)`,
	`sum(rate(ratelimit_service_rate_limit_within_limit[` + span + `])) by (domain)`,
	`sum(rate(ratelimit_service_rate_limit_shadow_mode[` + span + `])) by (domain)`,
	`sum(rate(ratelimit_service_should_rate_limit_error[` + span + `])) by (err_type)`,
	`sum(rate(ratelimit_service_total_requests[` + span + `])) by (grpc_method)`,
	`histogram_quantile(0.99, sum(rate(ratelimit_service_response_time_seconds_bucket[` + span + `])) by (le, grpc_method))`,
	`ratelimit_service_config_load_success`, `ratelimit_service_config_load_error`,
}

// Envoy Gateway's rules have two nodes, each of a key that is its value too.
const (
	gatewayNode  = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"
	gatewayRule  = `{domain="default/eg/http", key1="` + gatewayNode + "_" + gatewayNode + `", key2="rule-0-match-0_rule-0-match-0"}`
	gatewayRules = `
domain: default/eg/http
descriptors:
  - key: ` + gatewayNode + `
    value: ` + gatewayNode + `
    descriptors:
      - {key: rule-0-match-0, value: rule-0-match-0, rate_limit: {unit: year, requests_per_unit: 1}}
`
)

// A query with a wrong name or label is valid and returns nothing, so Prometheus evaluates all of
// them on running daemons: in memory, on Redis, and in place of envoyproxy/ratelimit.
func TestIntegrationDashboardQueriesReturnValues(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", "server")
	targets := []string{}
	for _, settings := range []map[string]string{
		{"data": t.TempDir(), "snapshot-interval": "1s"},
		{"store": "redis://" + redis.Addr, "redis-prefix": "dashboard", "redis-timeout": "10s"},
	} {
		settings["rules"] = writeRules(t, shopRules)
		settings["http-tls-cert"], settings["http-tls-key"] = a.path("server.crt"), a.path("server.key")
		d := start(t, settings)
		hit(t, d, "user", "1")
		hit(t, d, "nothing", "1")
		targets = append(targets, d.addr("admin"))
	}
	d := startRatelimit(t, statsdRules, "USE_PROMETHEUS=true", "USE_STATSD=false", "PROMETHEUS_ADDR=127.0.0.1:0")
	hit(t, d, "path", "login")
	gateway := startRatelimit(t, gatewayRules, "USE_PROMETHEUS=true", "USE_STATSD=false", "PROMETHEUS_ADDR=127.0.0.1:0")
	hitAll(t, gateway, "default/eg/http", gatewayNode, gatewayNode, "rule-0-match-0", "rule-0-match-0")
	prometheus := startPrometheus(t, targets, d.addr("prometheus"), gateway.addr("prometheus"))

	queries := slices.Clone(ratelimitQueries)
	variables := strings.NewReplacer("$__rate_interval", span, "$__range", span, "$job", ".*", "$rule", ".*")
	for _, query := range dashboardQueries(t) {
		queries = append(queries, strings.TrimSuffix(variables.Replace(query), " > 0")) // hides what is well
	}
	for _, query := range queries {
		await(t, func() string { return "a value of " + query }, func() bool { return hasResult(t, prometheus, query) })
	}
}

// startPrometheus starts Prometheus, and returns its URL. Those in place of envoyproxy/ratelimit
// have the label of its pods.
func startPrometheus(t *testing.T, targets []string, ratelimit ...string) string {
	t.Helper()
	config := write(t, "prometheus.yaml", fmt.Sprintf(
		"global: {scrape_interval: 1s}\nscrape_configs: [{job_name: penstock, static_configs: [{targets: [%s]}, {targets: [%s], labels: {app_kubernetes_io_component: ratelimit}}]}]",
		strings.Join(targets, ", "), strings.Join(ratelimit, ", ")))
	addr := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, "prometheus", "--config.file", config, "--storage.tsdb.path", t.TempDir(), "--web.listen-address", addr)
	if err := program.Start(); err != nil {
		cancel()
		t.Fatalf("%v: run make setup-integration", err)
	}
	t.Cleanup(func() {
		cancel()
		_ = program.Wait()
	})
	await(t, func() string { return "Prometheus serves" }, func() bool {
		return exec.Command("curl", "-fsS", "http://"+addr+"/-/ready").Run() == nil
	})
	return "http://" + addr
}

func hasResult(t *testing.T, prometheus, query string) bool {
	t.Helper()
	status, body := get(t, prometheus+"/api/v1/query?query="+url.QueryEscape(query))
	var answer struct{ Data struct{ Result []any } }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
		t.Fatalf("%s: status %d, %v: %s", query, status, err, body)
	}
	return len(answer.Data.Result) > 0
}
