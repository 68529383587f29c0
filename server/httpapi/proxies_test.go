package httpapi_test

import (
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// A site is what a proxy protects. It counts who got through, and has a page
// that it denies by itself.
type site struct {
	*httptest.Server
	visits atomic.Int64
}

func newSite(t *testing.T) *site {
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.visits.Add(1)
		if r.URL.Path == "/forbidden" {
			http.Error(w, "the site says no", http.StatusForbidden)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "hello %s %s%s", r.Method, r.URL.Path, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// startProxy starts a program with a configuration of testdata, in which it puts
// addresses for names, and returns where it listens.
func startProxy(t *testing.T, config, penstock, site string, command ...string) string {
	t.Helper()
	listen := freeAddress(t)
	text, err := os.ReadFile(filepath.Join("testdata", config))
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer(
		"PENSTOCK", strings.TrimPrefix(penstock, "http://"), "SITE", strings.TrimPrefix(site, "http://"), "LISTEN", listen,
	).Replace(string(text))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config), []byte(filled), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, command[0], command[1:]...)
	program.Dir = dir
	program.Cancel = func() error { return program.Process.Signal(syscall.SIGTERM) } // so that it ends its own processes
	program.WaitDelay = 10 * time.Second
	program.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	var said strings.Builder
	program.Stdout, program.Stderr = &said, &said
	if err := program.Start(); err != nil {
		t.Fatalf("%s is needed for this test: make test installs it: %v", command[0], err)
	}
	ended := make(chan struct{})
	go func() {
		_ = program.Wait() // which says that it was told to end, or else what it said is shown
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("%s said:\n%s", command[0], said.String())
		}
	})
	awaitListener(t, listen, ended)
	return "http://" + listen
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// awaitListener waits until somebody listens, or the program has ended.
func awaitListener(t *testing.T, address string, ended <-chan struct{}) {
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
			t.Fatalf("nobody listens at %s: %v", address, err)
		case <-ended:
			t.Fatalf("nobody listens at %s: the program has ended", address)
		}
	}
}

func TestNginxAsksBeforeItLetsARequestPass(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		site := newSite(t)
		at := startProxy(t, "nginx.conf", open(t, store), site.URL, "nginx", "-p", ".", "-c", "nginx.conf")
		checkProxy(t, at, site)
	})
}

func TestCaddyAsksBeforeItLetsARequestPass(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		site := newSite(t)
		at := startProxy(t, "Caddyfile", open(t, store), site.URL, "caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile")
		checkProxy(t, at, site)
	})
}

// checkProxy visits a site that lets three requests a minute pass.
func checkProxy(t *testing.T, at string, site *site) {
	t.Helper()
	spoof := http.Header{"X-Forwarded-For": {"203.0.113.7"}}
	send(t, "GET", at+"/one", "", spoof.Clone()).want(t, 200, "hello GET /one")
	send(t, "POST", at+"/two", " with a body", http.Header{"Content-Type": {"text/plain"}}).want(t, 200, "hello POST /two with a body")
	send(t, "GET", at+"/forbidden", "", nil).want(t, 403, "the site says no")
	if n := site.visits.Load(); n != 3 {
		t.Fatalf("the site was visited %d times, want 3", n)
	}
	for i := range 3 {
		spoof.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
		denied := send(t, "GET", at+"/three?limit=9/s&cost=0", "", spoof.Clone())
		if denied.status != 429 || denied.header.Get("Retry-After") != "20" ||
			denied.header.Get("Ratelimit") != `"default";r=0;t=20` ||
			denied.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("the fourth of three: got %+v, want 429 with Retry-After: 20", denied)
		}
	}
	if n := site.visits.Load(); n != 3 {
		t.Errorf("the site was visited %d times, want that nobody else got through", n)
	}
}
