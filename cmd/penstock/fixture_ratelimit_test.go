package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
)

// A manifest is what the tests read of a Deployment of envoyproxy/ratelimit.
type manifest struct {
	Spec struct {
		Template struct {
			Spec struct {
				Containers []container `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type container struct {
	Command []string `yaml:"command"`
	Env     []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	StartupProbe   probe `yaml:"startupProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	LivenessProbe  probe `yaml:"livenessProbe"`
}

type probe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port int    `yaml:"port"`
	} `yaml:"httpGet"`
}

// startRatelimit starts the first container of a manifest as Kubernetes does, and runs its
// probes. Only what a test on a shared machine must change differs: ports are free ones, Redis
// is the script's and may take longer, and mounted directories are in the script's.
func startRatelimit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: deployment MANIFEST")
	}
	var m manifest
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[0])), &m))
	c := m.Spec.Template.Spec.Containers[0]
	if len(c.Command) != 1 || c.Command[0] != "/bin/ratelimit" {
		ts.Fatalf("%s: command %q, want /bin/ratelimit, which the image has", args[0], c.Command)
	}
	env := []string{"PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "REDIS_TIMEOUT=1m"}
	for _, v := range c.Env {
		env = append(env, v.Name+"="+inScript(ts, v.Name, v.Value))
	}
	path, err := findIn(ts.Getenv("PATH"), ratelimitName)
	ts.Check(err)
	daemonOf(ts).start(ts, exec.Command(path), env)
	for _, p := range []probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		p.run(ts)
	}
}

// inScript returns the value of a variable on this machine.
func inScript(ts *testscript.TestScript, name, value string) string {
	switch {
	case name == "REDIS_URL":
		return strings.TrimPrefix(ts.Getenv("REDIS"), "redis://")
	case name == "CONFIG_GRPC_XDS_SERVER_URL":
		return ts.Getenv("XDS")
	case name == "PROMETHEUS_ADDR":
		return "127.0.0.1:0"
	case filepath.IsAbs(value):
		return ts.MkAbs("." + value)
	}
	return value
}

// run fails the script unless the probe succeeds.
func (p *probe) run(ts *testscript.TestScript) {
	if p.HTTPGet.Path == "" {
		return
	}
	if p.HTTPGet.Port != 8080 {
		ts.Fatalf("a probe of port %d, want 8080", p.HTTPGet.Port)
	}
	response, err := http.Get("http://" + ts.Getenv("HTTP") + p.HTTPGet.Path) //nolint:noctx // a listener of this test
	ts.Check(err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		ts.Fatalf("probe %s: got %s", p.HTTPGet.Path, response.Status)
	}
}

// start starts the daemon and waits until it is ready.
func (d *daemon) start(ts *testscript.TestScript, command *exec.Cmd, env []string) {
	d.log = ts.MkAbs("daemon.log")
	log, err := os.Create(d.log)
	ts.Check(err)
	d.command = command
	command.Dir, command.Stderr, command.Stdout = ts.MkAbs("."), log, log
	command.Env = append(append(os.Environ(), "HOME=/nowhere"), env...)
	ts.Check(command.Start())
	exited := make(chan struct{})
	d.exited = exited
	go func() {
		_ = command.Wait() // awaitExit reads the ProcessState
		_ = log.Close()
		close(exited)
	}()
	ts.Defer(func() {
		_ = command.Process.Kill()
		<-exited
	})
	d.awaitLogLine(ts, `(?m)msg=ready$|"msg":"ready"`)
	d.setAddresses(ts)
}
