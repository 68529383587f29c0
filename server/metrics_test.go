package server_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// What Prometheus scrapes is named as its own tool wants it, and listed on the page
// for operators, all of it.
func TestMetricsAreWellNamedAndListed(t *testing.T) {
	onBothStores(t, func(t *testing.T, d *daemon) {
		askEnvoy(t, dialGRPC(t, d, nil), "42")
		throttle(t, d, "k 15 1 3600")
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		page, err := os.ReadFile(operationsPage)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^# HELP (penstock_\w+)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(page), "`"+m[1]+"`") {
				t.Errorf("%s does not list %s", operationsPage, m[1])
			}
		}
	})
}

// Metrics say by which rule, and never about whom.
func TestMetricsCountDecisions(t *testing.T) {
	onBothStores(t, func(t *testing.T, d *daemon) {
		conn := dialGRPC(t, d, nil)
		for range 7 {
			askEnvoy(t, conn, "who-it-is")
		}
		post(t, d.addr("http"), `{"key":"who-it-is","limit":"3/1h","cost":3}`)
		post(t, d.addr("http"), `{"key":"who-it-is","limit":"3/1h","cost":2}`)
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		for _, want := range []string{
			`penstock_decisions_total{mode="enforce",outcome="allowed",policy="shop/user"} 5`,
			`penstock_decisions_total{mode="enforce",outcome="denied",policy="shop/user"} 2`,
			`penstock_decisions_total{mode="shadow",outcome="denied",policy="shop/user"} 0`,
			`penstock_decisions_total{mode="enforce",outcome="allowed",policy=""} 1`,
			`penstock_cost_units_total{outcome="allowed",policy=""} 3`,
			`penstock_cost_units_total{outcome="denied",policy=""} 2`,
			`penstock_limit_units{policy="shop/user"} 5`,
			`penstock_decision_duration_seconds_count{door="grpc"} 7`,
			`penstock_decision_duration_seconds_count{door="http"} 2`,
			`penstock_config_loads_total{result="success"} 1`,
		} {
			if !slices.Contains(strings.Split(text, "\n"), want) {
				t.Errorf("the metrics do not have %s:\n%s", want, ours(text))
			}
		}
		if strings.Contains(text, "who-it-is") {
			t.Error("a key is in the metrics")
		}
	})
}

// ours returns the lines of metrics that are not the runtime's.
func ours(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "penstock_") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestMetricsTellOfAFullStore(t *testing.T) {
	d := start(t, map[string]string{"max-keys": "1"})
	for _, key := range []string{"a", "b", "c"} {
		post(t, d.addr("http"), `{"key":"`+key+`","limit":"3/1h"}`)
	}
	_, text := get(t, "http://"+d.addr("admin")+"/metrics")
	for _, want := range []string{"penstock_keys 1", "penstock_shared_decisions_total 2"} {
		if !slices.Contains(strings.Split(text, "\n"), want) {
			t.Errorf("the metrics do not have %s:\n%s", want, ours(text))
		}
	}
}

// A store that fails is counted, and so is a request that it refuses to make sense
// of; but not as a failure.
func TestMetricsTellOfAStoreThatFails(t *testing.T) {
	own := startRedis(t)
	d := start(t, map[string]string{"store": "redis://" + own.Addr, "redis-timeout": "200ms"})
	post(t, d.addr("http"), `{"key":"k","limit":"3/1h"}`)
	failures := func() string {
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		return regexp.MustCompile(`penstock_store_errors_total\{store="redis"\} (\d+)`).FindStringSubmatch(text)[1]
	}
	if n := failures(); n != "0" {
		t.Errorf("%s failures of a good store", n)
	}
	own.Kill()
	if status, answer := post(t, d.addr("http"), `{"key":"k","limit":"3/1h"}`); status != 200 {
		t.Errorf("without Redis: %d %s", status, answer)
	}
	if n := failures(); n == "0" {
		t.Error("no failures of a store that is gone")
	}
}
