package httpapi_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
)

// Debian has no package of Traefik, so the test sends what its ForwardAuth sends: GET,
// or the client's method with preserveRequestMethod, with the client's headers and
// X-Forwarded-*.
func TestTraefikForwardAuth(t *testing.T) {
	for _, preserveMethod := range []bool{false, true} {
		onEachStore(t, func(t *testing.T, store penstock.Store) {
			site := newSite(t)
			address := strings.Replace(traefikAddress(t), "http://PENSTOCK", serveStore(t, store), 1)
			proxy := httptest.NewServer(newTraefik(t, address, site.URL, preserveMethod))
			defer proxy.Close()
			checkProxy(t, proxy.URL, site)
		})
	}
}

// Forward authentication has the client's address and URL in X-Forwarded-*, as that of APISIX and Higress.
func TestForwardAuthAsksForSeveralLimits(t *testing.T) {
	penstock, site := serveStore(t, frozenMemory()), newSite(t)
	proxy := httptest.NewServer(newTraefik(t, penstock+"/v1/auth?domain=edge&list=gate", site.URL, false))
	defer proxy.Close()
	checkSeveral(t, proxy.URL, penstock, site)
}

// newTraefik returns a proxy that acts like Traefik's ForwardAuth with an address.
func newTraefik(t *testing.T, address, site string, preserveMethod bool) http.Handler {
	t.Helper()
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
		decision := send(t, method, address, "", traefikHeaders(r))
		if decision.status >= 200 && decision.status <= 299 {
			forward.ServeHTTP(w, r)
			return
		}
		maps.Copy(w.Header(), decision.header)
		w.WriteHeader(decision.status)
		_, _ = io.WriteString(w, decision.rawBody)
	})
}

// traefikAddress returns the address of ForwardAuth in testdata/traefik.yaml.
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
	ip, _, _ := net.SplitHostPort(r.RemoteAddr)
	h.Set("X-Forwarded-For", ip)
	h.Set("X-Forwarded-Method", r.Method)
	h.Set("X-Forwarded-Proto", "http")
	h.Set("X-Forwarded-Host", r.Host)
	h.Set("X-Forwarded-Uri", r.RequestURI)
	return h
}

// A site is the upstream of a proxy. It counts its requests, and denies /forbidden
// itself.
type site struct {
	*httptest.Server
	requests atomic.Int64
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if r.URL.Path == "/forbidden" {
			http.Error(w, "denied by the site", http.StatusForbidden)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "hello %s %s%s", r.Method, r.URL.Path, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// checkProxy checks a proxy that allows three requests a minute.
func checkProxy(t *testing.T, proxy string, site *site) {
	t.Helper()
	spoof := http.Header{"X-Forwarded-For": {"203.0.113.7"}}
	send(t, "GET", proxy+"/one", "", spoof.Clone()).want(t, 200, "hello GET /one")
	send(t, "POST", proxy+"/two", " with a body", http.Header{"Content-Type": {"text/plain"}}).want(t, 200, "hello POST /two with a body")
	send(t, "GET", proxy+"/forbidden", "", nil).want(t, 403, "denied by the site")
	if n := site.requests.Load(); n != 3 {
		t.Fatalf("the site got %d requests, want 3", n)
	}
	for i := range 3 {
		spoof.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
		denied := send(t, "GET", proxy+"/three?limit=9/s&cost=0", "", spoof.Clone())
		if denied.status != 429 || denied.header.Get("Retry-After") != "20" ||
			denied.header.Get("Ratelimit") != `"default";r=0;t=20` ||
			denied.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("request above the limit: got %+v, want 429 with Retry-After: 20", denied)
		}
	}
	if n := site.requests.Load(); n != 3 {
		t.Errorf("the site got %d requests, want 3: denied requests must not pass", n)
	}
}

// checkSeveral checks a proxy that asks for several limits at once, by the list of ruleFile.
func checkSeveral(t *testing.T, proxy, penstock string, site *site) {
	t.Helper()
	for i, want := range []int{200, 200, 200, 429} {
		h := http.Header{"Cookie": {"sid=ada"}, "X-Forwarded-For": {fmt.Sprint("203.0.113.", i)}, "X-Forwarded-Uri": {"/elsewhere"}}
		if got := send(t, "GET", proxy+"?a=b", "", h); got.status != want {
			t.Errorf("request %d: got %+v, want %d", i, got, want)
		}
	}
	if got := auth(t, penstock, "cost=0&domain=edge&tenant=ada"); !strings.Contains(got.header.Get("Ratelimit"), "r=2;") {
		t.Errorf("after three requests that were allowed: got %v, want 2 of 5 left", got.header)
	}
	if n := site.requests.Load(); n != 3 {
		t.Errorf("the site got %d requests, want 3", n)
	}
}

// The proxy configurations in the documentation are those that are tested here: every
// line is in the tested file, in the same order. Those of nginx and HAProxy are whole files.
func TestDocumentedProxyConfigurationsAreTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/integrations.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range codeBlock.FindAllStringSubmatch(string(page), -1) {
		if file := testedFile(block[1], block[2]); file != "" {
			found = append(found, file)
			checkDocumented(t, block[2], file)
		}
	}
	if want := []string{nginxConfig, "testdata/Caddyfile", "testdata/traefik.yaml", haproxyConfig}; !slices.Equal(found, want) {
		t.Errorf("the page has the configurations %v, want %v", found, want)
	}
}

const (
	nginxConfig   = "../../deploy/nginx/penstock.conf"
	haproxyConfig = "../../deploy/haproxy/haproxy.cfg"
)

var codeBlock = regexp.MustCompile("(?s)```(\\w+)\n(.*?)```")

// testedFile returns the file that has the lines of a code block, or "" if the block is
// not the configuration of a proxy.
func testedFile(language, text string) string {
	switch {
	case language == "nginx":
		return nginxConfig
	case language == "haproxy":
		return haproxyConfig
	case language == "caddyfile":
		return "testdata/Caddyfile"
	case language == "yaml" && strings.Contains(text, "forwardAuth"):
		return "testdata/traefik.yaml"
	}
	return ""
}

func checkDocumented(t *testing.T, block, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if file == nginxConfig || file == haproxyConfig {
		if block != string(text) {
			t.Errorf("the block of the page is not %s", file)
		}
		return
	}
	rest := string(text)
	for line := range strings.Lines(strings.ReplaceAll(block, "penstock:8080", "PENSTOCK")) {
		_, after, found := strings.Cut(rest, strings.TrimSpace(line)+"\n")
		if !found {
			t.Errorf("this line is not in %s, or not in this order: %s", file, line)
		}
		rest = after
	}
}
