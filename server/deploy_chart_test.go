package server_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v3"
)

const chartDir = deployDir + "/helm/penstock"

func TestChartRunsDaemons(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"default": nil,
		"changed": {
			"replicas": 5, "terminationGracePeriodSeconds": 60, "tokenSecret": "other",
			"settings":    map[string]any{"log-level": "debug", "envoy-headers": true, "shutdown-delay": "20s"},
			"tolerations": []any{map[string]any{"key": "spot", "operator": "Exists"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := renderChart(t, values)
			if err != nil {
				t.Fatal(err)
			}
			readObjects(t, write(t, "rendered.yaml", text)).check(t)
		})
	}
}

func TestChartRefusesMissingValues(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"want the address of Redis": {"store": ""},
		"needs a rule file":         {"rules": nil},
	} {
		if _, err := renderChart(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", values, err, want)
		}
	}
}

func TestChartTakesStoreFromSecret(t *testing.T) {
	text, err := renderChart(t, map[string]any{"store": "", "storeSecret": "redis-address", "serviceMonitor": map[string]any{"enabled": false}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "secretKeyRef:\n                  name: redis-address\n                  key: store\n") {
		t.Errorf("no reference to the secret in\n%s", text)
	}
	if strings.Contains(text, "ServiceMonitor") {
		t.Error("there is a ServiceMonitor, which was disabled")
	}
}

// renderChart renders the chart as Helm does, installed as "penstock". The templates use no
// other functions of Helm than those that are defined here: its libraries take minutes to
// build. Values replace those of the chart as a whole, where Helm would merge maps.
func renderChart(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	var chart, all map[string]any
	parseFile(t, chartDir+"/Chart.yaml", &chart)
	parseFile(t, chartDir+"/values.yaml", &all)
	maps.Copy(all, values)
	templates := template.New("").Option("missingkey=error")
	templates.Funcs(chartFunctions(templates))
	for _, pattern := range []string{"_helpers.tpl", "*.yaml"} {
		template.Must(templates.ParseGlob(filepath.Join(chartDir, "templates", pattern)))
	}
	data := map[string]any{
		"Values":  all,
		"Chart":   map[string]any{"Name": chart["name"], "Version": chart["version"]},
		"Release": map[string]any{"Name": "penstock", "Service": "Helm"},
	}
	var text strings.Builder
	for _, file := range templates.Templates() {
		if !strings.HasSuffix(file.Name(), ".yaml") {
			continue
		}
		text.WriteString("\n---\n")
		if err := file.Execute(&text, data); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

func chartFunctions(templates *template.Template) template.FuncMap {
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := templates.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
		"required": func(message string, value any) (any, error) {
			if value == nil || value == "" {
				return nil, errors.New(message)
			}
			return value, nil
		},
		"toYaml": func(value any) (string, error) {
			text, err := yaml.Marshal(value)
			return strings.TrimSuffix(string(text), "\n"), err
		},
		"nindent": func(n int, text string) string {
			margin := "\n" + strings.Repeat(" ", n)
			return margin + strings.ReplaceAll(text, "\n", margin)
		},
		"quote":      func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"upper":      strings.ToUpper,
		"replace":    func(old, with, text string) string { return strings.ReplaceAll(text, old, with) },
		"contains":   func(part, text string) bool { return strings.Contains(text, part) },
		"trunc":      func(n int, text string) string { return text[:min(n, len(text))] },
		"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
	}
}
