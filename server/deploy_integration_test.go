//go:build integration

package server_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if output, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

func TestIntegrationAlertsPassPromtool(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", alertsFile)
}

// The queries of the dashboard are checked as recording rules, without its variables.
func TestIntegrationDashboardPassesPromtool(t *testing.T) {
	var file strings.Builder
	file.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	for i, query := range dashboardQueries(t) {
		query = strings.ReplaceAll(query, "$__rate_interval", "5m")
		fmt.Fprintf(&file, "      - record: query:%d\n        expr: %q\n", i, query)
	}
	promtool(t, "check", "rules", write(t, "dashboard.yaml", file.String()))
}

// alertCases are what Prometheus scrapes, and the alerts that must and must not fire of it.
const alertCases = `
rule_files: [%s]
tests:
  - name: a load that failed half a day ago, and a daemon that is down
    interval: 1m
    input_series:
      - {series: 'penstock_config_last_load_successful{job="p",instance="a"}', values: '0+0x720'}
      - {series: 'penstock_rules{job="p",instance="a"}', values: '7+0x720'}
      - {series: 'up{job="p",instance="a"}', values: '1+0x720'}
      - {series: 'up{job="p",instance="b"}', values: '0+0x720'}
      - {series: 'up{job="other",instance="c"}', values: '0+0x720'}
    promql_expr_test:
      - {expr: 'sum by (alertname, instance) (ALERTS{alertstate="firing"})', eval_time: 12h, exp_samples: [
          {labels: '{alertname="PenstockRulesNotReloaded",instance="a"}', value: 1}, {labels: '{alertname="PenstockDown",instance="b"}', value: 1}]}
  - name: no daemon
    interval: 1m
    input_series: [{series: 'up{job="p",instance="a"}', values: '0+0x720'}]
    promql_expr_test:
      - {expr: 'sum by (alertname) (ALERTS{alertstate="firing"})', eval_time: 12h, exp_samples: [{labels: '{alertname="PenstockAbsent"}', value: 1}]}
`

func TestIntegrationAlertsFireAsLongAsTheirCause(t *testing.T) {
	file, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", write(t, "cases.yaml", fmt.Sprintf(alertCases, file)))
}
