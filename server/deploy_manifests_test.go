package server_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
	"go.yaml.in/yaml/v3"
)

const (
	deployDir    = "../deploy"
	kustomizeDir = deployDir + "/kubernetes"
	deployToken  = "0123456789abcdef"
)

var rulesInForce = regexp.MustCompile(`(?m)^penstock_rules [1-9]`)

func TestKustomizeBaseRunsDaemons(t *testing.T) {
	var base struct {
		Resources          []string
		Replicas           []struct{ Count int }
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
	}
	parseFile(t, kustomizeDir+"/kustomization.yaml", &base)
	var all release
	for _, name := range base.Resources {
		all = append(all, readObjects(t, filepath.Join(kustomizeDir, name))...)
	}
	for _, m := range base.ConfigMapGenerator {
		o := object{Kind: "ConfigMap", Data: map[string]string{}}
		o.Metadata.Name = m.Name
		for _, file := range m.Files {
			o.Data[path.Base(file)] = readText(t, filepath.Join(kustomizeDir, file))
		}
		all = append(all, o)
	}
	if d := all.deployment(t); len(base.Replicas) != 1 || base.Replicas[0].Count != d.Replicas {
		t.Errorf("kustomization.yaml has the replicas %v and deployment.yaml %d", base.Replicas, d.Replicas)
	}
	all.check(t)
}

// A release is what a cluster is given.
type release []object

type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Data map[string]string
	Spec yaml.Node
}

type deployment struct {
	Replicas int
	Selector selector
	Template struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Grace           int `yaml:"terminationGracePeriodSeconds"`
			SecurityContext struct {
				User  int `yaml:"runAsUser"`
				Group int `yaml:"runAsGroup"`
			} `yaml:"securityContext"`
			Containers []container
			Volumes    []volume
		}
	}
}

type selector struct {
	Labels map[string]string `yaml:"matchLabels"`
}

type container struct {
	Args []string
	Env  []struct {
		Name, Value string
		From        any `yaml:"valueFrom"`
	}
	Ports []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
	Startup   probe `yaml:"startupProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Mounts    []struct {
		Name string
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

type volume struct {
	Name   string
	Map    struct{ Name string } `yaml:"configMap"`
	Secret struct {
		Name string `yaml:"secretName"`
	}
}

type service struct {
	Selector map[string]string
	Ports    []struct {
		Name   string
		Port   int
		Target string `yaml:"targetPort"`
	}
}

type monitor struct {
	Selector  selector
	Endpoints []struct {
		Port, Path    string
		Authorization struct {
			Credentials struct{ Name, Key string }
		}
	}
}

// check starts the daemon of a release, with its settings, rules and token, and asks it
// what the cluster will ask: probes and metrics.
func (r release) check(t *testing.T) {
	t.Helper()
	d := r.deployment(t)
	c, pod := d.Template.Spec.Containers[0], d.Template.Spec
	settings := containerSettings(t, c.Args, c.environ())
	checkPorts(t, settings, c.ports())
	if nodes := settings["nodes"]; nodes != strconv.Itoa(d.Replicas) {
		t.Errorf("%d replicas have --nodes %s", d.Replicas, nodes)
	}
	if got, want := strconv.Itoa(pod.SecurityContext.User)+":"+strconv.Itoa(pod.SecurityContext.Group), imageUser(t); got != want {
		t.Errorf("runs as %s, and the image as %s", got, want)
	}
	if config := loadSettings(t, maps.Clone(settings), nil); time.Duration(pod.Grace)*time.Second <= config.ShutdownDelay+config.ShutdownGrace {
		t.Errorf("is killed after %d s, before --shutdown-delay and --shutdown-grace end", pod.Grace)
	}
	r.checkSelectors(t, &d)
	r.checkServices(t, c.ports())
	running := startDeployed(t, settings, r.mounts(t, &d))
	for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
		if status, body := get(t, "http://"+running.addr(p.Get.Port)+p.Get.Path); status != http.StatusOK {
			t.Errorf("the probe of %s at %s: %d %s", p.Get.Path, p.Get.Port, status, body)
		}
	}
	r.checkMonitor(t, running, pod.Volumes)
}

func (r release) deployment(t *testing.T) (d deployment) {
	t.Helper()
	decode(t, r.only(t, "Deployment"), &d)
	return d
}

func (r release) only(t *testing.T, kind string) *object {
	t.Helper()
	found := r.all(kind)
	if len(found) != 1 {
		t.Fatalf("%d objects are of kind %s, want 1", len(found), kind)
	}
	return &found[0]
}

func (r release) all(kind string) release {
	return slices.DeleteFunc(slices.Clone(r), func(o object) bool { return o.Kind != kind })
}

func (r release) checkSelectors(t *testing.T, d *deployment) {
	t.Helper()
	var budget struct{ Selector selector }
	decode(t, r.only(t, "PodDisruptionBudget"), &budget)
	selectors := []map[string]string{d.Selector.Labels, budget.Selector.Labels}
	for _, o := range r.all("Service") {
		var s service
		decode(t, &o, &s)
		selectors = append(selectors, s.Selector)
	}
	for _, s := range selectors {
		if len(s) == 0 || !selects(s, d.Template.Metadata.Labels) {
			t.Errorf("a selector %v does not select the pods %v", s, d.Template.Metadata.Labels)
		}
	}
}

func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return true
}

func (r release) checkServices(t *testing.T, ports map[string]int) {
	t.Helper()
	for _, o := range r.all("Service") {
		var s service
		decode(t, &o, &s)
		for _, p := range s.Ports {
			if ports[p.Target] != p.Port {
				t.Errorf("service %s: port %d has the target %s, which is %d", o.Metadata.Name, p.Port, p.Target, ports[p.Target])
			}
		}
	}
}

// checkMonitor reads the metrics as Prometheus will: at the port of the service that the
// monitor selects, with the token that the pods mount.
func (r release) checkMonitor(t *testing.T, running *daemon, volumes []volume) {
	t.Helper()
	var m monitor
	decode(t, r.only(t, "ServiceMonitor"), &m)
	e := m.Endpoints[0]
	var matched int
	for _, o := range r.all("Service") {
		var s service
		decode(t, &o, &s)
		for _, p := range s.Ports {
			if p.Name == e.Port && selects(m.Selector.Labels, o.Metadata.Labels) {
				matched++
			}
		}
	}
	if matched != 1 {
		t.Errorf("the monitor selects %d ports, want 1", matched)
	}
	secret := e.Authorization.Credentials
	if !slices.ContainsFunc(volumes, func(v volume) bool { return v.Secret.Name == secret.Name }) || secret.Key != "token" {
		t.Errorf("the monitor sends %v, which the pods do not mount", secret)
	}
	wantMetricsWithToken(t, "http://"+running.addr(e.Port)+e.Path)
}

// mounts makes directories of what the pods mount, by path in the container.
func (r release) mounts(t *testing.T, d *deployment) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range d.Template.Spec.Containers[0].Mounts {
		i := slices.IndexFunc(d.Template.Spec.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("there is no volume %s", m.Name)
		}
		files := map[string]string{"token": deployToken}
		if name := d.Template.Spec.Volumes[i].Map.Name; name != "" {
			files = r.configMap(t, name)
		}
		found[m.Path] = t.TempDir()
		for name, text := range files {
			writeFile(t, filepath.Join(found[m.Path], name), text)
		}
	}
	return found
}

func (r release) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	for _, o := range r.all("ConfigMap") {
		if o.Metadata.Name == name {
			return o.Data
		}
	}
	t.Fatalf("there is no ConfigMap %s", name)
	return nil
}

func (c *container) ports() map[string]int {
	found := map[string]int{}
	for _, p := range c.Ports {
		found[p.Name] = p.Port
	}
	return found
}

func (c *container) environ() map[string]string {
	found := map[string]string{}
	for _, e := range c.Env {
		if found[e.Name] = e.Value; e.From != nil {
			found[e.Name] = "a-pod"
		}
	}
	return found
}

// containerSettings returns the settings of a daemon in a container. All of them must be in
// the daemon's table.
func containerSettings(t *testing.T, args []string, environ map[string]string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for name, value := range environ {
		i := slices.IndexFunc(server.Settings, func(s server.Setting) bool { return s.Env() == name })
		if i >= 0 {
			settings[server.Settings[i].Name] = value
		} else if strings.HasPrefix(name, "PENSTOCK_") {
			t.Errorf("the daemon has no variable %s", name)
		}
	}
	if len(args) == 0 || args[0] != "serve" {
		t.Fatalf("the arguments are %q, want serve first", args)
	}
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !ok || !slices.ContainsFunc(server.Settings, func(s server.Setting) bool { return s.Name == name }) {
			t.Errorf("the daemon has no flag %s, or it has no =", arg)
		}
		settings[name] = value
	}
	return settings
}

// checkPorts checks that a container's ports, by listener, are those of the settings.
func checkPorts(t *testing.T, settings map[string]string, ports map[string]int) {
	t.Helper()
	c := loadSettings(t, maps.Clone(settings), nil)
	want := map[string]int{}
	for name, addr := range map[string]string{"http": c.HTTP.Addr, "grpc": c.GRPC.Addr, "resp": c.RESP.Addr, "admin": c.Admin.Addr} {
		if addr == "" {
			continue
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host != "" {
			t.Errorf("the listener %s is at %s, which other pods cannot reach", name, addr)
		}
		want[name], _ = strconv.Atoi(port)
	}
	if !maps.Equal(ports, want) {
		t.Errorf("the container has the ports %v, and the daemon %v", ports, want)
	}
}

// loadSettings loads settings, in which paths of the container are replaced by those that
// are mounted there. Without mounts, files are left out.
func loadSettings(t *testing.T, settings, mounts map[string]string) *server.Config {
	t.Helper()
	for name, value := range settings {
		if !strings.HasPrefix(value, "/") {
			continue
		}
		delete(settings, name)
		for mount, dir := range mounts {
			if rest, ok := strings.CutPrefix(value, mount); ok {
				settings[name] = dir + rest
			}
		}
		if mounts != nil && settings[name] == "" {
			t.Errorf("--%s: nothing is mounted at %s", name, value)
		}
	}
	c, err := server.LoadConfig(settings, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startDeployed starts a daemon with the settings of a container, at free ports and with
// the Redis of the tests.
func startDeployed(t *testing.T, settings, mounts map[string]string) *daemon {
	t.Helper()
	settings = maps.Clone(settings)
	if !strings.HasPrefix(settings["store"], "redis://") {
		t.Errorf("the store is %q, want Redis, which daemons share", settings["store"])
	}
	loadSettings(t, settings, mounts)
	maps.Copy(settings, map[string]string{
		"store": "redis://" + redis.Addr, "redis-prefix": t.Name(), "redis-timeout": "10s", "shutdown-delay": "0s",
	})
	for _, listener := range []string{"grpc", "http", "resp", "admin"} {
		if addr, ok := settings[listener]; !ok || addr != "" {
			settings[listener] = "127.0.0.1:0"
		}
	}
	return start(t, settings)
}

// wantMetricsWithToken reads metrics, which need the token and show that rules are in force.
func wantMetricsWithToken(t *testing.T, url string) {
	t.Helper()
	if status, _ := get(t, url); status != http.StatusUnauthorized {
		t.Errorf("%s without a token: %d", url, status)
	}
	if status, body := getWithToken(t, url); status != http.StatusOK || !rulesInForce.MatchString(body) {
		t.Errorf("%s with the token: %d, or no rules in %.200s", url, status, body)
	}
}

func getWithToken(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+deployToken)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, read(t, answer)
}

// imageUser returns the user of the image, which the Dockerfile names.
func imageUser(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^USER (\S+)$`).FindStringSubmatch(readText(t, "../Dockerfile"))[1]
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func parseFile(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// readObjects returns the objects in a file of manifests.
func readObjects(t *testing.T, file string) (all release) {
	t.Helper()
	documents := yaml.NewDecoder(bytes.NewReader([]byte(readText(t, file))))
	for {
		var o object
		switch err := documents.Decode(&o); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		}
		if o.Kind != "" { // a document may be empty
			all = append(all, o)
		}
	}
}

func decode(t *testing.T, o *object, into any) {
	t.Helper()
	if err := o.Spec.Decode(into); err != nil {
		t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, err)
	}
}

// A composeService is a service of compose.yaml.
type composeService struct {
	Build       string
	Command     []string
	Environment map[string]string
	Secrets     []string
	Volumes     []string
	Ports       []string
	DependsOn   map[string]any `yaml:"depends_on"`
}

// mounts returns the files that a service mounts, by path in the container. All of them
// must exist.
func (s *composeService) mounts(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		found[parts[1]] = filepath.Join(deployDir, parts[0])
		if _, err := os.Stat(found[parts[1]]); err != nil || parts[len(parts)-1] != "ro" {
			t.Errorf("the volume %s is not there, or not read-only: %v", v, err)
		}
	}
	return found
}

// Compose starts the daemon with settings that it has, Prometheus scrapes it with the
// token, and Grafana finds Prometheus and the dashboard.
func TestComposeRunsDaemonWithDashboard(t *testing.T) {
	var file struct {
		Services map[string]*composeService
		Secrets  map[string]struct{ Environment string }
	}
	parseFile(t, deployDir+"/compose.yaml", &file)
	for name, s := range file.Services {
		for _, secret := range s.Secrets {
			if file.Secrets[secret].Environment != "PENSTOCK_TOKEN" {
				t.Errorf("%s: there is no secret %s", name, secret)
			}
		}
		for other := range s.DependsOn {
			if file.Services[other] == nil {
				t.Errorf("%s depends on %s, which is not there", name, other)
			}
		}
	}
	p := file.Services["penstock"]
	if _, err := os.Stat(filepath.Join(deployDir, p.Build, "Dockerfile")); err != nil {
		t.Error(err)
	}
	settings := containerSettings(t, p.Command, p.Environment)
	checkPorts(t, settings, publishedPorts(t, p.Ports))
	mounts := p.mounts(t)
	mounts["/run/secrets"] = t.TempDir()
	writeFile(t, filepath.Join(mounts["/run/secrets"], p.Secrets[0]), deployToken)
	running := startDeployed(t, settings, mounts)
	checkComposePrometheus(t, file.Services["prometheus"], running, settings)
	checkComposeGrafana(t, file.Services["grafana"])
}

// publishedPorts returns the container's ports, by the listener that has such a default.
func publishedPorts(t *testing.T, ports []string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, p := range ports {
		port := p[strings.LastIndex(p, ":")+1:]
		for _, s := range server.Settings {
			if s.Kind == "address" && strings.HasSuffix(s.Default, ":"+port) {
				found[s.Name], _ = strconv.Atoi(port)
			}
		}
		if !strings.HasPrefix(p, "127.0.0.1:") {
			t.Errorf("the port %s is open to other machines", p)
		}
	}
	return found
}

func checkComposePrometheus(t *testing.T, s *composeService, running *daemon, settings map[string]string) {
	t.Helper()
	var config struct {
		RuleFiles []string `yaml:"rule_files"`
		Scrape    []struct {
			Path          string `yaml:"metrics_path"`
			Authorization struct {
				File string `yaml:"credentials_file"`
			}
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	mounts := s.mounts(t)
	place := strings.TrimPrefix(s.Command[0], "--config.file=")
	parseFile(t, mounts[place], &config)
	for _, rules := range config.RuleFiles {
		if mounts[path.Join(path.Dir(place), rules)] != filepath.Clean(alertsFile) {
			t.Errorf("prometheus: %s is not mounted", rules)
		}
	}
	job := config.Scrape[0]
	if want := "penstock" + settings["admin"]; job.Static[0].Targets[0] != want {
		t.Errorf("prometheus scrapes %v, want %s", job.Static, want)
	}
	if file := job.Authorization.File; file != settings["token-file"] || len(s.Secrets) != 1 {
		t.Errorf("prometheus sends the token in %s", file)
	}
	wantMetricsWithToken(t, "http://"+running.addr("admin")+job.Path)
}

func checkComposeGrafana(t *testing.T, s *composeService) {
	t.Helper()
	mounts := s.mounts(t)
	var sources struct{ Datasources []struct{ Type, URL string } }
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	dir := mounts["/etc/grafana/provisioning"]
	parseFile(t, dir+"/datasources/prometheus.yaml", &sources)
	parseFile(t, dir+"/dashboards/penstock.yaml", &boards)
	if d := sources.Datasources; len(d) != 1 || d[0].Type != "prometheus" || d[0].URL != "http://prometheus:9090" {
		t.Errorf("grafana has the data sources %v", d)
	}
	if place := boards.Providers[0].Options.Path; mounts[place+"/penstock.json"] != filepath.Clean(dashboardFile) {
		t.Errorf("grafana looks for dashboards in %s, and has mounted %v", place, mounts)
	}
}
