//go:build integration

package httpapi_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

func TestIntegrationNginxAuthRequest(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		site := newSite(t)
		checkProxy(t, startNginx(t, serveStore(t, store), site), site)
	})
}

func TestIntegrationCaddyForwardAuth(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		site := newSite(t)
		checkProxy(t, startCaddy(t, serveStore(t, store), site), site)
	})
}

// While penstock cannot decide, nginx passes requests to /open, as its configuration
// says, and fails all others.
func TestIntegrationNginxFailsOpenWhereConfigured(t *testing.T) {
	unavailable := serve(t, newServer(t, newEngine(t, unavailableStore, nil), nil))
	for name, penstock := range map[string]string{"penstock down": "http://127.0.0.1:1", "store unavailable": unavailable} {
		t.Run(name, func(t *testing.T) {
			site := newSite(t)
			proxy := startNginx(t, penstock, site)
			for range 5 {
				send(t, "GET", proxy+"/open", "", nil).want(t, 200, "hello GET /open")
			}
			if got := send(t, "GET", proxy+"/one", "", nil); got.status != 500 {
				t.Errorf("/one: got %+v, want 500", got)
			}
			if n := site.requests.Load(); n != 5 {
				t.Errorf("the site got %d requests, want 5", n)
			}
		})
	}
	t.Run("available", func(t *testing.T) {
		proxy := startNginx(t, serveStore(t, frozenMemory()), newSite(t))
		for i, want := range []int{200, 200, 200, 429} {
			got := send(t, "GET", proxy+"/open", "", nil)
			if got.status != want || want == 429 && got.header.Get("Retry-After") != "20" {
				t.Errorf("request %d: got %+v, want %d", i, got, want)
			}
		}
	})
}

// A second line of the header is not a second key, and does not reach the site.
func TestIntegrationNginxRejectsRepeatedHeader(t *testing.T) {
	site := newSite(t)
	proxy := startNginx(t, serveStore(t, frozenMemory()), site)
	for i := range 6 {
		for _, lines := range [][]string{{"alice", fmt.Sprint(i)}, {fmt.Sprint(i), "alice"}} {
			if got := send(t, "GET", proxy+"/keyed", "", http.Header{"X-Api-Key": lines}); got.status != 500 {
				t.Errorf("X-Api-Key %q: got %+v, want 500", lines, got)
			}
		}
	}
	if n := site.requests.Load(); n != 0 {
		t.Errorf("the site got %d requests, want none", n)
	}
	for i, want := range []int{200, 200, 200, 429} {
		if got := send(t, "GET", proxy+"/keyed", "", http.Header{"X-Api-Key": {"alice"}}); got.status != want {
			t.Errorf("request %d: got %+v, want %d", i, got, want)
		}
	}
}

// nginx connects from this machine and sends a local host name, but its clients are
// elsewhere.
func TestIntegrationNginxClientsMayNotRefund(t *testing.T) {
	base := serveStore(t, frozenMemory())
	proxy := startNginx(t, base, newSite(t))
	header := func() http.Header { return http.Header{"Content-Type": {"application/json"}} }
	const refund = `{"key":"k","limit":"5/1m","cost":-1}`
	if got := send(t, "POST", proxy+"/api/v1/take", refund, header()); got.status != 403 {
		t.Errorf("through nginx: got %+v, want 403", got)
	}
	if got := send(t, "POST", base+"/v1/take", refund, header()); got.status != 200 {
		t.Errorf("directly: got %+v, want 200", got)
	}
}

// Browsers mark requests from links of other sites, and proxies forward the marks to
// /v1/auth, which must not take them for an attack on itself.
func TestIntegrationNginxPassesCrossSiteNavigation(t *testing.T) {
	proxy := startNginx(t, serveStore(t, frozenMemory()), newSite(t))
	h := http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Origin": {"https://elsewhere.example"}}
	send(t, "GET", proxy+"/one", "", h).want(t, 200, "hello GET /one")
}

func startNginx(t *testing.T, penstock string, site *site) string {
	t.Helper()
	return startProxy(t, "nginx.conf", penstock, site.URL, "nginx", "-p", ".", "-c", "nginx.conf")
}

func startCaddy(t *testing.T, penstock string, site *site) string {
	t.Helper()
	return startProxy(t, "Caddyfile", penstock, site.URL, "caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile")
}

// startProxy starts a program with a configuration of testdata, in which it replaces
// PENSTOCK, SITE and LISTEN by addresses and lengthens timeouts. It returns the URL of
// the proxy.
func startProxy(t *testing.T, config, penstock, site string, command ...string) string {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("%v: install %s, or run make setup-integration", err, command[0])
	}
	listen, dir := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t)), t.TempDir()
	text, err := os.ReadFile(filepath.Join("testdata", config))
	if err != nil {
		t.Fatal(err)
	}
	replacer := strings.NewReplacer(
		"PENSTOCK", strings.TrimPrefix(penstock, "http://"), "SITE", strings.TrimPrefix(site, "http://"), "LISTEN", listen,
		"timeout 100ms;", "timeout 30s;", "timeout 1s;", "timeout 30s;") // for a starved machine
	if err := os.WriteFile(filepath.Join(dir, config), []byte(replacer.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	awaitListener(t, listen, run(t, dir, command...))
	return "http://" + listen
}

// run starts a program in a directory, and stops it when the test ends. The channel is
// closed when the program has exited.
func run(t *testing.T, dir string, command ...string) (exited <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, command[0], command[1:]...)
	program.Dir = dir
	program.Cancel = func() error { return program.Process.Signal(syscall.SIGTERM) } // lets it stop its workers
	program.WaitDelay = 10 * time.Second
	program.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	var output strings.Builder
	program.Stdout, program.Stderr = &output, &output
	if err := program.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = program.Wait() // SIGTERM, or an error that the output explains
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if t.Failed() {
			t.Logf("output of %s:\n%s", command[0], output.String())
		}
	})
	return done
}

// awaitListener waits until the address accepts connections. It fails the test if the
// program exits before.
func awaitListener(t *testing.T, address string, exited <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("cannot connect to %s: %v", address, err)
		case <-exited:
			t.Fatalf("cannot connect to %s: the program has exited", address)
		}
	}
}
