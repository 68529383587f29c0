package deploytest_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// check checks that the objects of a release refer to what is there, starts its daemon with
// the settings, rules and token of the pods, and asks it what a cluster will ask.
func (r release) check(t *testing.T) {
	t.Helper()
	r.checkNames(t)
	d := only[*apps.Deployment](t, r)
	c := &d.Spec.Template.Spec.Containers[0]
	r.checkSelectors(t, d)
	r.checkServices(t, c)
	r.checkPolicy(t, c)
	only[*policy.PodDisruptionBudget](t, r)
	checkVariables(t, c.Env)
	s := settingsOf(t, c.Args, environ(c.Env))
	checkPorts(t, s, containerPorts(c))
	checkPod(t, s, d)
	mounts := r.mounts(t, &d.Spec.Template.Spec)
	running := startDaemon(t, c.Args, environ(c.Env), mounts)
	checkProbes(t, running, c)
	r.checkMonitor(t, running, d)
}

// selectors returns the selectors of pods.
func (r release) selectors() (all []map[string]string) {
	for _, d := range objectsOf[*apps.Deployment](r) {
		all = append(all, d.Spec.Selector.MatchLabels)
		for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
			all = append(all, c.LabelSelector.MatchLabels)
		}
	}
	for _, b := range objectsOf[*policy.PodDisruptionBudget](r) {
		all = append(all, b.Spec.Selector.MatchLabels)
	}
	for _, p := range objectsOf[*network.NetworkPolicy](r) {
		all = append(all, p.Spec.PodSelector.MatchLabels)
	}
	for _, s := range objectsOf[*core.Service](r) {
		all = append(all, s.Spec.Selector)
	}
	return all
}

func (r release) checkSelectors(t *testing.T, d *apps.Deployment) {
	t.Helper()
	for _, s := range r.selectors() {
		if len(s) == 0 || !selects(s, d.Spec.Template.Labels) {
			t.Errorf("a selector %v does not select the pods %v", s, d.Spec.Template.Labels)
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

// checkServices checks that each port of a service is a port of the container, and that each of these is in a service.
func (r release) checkServices(t *testing.T, c *core.Container) {
	t.Helper()
	ports, served := containerPorts(c), map[string]int{}
	for _, s := range objectsOf[*core.Service](r) {
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.String()] != int(p.Port) {
				t.Errorf("service %s: port %d has the target %s, which is not one of %v", s.Name, p.Port, p.TargetPort.String(), ports)
			}
			served[p.TargetPort.String()] = int(p.Port)
		}
	}
	if !maps.Equal(served, ports) {
		t.Errorf("the services have the ports %v, and the container %v", served, ports)
	}
}

// checkPolicy checks that callers reach each port but that of the admin listener, and that those
// who reach it reach no other. Without a policy all pods of the cluster would reach it.
func (r release) checkPolicy(t *testing.T, c *core.Container) {
	t.Helper()
	p := only[*network.NetworkPolicy](t, r)
	var open []string
	for _, rule := range p.Spec.Ingress {
		var ports []string
		for _, port := range rule.Ports {
			ports = append(ports, port.Port.String())
		}
		if len(rule.From) == 0 || len(ports) == 0 || slices.Contains(ports, "admin") && len(ports) > 1 {
			t.Errorf("policy %s: %v may reach %v", p.Name, rule.From, ports)
		}
		open = append(open, ports...)
	}
	if want := slices.Sorted(maps.Keys(containerPorts(c))); !slices.Equal(slices.Sorted(slices.Values(open)), want) {
		t.Errorf("policy %s opens %v, want %v", p.Name, open, want)
	}
}

func containerPorts(c *core.Container) map[string]int {
	found := map[string]int{}
	for _, p := range c.Ports {
		found[p.Name] = int(p.ContainerPort)
	}
	return found
}

// checkVariables checks that no variable is there twice: the last would count.
func checkVariables(t *testing.T, all []core.EnvVar) {
	t.Helper()
	seen := map[string]bool{}
	for _, v := range all {
		if seen[v.Name] {
			t.Errorf("the variable %s is set twice", v.Name)
		}
		seen[v.Name] = true
	}
}

// environ returns the variables of a container. Those that a cluster looks up have values
// of the test.
func environ(all []core.EnvVar) map[string]string {
	found := map[string]string{}
	for _, v := range all {
		found[v.Name] = v.Value
		if from := v.ValueFrom; from != nil && from.SecretKeyRef != nil {
			found[v.Name] = "redis://:secret@redis:6379"
		} else if from != nil {
			found[v.Name] = "a-pod"
		}
	}
	return found
}

// checkPod checks what has to agree between a pod and the daemon in it.
func checkPod(t *testing.T, s settings, d *apps.Deployment) {
	t.Helper()
	pod, c := &d.Spec.Template.Spec, &d.Spec.Template.Spec.Containers[0]
	if s["nodes"] != strconv.Itoa(int(*d.Spec.Replicas)) {
		t.Errorf("%d replicas have --nodes %s", *d.Spec.Replicas, s["nodes"])
	}
	user := strconv.FormatInt(*pod.SecurityContext.RunAsUser, 10) + ":" + strconv.FormatInt(*pod.SecurityContext.RunAsGroup, 10)
	if user != imageUser(t) {
		t.Errorf("runs as %s, and the image as %s", user, imageUser(t))
	}
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	if grace <= s.duration(t, "shutdown-delay")+s.duration(t, "shutdown-grace") {
		t.Errorf("is killed after %v, before --shutdown-delay and --shutdown-grace end", grace)
	}
	memory := bytesOf(t, environ(c.Env)["GOMEMLIMIT"])
	if limit := c.Resources.Limits.Memory().Value(); memory >= limit {
		t.Errorf("GOMEMLIMIT is %d, and the limit of memory %d", memory, limit)
	}
}

// bytesOf parses a size as Go and the daemon write it: 450MiB.
func bytesOf(t *testing.T, size string) int64 {
	t.Helper()
	q, err := resource.ParseQuantity(strings.TrimSuffix(size, "B"))
	if err != nil {
		t.Fatalf("%q: %v", size, err)
	}
	return q.Value()
}

// imageUser returns the user of the image, which the Dockerfile names.
func imageUser(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^USER (\S+)$`).FindStringSubmatch(readText(t, filepath.Join(deployDir, "../Dockerfile")))[1]
}

// mounts makes directories of what the pods mount, by path in the container, and checks
// the rules among them.
func (r release) mounts(t *testing.T, pod *core.PodSpec) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("there is no volume %s", m.Name)
		}
		files := secretFiles(t)
		if source := pod.Volumes[i].ConfigMap; source != nil {
			files = r.configMap(t, source.Name)
		}
		found[m.MountPath] = t.TempDir()
		for name, text := range files {
			writeFile(t, filepath.Join(found[m.MountPath], name), text)
		}
		if pod.Volumes[i].ConfigMap != nil {
			checkRules(t, found[m.MountPath])
		}
	}
	return found
}

func (r release) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	for _, m := range objectsOf[*core.ConfigMap](r) {
		if m.Name == name {
			return m.Data
		}
	}
	t.Fatalf("there is no ConfigMap %s", name)
	return nil
}

// checkProbes asks what the kubelet will ask, at the ports of the container that are named.
func checkProbes(t *testing.T, d *daemon, c *core.Container) {
	t.Helper()
	probes := []*core.Probe{c.StartupProbe, c.LivenessProbe}
	if d.rules { // it is ready once it has rules, which these tests do not send over xDS
		probes = append(probes, c.ReadinessProbe)
	}
	for _, p := range probes {
		port := p.HTTPGet.Port.String()
		if _, ok := containerPorts(c)[port]; !ok {
			t.Errorf("the probe of %s is at the port %s, which the container does not have", p.HTTPGet.Path, port)
			continue
		}
		scheme := strings.ToLower(string(p.HTTPGet.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		d.waitOK(t, scheme+"://"+d.addr(t, port)+p.HTTPGet.Path)
	}
}

// checkMonitor reads the metrics as Prometheus will: at the port of the service that the
// monitor selects, with the token that the pods mount.
func (r release) checkMonitor(t *testing.T, running *daemon, d *apps.Deployment) {
	t.Helper()
	for _, m := range objectsOf[*monitoring.ServiceMonitor](r) {
		e := m.Spec.Endpoints[0]
		if n := r.countPorts(m.Spec.Selector.MatchLabels, e.Port); n != 1 {
			t.Errorf("the monitor selects %d ports, want 1", n)
		}
		secret := e.Authorization.Credentials
		if !mountsSecret(d.Spec.Template.Spec.Volumes, secret.Name) || secret.Key != "token" {
			t.Errorf("the monitor sends %v, which the pods do not mount", secret)
		}
		scheme := "http"
		if e.Scheme != nil {
			scheme = strings.ToLower(e.Scheme.String())
		}
		running.wantMetricsWithToken(t, scheme+"://"+running.addr(t, e.Port)+e.Path)
	}
}

func (r release) countPorts(selector map[string]string, name string) (n int) {
	for _, s := range objectsOf[*core.Service](r) {
		for _, p := range s.Spec.Ports {
			if p.Name == name && len(selector) > 0 && selects(selector, s.Labels) {
				n++
			}
		}
	}
	return n
}

func mountsSecret(volumes []core.Volume, name string) bool {
	return slices.ContainsFunc(volumes, func(v core.Volume) bool { return v.Secret != nil && v.Secret.SecretName == name })
}

// checkPorts checks that a container's ports, by listener, are those of the settings.
func checkPorts(t *testing.T, s settings, ports map[string]int) {
	t.Helper()
	want := map[string]int{}
	for _, name := range listeners {
		host, port, _ := strings.Cut(s[name], ":")
		if host != "" {
			t.Errorf("the listener %s is at %s, which other pods cannot reach", name, s[name])
		}
		want[name], _ = strconv.Atoi(port)
	}
	if !maps.Equal(ports, want) {
		t.Errorf("the container has the ports %v, and the daemon %v", ports, want)
	}
}
