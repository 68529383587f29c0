package server_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestMetricsPassPromlintAndAreDocumented(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		takeGRPC(t, dialGRPC(t, d, nil), "42")
		throttle(t, d, "k 15 1 3600")
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		page, err := os.ReadFile(metricsPage)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^# HELP (penstock_\w+)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(page), "`"+m[1]+"`") {
				t.Errorf("%s does not list %s", metricsPage, m[1])
			}
		}
	})
}

func TestMetricsCountDecisionsByRule(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		conn := dialGRPC(t, d, nil)
		for range 7 {
			takeGRPC(t, conn, "secret-key")
		}
		post(t, d.addr("http"), `{"key":"secret-key","limit":"3/1h","cost":3}`)
		post(t, d.addr("http"), `{"key":"secret-key","limit":"3/1h","cost":2}`)
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		for _, want := range []string{
			`penstock_decisions_total{mode="enforce",outcome="allowed",rule="shop/user"} 5`,
			`penstock_decisions_total{mode="enforce",outcome="denied",rule="shop/user"} 2`,
			`penstock_decisions_total{mode="shadow",outcome="denied",rule="shop/user"} 0`,
			`penstock_decisions_total{mode="enforce",outcome="allowed",rule=""} 1`,
			`penstock_cost_units_total{outcome="allowed",rule=""} 3`,
			`penstock_cost_units_total{outcome="denied",rule=""} 2`,
			`penstock_limit_units{rule="shop/user"} 5`,
			`penstock_decision_duration_seconds_count{listener="grpc"} 7`,
			`penstock_decision_duration_seconds_count{listener="http"} 2`,
			`penstock_config_loads_total{result="success"} 1`,
			`penstock_config_last_load_successful 1`,
			`penstock_rules 1`,
		} {
			if !slices.Contains(strings.Split(text, "\n"), want) {
				t.Errorf("the metrics lack %s:\n%s", want, penstockMetrics(text))
			}
		}
		if strings.Contains(text, "secret-key") {
			t.Error("a key appears in the metrics")
		}
	})
}

// penstockMetrics returns the lines of penstock's own metrics.
func penstockMetrics(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "penstock_") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// However many rules there are, a scrape is bounded: those beyond 10,000 are counted together.
func TestMetricsAreBounded(t *testing.T) {
	const rules = 10_005
	text := strings.Builder{}
	text.WriteString("domain: many\ndescriptors:\n")
	for i := range rules {
		fmt.Fprintf(&text, "  - {key: k%d, limit: 2/1h}\n", i)
	}
	d := start(t, map[string]string{"rules": writeRules(t, text.String())})
	for range 3 {
		for _, i := range []int{0, rules - 2, rules - 1} {
			post(t, d.addr("http"), fmt.Sprintf(`{"domain":"many","descriptors":[{"entries":[{"key":"k%d","value":"v"}]}]}`, i))
		}
	}
	_, scrape := get(t, "http://"+d.addr("admin")+"/metrics")
	lines := strings.Split(scrape, "\n")
	for _, want := range []string{
		`penstock_decisions_total{mode="enforce",outcome="allowed",rule="many/k0"} 2`,
		`penstock_decisions_total{mode="enforce",outcome="allowed",rule="(others)"} 4`,
		`penstock_decisions_total{mode="enforce",outcome="denied",rule="(others)"} 2`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if n := strings.Count(scrape, "penstock_limit_units{"); n > 10_000 {
		t.Errorf("%d rules have series of their own", n)
	}
}

func TestMetricsCountOverflowDecisions(t *testing.T) {
	d := start(t, map[string]string{"max-keys": "1"})
	for _, key := range []string{"a", "b", "c"} {
		post(t, d.addr("http"), `{"key":"`+key+`","limit":"3/1h"}`)
	}
	_, text := get(t, "http://"+d.addr("admin")+"/metrics")
	for _, want := range []string{"penstock_keys 1", "penstock_memory_overflow_decisions_total 2"} {
		if !slices.Contains(strings.Split(text, "\n"), want) {
			t.Errorf("the metrics lack %s:\n%s", want, penstockMetrics(text))
		}
	}
}

func TestMetricsCountStoreErrors(t *testing.T) {
	t.Parallel()
	own := startRedis(t)
	d := start(t, map[string]string{"store": "redis://" + own.Addr, "redis-timeout": "10s"})
	d.take("k", "3/1h", "1")
	storeErrors := func() string {
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		return regexp.MustCompile(`penstock_store_errors_total\{store="redis"\} (\d+)`).FindStringSubmatch(text)[1]
	}
	if n := storeErrors(); n != "0" {
		t.Errorf("%s errors while Redis is up, want 0", n)
	}
	own.Kill()
	if source, allowed := d.take("k", "3/1h", "1"); source != "fallback" || !allowed {
		t.Errorf("without Redis: %s, %v", source, allowed)
	}
	if n := storeErrors(); n == "0" {
		t.Error("no errors while Redis is down")
	}
}
