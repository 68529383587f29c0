//go:build integration

package server_test

import (
	"fmt"
	"os/exec"
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
