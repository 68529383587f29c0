package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
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

// Where the configuration says so, nginx lets everybody pass while nobody can
// decide. Elsewhere it lets nobody.
func TestNginxWithoutAnybodyToAsk(t *testing.T) {
	away := serve(t, newDoor(t, judgeOf(t, broken, nil), nil))
	for name, penstock := range map[string]string{"no daemon": "http://" + freeAddress(t), "no store": away} {
		t.Run(name, func(t *testing.T) {
			site := newSite(t)
			at := startProxy(t, "nginx.conf", penstock, site.URL, "nginx", "-p", ".", "-c", "nginx.conf")
			for range 5 {
				send(t, "GET", at+"/open", "", nil).want(t, 200, "hello GET /open")
			}
			if got := send(t, "GET", at+"/one", "", nil); got.status != 500 {
				t.Errorf("where limits matter more: got %+v, want 500", got)
			}
			if n := site.visits.Load(); n != 5 {
				t.Errorf("the site was visited %d times, want 5", n)
			}
		})
	}
	site := newSite(t)
	at := startProxy(t, "nginx.conf", open(t, stillMemory()), site.URL, "nginx", "-p", ".", "-c", "nginx.conf")
	for i, want := range []int{200, 200, 200, 429} {
		got := send(t, "GET", at+"/open", "", nil)
		if got.status != want || want == 429 && got.header.Get("Retry-After") != "20" {
			t.Errorf("visit %d while somebody decides: got %+v, want %d", i, got, want)
		}
	}
}

// Browsers say that a visit comes from another site, and proxies pass that on: a
// link from elsewhere must not be taken for an attack.
func TestVisitorsFromOtherSitesPass(t *testing.T) {
	site := newSite(t)
	at := startProxy(t, "nginx.conf", open(t, stillMemory()), site.URL, "nginx", "-p", ".", "-c", "nginx.conf")
	visit := http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Origin": {"https://elsewhere.example"}}
	send(t, "GET", at+"/one", "", visit).want(t, 200, "hello GET /one")
}

// Traefik is no package of Debian's. What it sends is known: by GET, or by the
// visitor's method if it is told to, the visitor's headers, and its own about where
// the visitor comes from and goes to.
func TestTraefikAsksBeforeItLetsARequestPass(t *testing.T) {
	for _, preserve := range []bool{false, true} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			site := newSite(t)
			proxy := httptest.NewServer(likeTraefik(t, open(t, store), site.URL, preserve))
			defer proxy.Close()
			checkProxy(t, proxy.URL, site)
		})
	}
}

// likeTraefik asks as its ForwardAuth does, at the address in the configuration, and
// passes on what is denied.
func likeTraefik(t *testing.T, penstock, site string, preserveMethod bool) http.Handler {
	t.Helper()
	address := strings.Replace(traefikAddress(t), "http://PENSTOCK", penstock, 1)
	target, err := url.Parse(site)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := http.MethodGet
		if preserveMethod {
			method = r.Method
		}
		answer := send(t, method, address, "", traefikHeaders(r))
		if answer.status >= 200 && answer.status <= 299 {
			forward.ServeHTTP(w, r)
			return
		}
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.status)
		_, _ = io.WriteString(w, answer.rawBody)
	})
}

// traefikAddress returns where the configuration has Traefik ask.
func traefikAddress(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/traefik.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		HTTP struct {
			Middlewares map[string]struct {
				ForwardAuth struct{ Address string } `yaml:"forwardAuth"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	return config.HTTP.Middlewares["limit"].ForwardAuth.Address
}

func traefikHeaders(r *http.Request) http.Header {
	h := r.Header.Clone()
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	h.Set("X-Forwarded-For", from)
	h.Set("X-Forwarded-Method", r.Method)
	h.Set("X-Forwarded-Proto", "http")
	h.Set("X-Forwarded-Host", r.Host)
	h.Set("X-Forwarded-Uri", r.RequestURI)
	return h
}

// The configurations on the page for operators are those that are tested here, line by
// line.
func TestThePageShowsWhatIsTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## In front of a site\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 4 {
		t.Fatalf("the page has %d configurations, want 4", len(blocks))
	}
	files := map[string]string{"nginx": "nginx.conf", "caddyfile": "Caddyfile", "yaml": "traefik.yaml"}
	names := strings.NewReplacer("penstock:8080", "PENSTOCK", "site:3000", "SITE")
	for _, block := range blocks {
		text, err := os.ReadFile(filepath.Join("testdata", files[block[1]]))
		if err != nil {
			t.Fatal(err)
		}
		rest := string(text)
		for line := range strings.Lines(names.Replace(block[2])) {
			_, after, found := strings.Cut(rest, strings.TrimSpace(line)+"\n")
			if !found {
				t.Errorf("%s is not tested, or not in this order: %s", files[block[1]], line)
			}
			rest = after
		}
	}
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
