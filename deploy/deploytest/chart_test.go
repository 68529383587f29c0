package deploytest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
)

func TestChartRunsDaemons(t *testing.T) {
	t.Parallel()
	const tls = "{volumes: [{name: tls, secret: {secretName: penstock-tls}}], volumeMounts: [{name: tls, mountPath: /etc/penstock/tls}], settings: {"
	for name, values := range map[string]string{
		"default":        "",
		"changed":        changedValues,
		"without":        "{store: '', storeSecret: redis-address, serviceMonitor: {enabled: false}, settings: {log-format: null, max-bytes: null, shutdown-delay: null}}",
		"TLS":            tls + "admin-tls-cert: /etc/penstock/tls/tls.crt, admin-tls-key: /etc/penstock/tls/tls.key, grpc-tls-cert: /etc/penstock/tls/tls.crt, grpc-tls-key: /etc/penstock/tls/tls.key}, serviceMonitor: {tlsConfig: {insecureSkipVerify: true}}}",
		"rules over xDS": tls + "rules-xds: 'grpcs://127.0.0.1:1?wait=false&ca=/etc/penstock/tls/ca.crt'}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			renderRelease(t, "penstock", values).check(t)
		})
	}
}

const changedValues = `
replicas: 5
image: {repository: example.com/penstock, tag: "1.0", pullPolicy: Always}
tokenSecret: other
settings: {log-level: debug, envoy-headers: true, max-keys: 1000000, request-limits-share: 0.25, redis-prefix: "7", shutdown-delay: 20s}
terminationGracePeriodSeconds: 60
rules: {shop.yaml: null, other.yaml: "domain: other\ndescriptors: [{key: a, limit: 1/s}]\n"}
resources: {limits: {memory: 1Gi, cpu: "1"}}
goMemoryLimit: 900MiB
nodeSelector: {disk: ssd}
tolerations: [{key: spot, operator: Exists}]
affinity: {podAntiAffinity: {}}
`

const digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestChartFollowsValues(t *testing.T) {
	t.Parallel()
	for values, check := range map[string]func(r release) bool{
		"replicas: 5":                     func(r release) bool { return *objectsOf[*apps.Deployment](r)[0].Spec.Replicas == 5 },
		"networkPolicy: {enabled: false}": func(r release) bool { return len(objectsOf[*network.NetworkPolicy](r)) == 0 },
		"networkPolicy: {callers: [{podSelector: {}}, {namespaceSelector: {}}]}": func(r release) bool {
			return len(objectsOf[*network.NetworkPolicy](r)[0].Spec.Ingress[0].From) == 2
		},
		"image: {digest: 'sha256:" + digest + "'}": func(r release) bool { return container(r).Image == "penstock:latest@sha256:"+digest },
		"serviceMonitor: {enabled: false}":         func(r release) bool { return len(objectsOf[*monitoring.ServiceMonitor](r)) == 0 },
		"": func(r release) bool {
			return len(objectsOf[*monitoring.ServiceMonitor](r)) == 1 && len(objectsOf[*core.ConfigMap](r)) == 1 && len(objectsOf[*policy.PodDisruptionBudget](r)) == 1 && len(objectsOf[*network.NetworkPolicy](r)) == 1
		},
		"{store: '', storeSecret: a}": func(r release) bool {
			from := variable(r, "PENSTOCK_STORE").ValueFrom
			return from != nil && from.SecretKeyRef.Name == "a" && from.SecretKeyRef.Key == "store"
		},
		"store: redis://other:1":          func(r release) bool { return variable(r, "PENSTOCK_STORE").Value == "redis://other:1" },
		"settings: {max-keys: 1000000}":   func(r release) bool { return variable(r, "PENSTOCK_MAX_KEYS").Value == "1000000" },
		"settings: {envoy-headers: true}": func(r release) bool { return variable(r, "PENSTOCK_ENVOY_HEADERS").Value == "true" },
		"settings: {grpc: '[::]:8081'}":   func(r release) bool { return variable(r, "PENSTOCK_GRPC").Value == "[::]:8081" },
		"settings: {resp: ''}":            func(r release) bool { return variable(r, "PENSTOCK_RESP").Name != "" },
		"settings: {rules-xds: 'grpc://a'}": func(r release) bool {
			return len(objectsOf[*core.ConfigMap](r)) == 0 && variable(r, "PENSTOCK_RULES").Name == ""
		},
		"image: {repository: a, tag: b, pullPolicy: Always}": func(r release) bool {
			return container(r).Image == "a:b" && container(r).ImagePullPolicy == core.PullAlways
		},
		"goMemoryLimit: 1GiB":          func(r release) bool { return variable(r, "GOMEMLIMIT").Value == "1GiB" },
		"nodeSelector: {a: b}":         func(r release) bool { return pod(r).NodeSelector["a"] == "b" },
		"tolerations: [{key: a}]":      func(r release) bool { return pod(r).Tolerations[0].Key == "a" },
		"affinity: {nodeAffinity: {}}": func(r release) bool { return pod(r).Affinity.NodeAffinity != nil },
	} {
		if r := renderRelease(t, "penstock", values); !check(r) {
			t.Errorf("values %q have no effect", values)
		}
	}
}

func pod(r release) *core.PodSpec         { return &objectsOf[*apps.Deployment](r)[0].Spec.Template.Spec }
func container(r release) *core.Container { return &pod(r).Containers[0] }
func variable(r release, name string) (v core.EnvVar) {
	for _, e := range container(r).Env {
		if e.Name == name {
			v = e
		}
	}
	return v
}

func TestChartRefusesWrongValues(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"store: ''":                "want the address of Redis",
		"rules: {shop.yaml: null}": "needs a rule file",
		"settings: {nodes: 7}":     "settings: nodes is set by the chart",

		"replcas: 5":                  "'replcas' not allowed",
		"image: {name: a}":            "'name' not allowed",
		"image: {digest: abc}":        "does not match pattern",
		"networkPolicy: {admin: []}":  "minItems",
		"replicas: many":              "got string, want integer",
		"settings: {resp: {port: 1}}": "got object, want",

		"settings: {grpc: ':9000'}":          "settings: grpc: :9000: the services and the container of the chart have port 8081",
		"settings: {http: '127.0.0.1:8080'}": "settings: http: 127.0.0.1:8080: the services and the container of the chart have port 8080",
		"settings: {resp: '16380'}":          "settings: resp: 16380: the services and the container of the chart have port 6380",
	} {
		if _, err := renderChart(t, "penstock", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", values, err, want)
		}
	}
}

// The documented command installs on a cluster without the Prometheus operator.
func TestChartNeedsNoOperator(t *testing.T) {
	t.Parallel()
	text, err := renderChartOn(t, apiVersions{"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}, "penstock", "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := decodeRelease(text)
	if err != nil || len(objectsOf[*monitoring.ServiceMonitor](r)) != 0 || len(objectsOf[*apps.Deployment](r)) != 1 {
		t.Errorf("got %d objects, %v, want the daemons and no ServiceMonitor", len(r), err)
	}
}

// Two releases can be in one namespace: neither has objects or pods of the other.
func TestChartReleasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := renderRelease(t, "shop", ""), renderRelease(t, strings.Repeat("long-name-", 5)+"end", "")
	append(slices.Clone(a), b...).checkNames(t)
	pods := objectsOf[*apps.Deployment](b)[0].Spec.Template.Labels
	for _, s := range a.selectors() {
		if selects(s, pods) {
			t.Errorf("the selector %v of one release selects the pods %v of the other", s, pods)
		}
	}
}

func renderRelease(t *testing.T, name, values string) release {
	t.Helper()
	text, err := renderChart(t, name, values)
	if err != nil {
		t.Fatal(err)
	}
	r, err := decodeRelease(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// renderChart renders the chart with Helm's loader and functions, in place of its engine,
// which takes minutes to build. A value that the templates use and values.yaml lacks is an
// error.
func renderChart(t *testing.T, name, values string) (string, error) {
	t.Helper()
	return renderChartOn(t, withOperator, name, values)
}

func renderChartOn(t *testing.T, apis apiVersions, name, values string) (string, error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	var changes map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &changes); err != nil {
		t.Fatalf("%s: %v", values, err)
	}
	merge(c.Values, changes)
	if err := checkSchema(t, c); err != nil {
		return "", err
	}
	templates := parseTemplates(t, c)
	data := map[string]any{
		"Values":  c.Values,
		"Chart":   c.Metadata,
		"Release": map[string]any{"Name": name, "Service": "Helm", "Namespace": "default"},

		"Capabilities": map[string]any{"APIVersions": apis},
	}
	var text strings.Builder
	for _, file := range c.Templates {
		if strings.HasPrefix(path.Base(file.Name), "_") {
			continue
		}
		text.WriteString("\n---\n")
		if err := templates.ExecuteTemplate(&text, file.Name, data); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

// apiVersions are the APIs of a cluster.
type apiVersions []string

// Has is what templates call.
func (v apiVersions) Has(api string) bool { return slices.Contains(v, api) }

var withOperator = apiVersions{"v1", "apps/v1", "policy/v1", "monitoring.coreos.com/v1"}

// checkSchema validates the values of a chart by its schema, as Helm does before it renders.
func checkSchema(t *testing.T, c *chart.Chart) error {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.schema.json", schema); err != nil {
		t.Fatal(err)
	}
	values, err := json.Marshal(c.Values)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonschema.UnmarshalJSON(bytes.NewReader(values))
	if err != nil {
		t.Fatal(err)
	}
	return compiler.MustCompile("values.schema.json").Validate(decoded)
}

// merge merges a user's values into those of the chart, as Helm does: maps are merged, and
// null removes a value.
func merge(values, changes map[string]any) {
	for name, change := range changes {
		inner, ok := values[name].(map[string]any)
		if changed, both := change.(map[string]any); ok && both {
			merge(inner, changed)
		} else if change == nil {
			delete(values, name)
		} else {
			values[name] = change
		}
	}
}

func parseTemplates(t *testing.T, c *chart.Chart) *template.Template {
	t.Helper()
	templates := template.New("").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	maps.Copy(functions, chartFunctions(templates))
	templates.Funcs(functions)
	for _, file := range c.Templates {
		if _, err := templates.New(file.Name).Parse(string(file.Data)); err != nil {
			t.Fatal(err)
		}
	}
	return templates
}

// chartFunctions returns the functions of Helm's engine that its library of functions lacks.
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
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
	}
}
