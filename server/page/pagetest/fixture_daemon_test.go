package pagetest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds how long a test waits for an event. It only detects hangs.
const patience = 60 * time.Second

const shopRules = `
domain: shop
descriptors:
  - key: user
    limit: "5/1h"
  - key: api
    limit: "50/1h fixed-window"
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        on_store_failure: deny
        rate_limit: {unit: hour, requests_per_unit: 3}
  - key: tenant
    shadow_mode: true
    limit: "10/1h"
  - key: partner
    value: internal
    rate_limit: {unlimited: true}
`

// A daemon is a running penstock serve.
type daemon struct {
	command *exec.Cmd
	exited  chan struct{}
	rules   string // the directory of its rules, which it runs in

	mu  sync.Mutex
	log bytes.Buffer
}

func (d *daemon) Write(text []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(text)
}

func (d *daemon) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// startDaemon starts a daemon on free ports, with the rules in files of these names.
func startDaemon(t *testing.T, files map[string]string, args ...string) *daemon {
	t.Helper()
	d := &daemon{exited: make(chan struct{}), rules: t.TempDir()}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(d.rules, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.command = exec.Command(binary, append([]string{
		"serve", "--rules", ".", "--grpc", "", "--resp", "", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0",
	}, args...)...)
	d.command.Dir = d.rules
	d.command.Stderr = d
	if err := d.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.command.Wait() // how it ended is not what these tests are about
		close(d.exited)
	}()
	t.Cleanup(func() { d.stop(t) })
	waitFor(t, "the daemon is ready", func() bool {
		select {
		case <-d.exited:
			t.Fatalf("the daemon ended:\n%s", d.logged())
		default:
		}
		return strings.Contains(d.logged(), "msg=ready")
	})
	return d
}

func (d *daemon) stop(t *testing.T) {
	_ = d.command.Process.Kill() // fails only if it has ended
	select {
	case <-d.exited:
	case <-time.After(patience):
		t.Error("the daemon does not end")
	}
	if t.Failed() {
		t.Logf("log of the daemon:\n%s", d.logged())
	}
}

// terminate sends SIGTERM, and waits until the daemon has ended.
func (d *daemon) terminate(t *testing.T) {
	t.Helper()
	if err := d.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.exited:
	case <-time.After(2 * patience):
		t.Fatal("the daemon does not end after SIGTERM")
	}
}

// url returns the address of a listener.
func (d *daemon) url(t *testing.T, listener string) string {
	t.Helper()
	m := regexp.MustCompile(`listener=` + listener + ` addr=(\S+)`).FindStringSubmatch(d.logged())
	if m == nil {
		t.Fatalf("no listener %s in the log:\n%s", listener, d.logged())
	}
	return "http://" + m[1]
}

// call sends a request to the admin API and decodes the answer, if into is not nil.
func (d *daemon) call(t *testing.T, method, path string, into any) (status int) {
	t.Helper()
	return send(t, method, d.url(t, "admin")+path, "", into)
}

func send(t *testing.T, method, url, body string, into any) (status int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%s %s: %d %s: %v", method, url, response.StatusCode, text, err)
		}
	}
	return response.StatusCode
}

// take sends one request by a rule of shopRules, and reports whether it was allowed.
func (d *daemon) take(t *testing.T, key, value string) bool {
	t.Helper()
	body := fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value)
	return send(t, "POST", d.url(t, "http")+"/v1/take", body, nil) == http.StatusOK
}

// takeLimit sends one request with a limit of its own.
func (d *daemon) takeLimit(t *testing.T, key, limit string) bool {
	t.Helper()
	return send(t, "POST", d.url(t, "http")+"/v1/take", fmt.Sprintf(`{"key":%q,"limit":%q}`, key, limit), nil) == http.StatusOK
}

// decisions returns the sum of the decisions with an outcome in /metrics.
func (d *daemon) decisions(t *testing.T, outcome string) (sum int) {
	t.Helper()
	response, err := http.Get(d.url(t, "admin") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^penstock_decisions_total\{[^\n]*outcome="` + outcome + `"[^\n]*\} (\S+)$`)
	for _, m := range lines.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int(n)
	}
	return sum
}

var databases atomic.Int64

// onEachStore runs a test with the arguments that choose each kind of store.
func onEachStore(t *testing.T, test func(t *testing.T, args ...string)) {
	t.Run("memory", func(t *testing.T) { test(t) })
	t.Run("redis", func(t *testing.T) {
		// A busy machine must not make the daemon fall back to memory.
		test(t, "--store", fmt.Sprintf("redis://%s/%d", redis.Addr, databases.Add(1)), "--redis-timeout", "10s")
	})
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}
