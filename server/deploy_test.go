package server_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	dashboardFile = "../deploy/grafana/penstock.json"
	alertsFile    = "../deploy/prometheus/alerts.yaml"
)

// A dashboard that queries what no daemon exports shows nothing, and an alert on it never
// fires. So every metric, label and value in the files must occur in a scrape.
func TestDashboardAndAlertsQueryWhatDaemonsExport(t *testing.T) {
	exported := scrapeDaemons(t)
	for file, queries := range map[string][]string{dashboardFile: dashboardQueries(t), alertsFile: alertQueries(t)} {
		if len(queries) < 10 {
			t.Errorf("%s: found only %d queries", file, len(queries))
		}
		for _, query := range queries {
			for _, problem := range exported.check(query) {
				t.Errorf("%s: %s\n%s", file, problem, query)
			}
		}
	}
}

func TestQueryCheckFindsMistakes(t *testing.T) {
	exported := parseScrape("a_total{rule=\"x\",mode=\"shadow\"} 1\nb_seconds_bucket{le=\"1\"} 2\n")
	for query, want := range map[string]string{
		`sum by (rule) (rate(a_total{mode="shadow",rule=~"$rule"}[5m] offset 1w)) > 2 * 0.5`: "",
		`histogram_quantile(0.99, sum by (le) (rate(b_seconds_bucket[5m])))`:                 "",
		`rate(c_total[5m])`:              "no metric c_total",
		`a_total{rul="x"}`:               "a_total has no label rul",
		`a_total{mode="shadw"}`:          `a_total has no mode="shadw"`,
		`sum by (rules) (a_total)`:       "no metric has the label rules",
		`sum(a_total) by (job, outcome)`: "no metric has the label outcome",
	} {
		if got := strings.Join(exported.check(query), "; "); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
}

// A scrape is what daemons export: the values of each label, by metric.
type scrape map[string]map[string]map[string]bool

// scrapeDaemons returns the metrics of a daemon with the memory store and of one with
// Redis and rules over xDS, after requests of all kinds.
func scrapeDaemons(t *testing.T) scrape {
	t.Helper()
	a := newAuthority(t)
	a.sign("server", "server")
	xds := startXDS(t)
	xds.Set("1", denyingRules("shop"))
	all := parseScrape("up 1\n") // Prometheus adds it
	for _, settings := range []map[string]string{
		{"data": t.TempDir(), "rules": writeRules(t, shopRules)},
		{"rules-xds": "grpc://" + xds.Addr(), "store": "redis://" + redis.Addr, "redis-prefix": "deploy", "redis-timeout": "10s"},
	} {
		maps.Copy(settings, map[string]string{
			"grpc-tls-cert": a.path("server.crt"), "grpc-tls-key": a.path("server.key"),
		})
		d := start(t, settings)
		post(t, d.addr("http"), `{"key":"k","limit":"3/1h"}`)
		post(t, d.addr("http"), `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"1"}]}]}`)
		post(t, d.addr("http"), `{"domain":"nowhere","descriptors":[{"entries":[{"key":"user","value":"1"}]}]}`)
		_, text := get(t, "http://"+d.addr("admin")+"/metrics")
		for name, labels := range parseScrape(text) {
			for label, values := range labels {
				all.add(name, label, values)
			}
		}
	}
	return all
}

func (s scrape) add(name, label string, values map[string]bool) {
	if s[name] == nil {
		s[name] = map[string]map[string]bool{}
	}
	if s[name][label] == nil {
		s[name][label] = map[string]bool{}
	}
	maps.Copy(s[name][label], values)
}

var (
	samplePattern  = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? \S+$`)
	labelPattern   = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	matcherPattern = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
)

func parseScrape(text string) scrape {
	s := scrape{}
	for _, sample := range samplePattern.FindAllStringSubmatch(text, -1) {
		for _, target := range []string{"job", "instance"} { // Prometheus adds these
			s.add(sample[1], target, nil)
		}
		for _, label := range labelPattern.FindAllStringSubmatch(sample[2], -1) {
			s.add(sample[1], label[1], map[string]bool{label[2]: true})
		}
	}
	return s
}

var (
	selectorPattern = regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})`)
	groupingPattern = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	rangePattern    = regexp.MustCompile(`\[[^\]]*\]|\boffset\s+\w+`)
	functionPattern = regexp.MustCompile(`[a-zA-Z_]\w*\s*\(`)
	wordPattern     = regexp.MustCompile(`[a-zA-Z_:][\w:]*`)
	numberPattern   = regexp.MustCompile(`\b\d[\w.]*`)
	operators       = []string{"and", "or", "unless", "bool", "by", "without"}
)

// check returns what a query in PromQL uses and the scrape does not have.
func (s scrape) check(query string) (problems []string) {
	for _, selector := range selectorPattern.FindAllStringSubmatch(query, -1) {
		problems = append(problems, s.checkMatchers(selector[1], selector[2])...)
		query = strings.Replace(query, selector[2], "", 1)
	}
	for _, grouping := range groupingPattern.FindAllStringSubmatch(query, -1) {
		for _, label := range wordPattern.FindAllString(grouping[1], -1) {
			if !s.hasLabel(label) {
				problems = append(problems, "no metric has the label "+label)
			}
		}
		query = strings.Replace(query, grouping[0], " ", 1)
	}
	for _, pattern := range []*regexp.Regexp{rangePattern, functionPattern, numberPattern} {
		query = pattern.ReplaceAllString(query, " ")
	}
	for _, name := range wordPattern.FindAllString(query, -1) {
		if s[name] == nil && !slices.Contains(operators, name) {
			problems = append(problems, "no metric "+name)
		}
	}
	return problems
}

// checkMatchers checks the labels of a selector, and the values that it compares with. A
// value with a variable, or a pattern, is not checked.
func (s scrape) checkMatchers(metric, matchers string) (problems []string) {
	if s[metric] == nil {
		return nil // check reports it
	}
	for _, m := range matcherPattern.FindAllStringSubmatch(matchers, -1) {
		label, operator, value := m[1], m[2], m[3]
		switch {
		case s[metric][label] == nil:
			problems = append(problems, metric+" has no label "+label)
		case operator == "=" && !strings.Contains(value, "$") && !s[metric][label][value]:
			problems = append(problems, metric+" has no "+label+`="`+value+`"`)
		}
	}
	return problems
}

func (s scrape) hasLabel(label string) bool {
	for _, labels := range s {
		if labels[label] != nil {
			return true
		}
	}
	return false
}

// dashboardQueries returns the queries of all panels and variables. It checks that the
// data source is nowhere a certain one.
func dashboardQueries(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board any
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	variable := regexp.MustCompile(`^label_values\((.*), \w+\)$`)
	walk(board, func(name string, value any) {
		switch name {
		case "expr":
			queries = append(queries, value.(string))
		case "definition":
			queries = append(queries, variable.FindStringSubmatch(value.(string))[1])
		case "datasource":
			if uid := value.(map[string]any)["uid"]; uid != "${datasource}" {
				t.Errorf("%s: the data source %v is hard-coded", dashboardFile, uid)
			}
		}
	})
	for _, query := range queries {
		if strings.Contains(query, "penstock_") && query != "penstock_rules" && !strings.Contains(query, `job=~"$job"`) {
			t.Errorf("%s: a query is not limited to the chosen job: %s", dashboardFile, query)
		}
	}
	return queries
}

// walk calls visit for each field of a JSON value.
func walk(v any, visit func(name string, value any)) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			visit(name, value)
			walk(value, visit)
		}
	case []any:
		for _, value := range v {
			walk(value, visit)
		}
	}
}

func alertQueries(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatalf("%s: %v", alertsFile, err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			queries = append(queries, r.Expr)
		}
	}
	return queries
}
