package deploytest_test

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	composeloader "github.com/compose-spec/compose-go/v2/loader"
	compose "github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// Compose starts the daemon with settings that it has, Prometheus scrapes it with the
// token, and Grafana finds Prometheus and the dashboard.
func TestComposeRunsDaemonWithDashboard(t *testing.T) {
	t.Parallel()
	services := loadCompose(t).Services
	p := services["penstock"]
	if _, err := os.Stat(filepath.Join(p.Build.Context, p.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	variables := map[string]string{}
	for name, value := range p.Environment {
		variables[name] = *value
	}
	s := settingsOf(t, p.Command, variables)
	checkPorts(t, s, publishedPorts(t, &p, s))
	mounts := bindMounts(t, &p)
	checkRules(t, mounts[s["rules"]])
	mounts["/run/secrets"] = t.TempDir()
	writeFile(t, filepath.Join(mounts["/run/secrets"], p.Secrets[0].Source), token)
	d := startDaemon(t, p.Command, variables, mounts)
	prometheus, grafana := services["prometheus"], services["grafana"]
	checkComposePrometheus(t, &prometheus, d, s)
	checkComposeGrafana(t, &grafana)
}

// loadCompose reads the file as Compose does: what Compose does not know is an error, and so
// is a secret or a dependency that is not there.
func loadCompose(t *testing.T) *compose.Project {
	t.Helper()
	dir, err := filepath.Abs(deployDir)
	if err != nil {
		t.Fatal(err)
	}
	project, err := composeloader.LoadWithContext(t.Context(), compose.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []compose.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
		Environment: compose.Mapping{"PENSTOCK_TOKEN": token},
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// bindMounts returns the files that a service mounts, by path in the container. All of
// them must exist.
func bindMounts(t *testing.T, s *compose.ServiceConfig) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, v := range s.Volumes {
		found[v.Target] = v.Source
		if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly || v.Type != compose.VolumeTypeBind {
			t.Errorf("%s: the volume %s is not there, or not read-only: %v", s.Name, v.Source, err)
		}
	}
	return found
}

// publishedPorts returns the container's ports, by the listener that has it.
func publishedPorts(t *testing.T, service *compose.ServiceConfig, s settings) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, p := range service.Ports {
		for _, name := range listeners {
			if s[name] == ":"+strconv.Itoa(int(p.Target)) {
				found[name] = int(p.Target)
			}
		}
		if p.HostIP != "127.0.0.1" || p.Published != strconv.Itoa(int(p.Target)) {
			t.Errorf("the port %d is open to other machines, or another here: %s:%s", p.Target, p.HostIP, p.Published)
		}
	}
	return found
}

func checkComposePrometheus(t *testing.T, service *compose.ServiceConfig, d *daemon, s settings) {
	t.Helper()
	var config struct {
		RuleFiles []string `json:"rule_files"`
		Scrape    []struct {
			Path          string `json:"metrics_path"`
			Authorization struct {
				File string `json:"credentials_file"`
			}
			Static []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	mounts := bindMounts(t, service)
	place := strings.TrimPrefix(service.Command[0], "--config.file=")
	parse(t, mounts[place], &config)
	for _, rules := range config.RuleFiles {
		if mounts[path.Join(path.Dir(place), rules)] == "" {
			t.Errorf("prometheus: %s is not mounted", rules)
		}
	}
	job := config.Scrape[0]
	if want := "penstock" + s["admin"]; job.Static[0].Targets[0] != want {
		t.Errorf("prometheus scrapes %v, want %s", job.Static, want)
	}
	if file := job.Authorization.File; file != s["token-file"] || len(service.Secrets) != 1 {
		t.Errorf("prometheus sends the token in %s", file)
	}
	d.wantMetricsWithToken(t, "http://"+d.addr(t, "admin")+job.Path)
}

func checkComposeGrafana(t *testing.T, service *compose.ServiceConfig) {
	t.Helper()
	mounts := bindMounts(t, service)
	var sources struct{ Datasources []struct{ Type, URL string } }
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	dir := mounts["/etc/grafana/provisioning"]
	parse(t, dir+"/datasources/prometheus.yaml", &sources)
	parse(t, dir+"/dashboards/penstock.yaml", &boards)
	if d := sources.Datasources; len(d) != 1 || d[0].Type != "prometheus" || d[0].URL != "http://prometheus:9090" {
		t.Errorf("grafana has the data sources %v", d)
	}
	if place := boards.Providers[0].Options.Path; mounts[place+"/penstock.json"] == "" {
		t.Errorf("grafana looks for dashboards in %s, and has mounted %v", place, mounts)
	}
}

func parse(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
