//go:build integration

package clients_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

const luaRules = `
domain: shop
descriptors:
  - key: user
    limit: 3/366d fixed-window
  - key: address
    limit: 7/366d fixed-window
  - key: service
    value: web
    descriptors:
      - key: path
        value: /page/one
        limit: 1/366d
  - key: queue
    limit: 1/1s leaky-bucket burst=2
`

// A relay passes connections on to an address, and counts them. Without an address it says nothing.
type relay struct {
	port   int
	opened atomic.Int64
}

func startRelay(t *testing.T, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r := &relay{port: l.Addr().(*net.TCPAddr).Port}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			r.opened.Add(1)
			go pass(client, target)
		}
	}()
	return r
}

func pass(client net.Conn, target string) {
	defer func() { _ = client.Close() }()
	if target == "" { // says nothing
		_, _ = io.Copy(io.Discard, client)
		return
	}
	daemon, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = daemon.Close() }()
	go func() {
		_, _ = io.Copy(daemon, client)
		_ = daemon.Close()
	}()
	_, _ = io.Copy(client, daemon)
}

// startNginx starts nginx with the client, and returns its URL.
func startNginx(t *testing.T, port int, timeout string) string {
	t.Helper()
	dir, listen := t.TempDir(), "127.0.0.1:"+strconv.Itoa(redistest.FreePort(t))
	text, err := os.ReadFile("lua/tests/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("LUA", absolute(t, "lua"), "LISTEN", listen, "PORT", strconv.Itoa(port), "TIMEOUT", timeout).Replace(string(text))
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	nginx := exec.Command("nginx", "-p", dir, "-c", "nginx.conf")
	nginx.Dir = dir
	var output strings.Builder
	nginx.Stdout, nginx.Stderr = &output, &output
	if err := nginx.Start(); err != nil {
		t.Fatalf("%v (make setup-integration installs it)", err)
	}
	t.Cleanup(func() {
		_ = nginx.Process.Signal(syscall.SIGTERM) // lets it stop its worker
		_ = nginx.Wait()
		if t.Failed() {
			t.Logf("output of nginx:\n%s", output.String())
		}
	})
	redistest.WaitFor(t, "nginx answers", func() bool {
		conn, err := net.Dial("tcp", listen)
		return err == nil && conn.Close() == nil
	})
	return "http://" + listen
}

// ask returns the status, Retry-After if it is there, and the body.
func ask(t *testing.T, url string, fields ...string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	response, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	retry := ""
	if response.Header.Get("Retry-After") != "" {
		retry = " retry"
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode, retry)
	}
	return string(body)
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func startLuaDaemon(t *testing.T) (d *daemon, resp string) {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte(luaRules), 0o600); err != nil {
		t.Fatal(err)
	}
	resp = "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t))
	return startDaemon(t, buildDaemon(t), []string{"--resp", resp, "--rules", rules}), resp
}

// nginx limits by user and address, all or none, over connections that it keeps; so do the plugins for
// Kong and APISIX, with stubs of what they call.
func TestIntegrationLuaClientLimits(t *testing.T) {
	_, resp := startLuaDaemon(t)
	between := startRelay(t, resp)
	nginx := startNginx(t, between.port, "30000") // for a starved machine
	for range 3 {
		expect(t, ask(t, nginx+"/closed", "Cookie", "a=b; sid=ada"), "passed")
	}
	for range 9 { // of which none is charged to the address
		expect(t, ask(t, nginx+"/closed", "Cookie", "sid=ada"), "429 retry")
	}
	checkLuaSpellings(t, nginx) // while the address has units
	expect(t, ask(t, nginx+"/kong", "X-User", "bob"), "passed penstock")
	expect(t, ask(t, nginx+"/apisix", "X-User", "bob"), "passed")
	expect(t, ask(t, nginx+"/open", "X-User", "bob"), "passed")
	for _, path := range []string{"/kong", "/apisix", "/open"} {
		expect(t, ask(t, nginx+path, "X-User", "bob"), "429 retry")
		expect(t, ask(t, nginx+path, "X-User", "bob", "X-User", "eve"), "400")
	}
	expect(t, ask(t, nginx+"/closed", "Cookie", "sid=1; sid=2"), "400")
	expect(t, ask(t, nginx+"/closed", "Cookie", "sid=1", "Cookie", "sid=2"), "400")
	for _, long := range []string{"a", " ", "=", `"`, ";"} { // all in linear time
		text := strings.Repeat(long, 120_000)
		expect(t, ask(t, nginx+"/closed", "Cookie", text+"; sid=b"+text+"b; sid=2"), "400")
	}
	expect(t, ask(t, nginx+"/open", "X-User", "dora"), "passed") // the seventh of the address
	expect(t, ask(t, nginx+"/open", "X-User", "emil"), "429 retry")

	if n := between.opened.Load(); n > 2 { // one for each password: all but /signed have none
		t.Errorf("%d connections for requests one after the other, want them to be kept", n)
	}
	expect(t, ask(t, nginx+"/signed?u=1&u=2"), "400")
	expect(t, ask(t, nginx+"/signed?u=ada"), "429 retry")
	expect(t, ask(t, nginx+"/signed?u=gus"), "passed")
	hidden := nginx + "/signed?" + strings.Repeat("a=b&", 150)
	expect(t, ask(t, hidden+"u=gus"), "passed")
	expect(t, ask(t, hidden+"u=gus"), "passed")
	expect(t, ask(t, hidden+"u=gus"), "429 retry")

	expect(t, ask(t, nginx+"/page//x/../%6fne?a"), "passed")
	expect(t, ask(t, nginx+"/page/one"), "429 retry")
	expect(t, ask(t, nginx+"/page/two"), "passed")

	expect(t, ask(t, nginx+"/queue"), "passed")
	began := time.Now()
	expect(t, ask(t, nginx+"/queue"), "passed")
	if held := time.Since(began); held < 100*time.Millisecond {
		t.Errorf("the second of a queue was held for %v, want up to a second", held)
	}
	expect(t, ask(t, nginx+"/take"), "true 5 0 store nil\nfalse true nil\ntrue shop/user 2 2 nil\n"+
		"false true ERR LIMIT: text at column 1: \"nonsense\": want a count and a period first, such as 10/1s\n")
}

// What some application reads as the value ada, which is spent, is denied for it, or as ambiguous.
func checkLuaSpellings(t *testing.T, nginx string) {
	t.Helper()
	for spelling, want := range map[string]string{
		"sid=%61da": "429 retry", `sid= "%61d%61" `: "429 retry", "\tsid =\tada": "429 retry", `p={"sid":1, "a":2}; sid=ada`: "429 retry",
		"sid=ada x=1": "400", `sid="ada`: "400", `sid=a"da`: "400", `sid=\ada`: "400", "x=1 sid=ada": "400", "x=1,sid=ada": "400",
		"sid=ada\u00a0": "429 retry", "sid=\u3000ada\u2003": "429 retry", "sid=\xa0ada\x85": "429 retry", "\u00a0sid=ada": "429 retry", "sid=ad\u00a0a": "400",
		"sid=eve; \ufeffsid=ada": "400", "sid=eve; sid \xa0=ada": "400", `sid=eve; sid[]"=ada`: "400",
		"SID=ada": "400", "sid=eve; SID=ada": "400", "s%69d=ada": "400", "sid[]=ada": "400", "sid%00=ada": "400",
	} {
		if got := ask(t, nginx+"/closed", "Cookie", spelling); got != want {
			t.Errorf("Cookie: %s: got %q, want %q", spelling, got, want)
		}
	}
	for query, want := range map[string]string{
		"%75=%61da": "429 retry", "x=1;y=2&u=ada": "429 retry", "u=ada;x=1": "400", "x;u=ada": "400", "u=eve;u=ada": "400", "U=ada": "400", "u[]=ada": "400", "[u]=ada": "400", "u=eve&%5bu%5d=ada": "400",
		"u=eve&u%00=ada": "400",
	} {
		if got := ask(t, nginx+"/signed?"+query); got != want {
			t.Errorf("?%s: got %q, want %q", query, got, want)
		}
	}
}

// Without the daemon, requests pass or fail as on_failure says; after its return they are limited again.
func TestIntegrationLuaClientFailsAsConfigured(t *testing.T) {
	d, resp := startLuaDaemon(t)
	_, port, _ := net.SplitHostPort(resp)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	nginx := startNginx(t, number, "30000")
	for range 2 {
		expect(t, ask(t, nginx+"/open", "X-User", "ada"), "passed")
	}
	d.kill()
	for range 5 {
		expect(t, ask(t, nginx+"/open", "X-User", "ada"), "passed")
	}
	for _, path := range []string{"/closed", "/signed", "/kong", "/apisix"} {
		expect(t, ask(t, nginx+path), "503")
	}
	d.start(t)
	for range 3 { // its memory is new, and a connection from before is no reason to fail
		expect(t, ask(t, nginx+"/closed", "Cookie", "sid=ada"), "passed")
	}
	expect(t, ask(t, nginx+"/closed", "Cookie", "sid=ada"), "429 retry")
}

// A daemon that says nothing is given up after the timeout.
func TestIntegrationLuaClientGivesUp(t *testing.T) {
	nginx := startNginx(t, startRelay(t, "").port, "100")
	expect(t, ask(t, nginx+"/open"), "passed")
	expect(t, ask(t, nginx+"/closed"), "503")
}
