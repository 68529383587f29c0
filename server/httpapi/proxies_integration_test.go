//go:build integration

package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

func TestIntegrationProxiesAskForSeveralLimits(t *testing.T) {
	const one, several = "limit=3/1m&key=address:X-Forwarded-For", "domain=edge&list=gate"
	for name, start := range map[string]func(t *testing.T, penstock string, site *site) string{
		"nginx": func(t *testing.T, penstock string, site *site) string { return startNginx(t, penstock, site) + "/shop" },
		"haproxy": func(t *testing.T, penstock string, site *site) string {
			return startHAProxy(t, penstock, site, one, several)
		},
		"caddy": func(t *testing.T, penstock string, site *site) string {
			return startCaddyWith(t, proxyOptions{site: site, daemons: [2]string{penstock, penstock}, query: several})
		},
	} {
		t.Run(name, func(t *testing.T) {
			penstock, site := serveStore(t, frozenMemory()), newSite(t)
			checkSeveral(t, start(t, penstock, site), penstock, site)
		})
	}
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
			if got := send(t, "GET", proxy+"/one", "", nil); got.status != 503 {
				t.Errorf("/one: got %+v, want 503", got)
			}
			if n := site.requests.Load(); n != 5 {
				t.Errorf("the site got %d requests, want 5", n)
			}
		})
	}
}

// penstock answers 400 to some header fields that proxies pass on. Where requests pass without a decision, those
// must not: a client could evade its limit by them.
func TestIntegrationProxiesThatFailOpenPassNoRefusedField(t *testing.T) {
	const closed, open = "unless { var(txn.penstock_status) -m int 200 }", "if { var(txn.penstock_status) -m int 400 }"
	for name, start := range map[string]func(penstock string, site *site) string{
		"nginx":   func(penstock string, site *site) string { return startNginx(t, penstock, site) },
		"haproxy": func(penstock string, site *site) string { return startHAProxy(t, penstock, site, closed, open) },
	} {
		site := lenientSite(t)
		proxy := start(serveStore(t, frozenMemory()), site)
		for i, odd := range []string{"", "\x01", "\x7f", "a\x1fb", "\x80", "\t\x02", strings.Repeat("x", 7000)} {
			_ = sendRaw(t, strings.TrimPrefix(proxy, "http://"), spelling{target: "/open", fields: []string{"X-Odd: " + odd}})
			if n := site.requests.Load(); n > 3 || i == 0 && n != 1 {
				t.Fatalf("%s: the site has got %d requests after X-Odd: %q, want 1 after the first, and at most 3", name, n, odd)
			}
		}
	}
}

// lenientSite is a site that takes any bytes up to an empty line for a request.
func lenientSite(t *testing.T) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lenient := &site{Server: &httptest.Server{Listener: l}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go lenient.answerAnything(conn)
		}
	}()
	return lenient
}

func (s *site) answerAnything(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for line, r := "", bufio.NewReader(conn); line != "\r\n"; {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			return
		}
	}
	s.requests.Add(1)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// A client sees its limit on 200 and on 429, whether nginx fails open or closed.
func TestIntegrationNginxSendsRateLimitFields(t *testing.T) {
	for _, path := range []string{"/closed", "/open"} {
		proxy := startNginx(t, serveStore(t, frozenMemory()), newSite(t))
		for i, want := range []struct {
			status       int
			retry, limit string
		}{
			{200, "", `"default";r=2;t=40`}, {200, "", `"default";r=1;t=20`}, {200, "", `"default";r=0;t=20`}, {429, "20", `"default";r=0;t=20`},
		} {
			got := send(t, "GET", proxy+path, "", nil)
			if got.status != want.status || got.header.Get("Retry-After") != want.retry ||
				got.header.Get("Ratelimit") != want.limit || got.header.Get("Ratelimit-Policy") != `"default";q=3;w=60` {
				t.Errorf("%s, request %d: got %+v, want %+v", path, i, got, want)
			}
		}
	}
}

// A second line of the header is not a second key, and does not reach the site.
func TestIntegrationNginxRejectsRepeatedHeader(t *testing.T) {
	site := newSite(t)
	proxy := startNginx(t, serveStore(t, frozenMemory()), site)
	for i := range 6 {
		for _, lines := range [][]string{{"alice", fmt.Sprint(i)}, {fmt.Sprint(i), "alice"}} {
			if got := send(t, "GET", proxy+"/keyed", "", http.Header{"X-Api-Key": lines}); got.status != 429 {
				t.Errorf("X-Api-Key %q: got %+v, want 429", lines, got)
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
	return startNginxWith(t, proxyOptions{site: site, daemons: [2]string{penstock, penstock}})
}

func startCaddy(t *testing.T, penstock string, site *site) string {
	t.Helper()
	return startCaddyWith(t, proxyOptions{site: site, daemons: [2]string{penstock, penstock}})
}

// proxyOptions are what tests change in the configuration of a proxy.
type proxyOptions struct {
	site    *site
	daemons [2]string // their URLs
	limit   string    // default: 3/1m
	query   string    // in place of limit and key; default: these, and a list for /shop of nginx
}

// replacements returns the texts to replace in a configuration, each followed by its
// replacement.
func (o *proxyOptions) replacements(more ...string) []string {
	if o.query != "" {
		more = append(more, "limit=3/1m&key=address:X-Forwarded-For", o.query)
	}
	more = append(more,
		"penstock-1:8080", strings.TrimPrefix(o.daemons[0], "http://"), "penstock-2:8080", strings.TrimPrefix(o.daemons[1], "http://"),
		"site:3000", o.site.Listener.Addr().String())
	if o.limit != "" {
		more = append(more, "limit=3/1m", "limit="+o.limit)
	}
	return more
}

// startNginxWith starts nginx with deploy/nginx/penstock.conf and the locations in
// testdata/nginx-more.conf.
func startNginxWith(t *testing.T, o proxyOptions) string {
	t.Helper()
	dir, listen := t.TempDir(), freeAddress(t)
	var everywhere []string
	list := "domain=edge&list=gate"
	if o.query != "" {
		list, o.query, everywhere = o.query, "", []string{"auth_request /limit;", "auth_request /limit-by-rules;"}
	}
	copyConfig(t, "testdata/nginx.conf", dir)
	copyConfig(t, "testdata/nginx-more.conf", dir, "PENSTOCK", strings.TrimPrefix(o.daemons[0], "http://"))
	copyConfig(t, nginxConfig, dir, o.replacements(append(everywhere,
		"domain=shop&list=edge", list, "listen 80;", "listen "+listen+";\n    include nginx-more.conf;",
		"timeout 250ms;", "timeout 30s;", "timeout 500ms;", "timeout 30s;", "timeout 2s;", "timeout 30s;")...)...) // for a starved machine
	return startProxy(t, dir, listen, "nginx", "-p", ".", "-c", "nginx.conf")
}

func startCaddyWith(t *testing.T, o proxyOptions) string {
	t.Helper()
	dir, listen := t.TempDir(), freeAddress(t)
	host, port, _ := strings.Cut(listen, ":")
	copyConfig(t, "testdata/Caddyfile", dir, o.replacements(
		"http://LISTEN {", "http://:"+port+" {\n\tbind "+host, "lb_try_duration 2s", "lb_try_duration 30s")...) // for a starved machine
	return startProxy(t, dir, listen, "caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
}

// copyConfig copies a file to a directory, with replacements. Each must replace something.
func copyConfig(t *testing.T, file, dir string, replacements ...string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("%s has no %q", file, replacements[i])
		}
		text = strings.ReplaceAll(text, replacements[i], replacements[i+1])
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startProxy starts a program in the directory of its configuration, and returns its URL.
func startProxy(t *testing.T, dir, listen string, command ...string) string {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("%v: install %s, or run make setup-integration", err, command[0])
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
