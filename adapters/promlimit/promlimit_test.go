package promlimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/adapters/promlimit"
	"github.com/penstock-io/penstock/rulelimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const shop = `domain: shop
descriptors:
  - {key: user, limit: 2/1h burst=2}
  - {key: trial, shadow_mode: true, limit: 1/1h fixed-window}
`

func scrape(t *testing.T, m *promlimit.Metrics) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

func TestMetricsOfLimitsAndRules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	m := promlimit.New()
	store := penstock.WithObserver(penstock.NewMemory(nil), m.Observe)
	lim, err := rulelimit.Open(t.Context(), path, store, &rulelimit.Options{Observe: m.ObserveRules})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	for range 3 {
		if _, err := lim.Allow(t.Context(), "shop", rulelimit.Entries("user", "1"), rulelimit.Entries("nothing", "x")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if a, err := lim.Allow(t.Context(), "shop", rulelimit.Entries("trial", "1")); err != nil || !a.Allowed {
			t.Fatal(a, err)
		}
	}
	if _, err := lim.Allow(t.Context(), ""); err == nil {
		t.Error("no domain: want an error")
	}
	text := scrape(t, m)
	for _, line := range []string{
		`penstock_limit_decisions_total{limit="shop/user",outcome="allowed",source="store"} 2`,
		`penstock_limit_decisions_total{limit="shop/user",outcome="denied",source="store"} 1`,
		`penstock_limit_units_total{limit="shop/user"} 2`,
		`penstock_rule_decisions_total{outcome="allowed",rule="shop/user"} 2`,
		`penstock_rule_decisions_total{outcome="denied",rule="shop/user"} 1`,
		`penstock_rule_decisions_total{outcome="allowed",rule=""} 3`,
		`penstock_rule_decisions_total{outcome="error",rule=""} 1`,
		`penstock_rule_decisions_total{outcome="allowed",rule="shop/trial"} 1`,
		`penstock_rule_decisions_total{outcome="shadow",rule="shop/trial"} 1`,
		`penstock_decision_duration_seconds_count{by="rules"} 6`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
}

func TestMetricsBoundNames(t *testing.T) {
	m := promlimit.New()
	for i := range 5000 {
		m.Observe(penstock.Observation{Request: penstock.Request{Limit: penstock.PerSecond(1).WithName(fmt.Sprint("customer", i))}})
	}
	text := scrape(t, m)
	if n := strings.Count(text, "\npenstock_limit_decisions_total{"); n != 1001 || !strings.Contains(text, `limit="(others)",outcome="denied",source="store"} 4000`) {
		t.Errorf("%d series, want 1001 and the rest under (others)", n)
	}
}
