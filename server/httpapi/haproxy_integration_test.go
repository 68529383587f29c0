//go:build integration

package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

func TestIntegrationHAProxyAction(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		site := newSite(t)
		checkProxy(t, startHAProxy(t, serveStore(t, store), site), site)
	})
}

// While no daemon decides, requests fail, unless the line that does that is removed.
func TestIntegrationHAProxyFailsAsConfigured(t *testing.T) {
	unavailable := serve(t, newServer(t, newEngine(t, unavailableStore, nil), nil))
	for name, penstock := range map[string]string{"penstock down": "http://127.0.0.1:1", "store unavailable": unavailable} {
		t.Run(name, func(t *testing.T) {
			site := newSite(t)
			if got := send(t, "GET", startHAProxy(t, penstock, site)+"/one", "", nil); got.status != 503 {
				t.Errorf("failing closed: got %+v, want 503", got)
			}
			if n := site.requests.Load(); n != 0 {
				t.Errorf("the site got %d requests, want none", n)
			}
			open := startHAProxy(t, penstock, site, "    http-request return status 503", "    # http-request return status 503")
			send(t, "GET", open+"/one", "", nil).want(t, 200, "hello GET /one")
		})
	}
}

// What the action cannot ask is not allowed: neither an address where no listener is, nor what is
// no URL.
func TestIntegrationHAProxyActionFailsClosed(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:1/v1/auth", "nonsense"} {
		site := newSite(t)
		proxy := startHAProxy(t, "http://127.0.0.1:1", site, "lua.penstock http://127.0.0.1:8079/v1/auth", "lua.penstock "+url)
		if got := send(t, "GET", proxy+"/one", "", nil); got.status != 503 || site.requests.Load() != 0 {
			t.Errorf("%s: got %+v and %d requests of the site, want 503 and none", url, got, site.requests.Load())
		}
	}
}

// The daemon gets the fields of the client's request, and none about its body or connection: a length
// without a body would make the daemon wait for one.
func TestIntegrationHAProxySendsFieldsOfRequest(t *testing.T) {
	asked := make(chan *http.Request, 10)
	daemon := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r }))
	t.Cleanup(daemon.Close)
	site := newSite(t)
	proxy := startHAProxy(t, daemon.URL, site)
	for name, body := range map[string]io.Reader{"length": strings.NewReader(" body"), "chunks": io.MultiReader(strings.NewReader(" body"))} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy+"/one", body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"X-Api-Key": {"a", "b"}, "X-Forwarded-For": {"203.0.113.7"}, "Te": {"trailers"}, "Keep-Alive": {"1"}, "Expect": {"100-continue"}}
		request.Host = "client.example"
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		got := <-asked
		if answer.StatusCode != 200 || got.Method != "GET" || got.Host == "client.example" || got.ContentLength > 0 || len(got.TransferEncoding) > 0 {
			t.Errorf("%s: got %d, and the daemon %s of %q with length %d, %v", name, answer.StatusCode, got.Method, got.Host, got.ContentLength, got.TransferEncoding)
		}
		if got.Header.Get("X-Forwarded-For") != "127.0.0.1" || strings.Join(got.Header["X-Api-Key"], " ") != "a b" {
			t.Errorf("%s: the daemon got %v", name, got.Header)
		}
		for _, field := range []string{"Te", "Keep-Alive", "Expect", "Content-Length", "Transfer-Encoding"} {
			if got.Header[field] != nil {
				t.Errorf("%s: the daemon got %s: %v", name, field, got.Header[field])
			}
		}
	}
}

// Keys can be taken from fields of the client. A second line of one is not a second key.
func TestIntegrationHAProxyLimitsByHeader(t *testing.T) {
	site := newSite(t)
	proxy := startHAProxy(t, serveStore(t, frozenMemory()), site, "key=address:X-Forwarded-For", "key=header:X-Api-Key")
	if got := send(t, "GET", proxy+"/one", "", http.Header{"X-Api-Key": {"alice", "bob"}}); got.status == 200 {
		t.Errorf("two lines of the field: got %+v, want no answer of the site", got)
	}
	for _, key := range []string{"alice", "bob"} {
		for i, want := range []int{200, 200, 200, 429} {
			if got := send(t, "GET", proxy+"/one", "", http.Header{"X-Api-Key": {key}}); got.status != want {
				t.Errorf("%s, request %d: got %+v, want %d", key, i, got, want)
			}
		}
	}
}

// startHAProxy starts HAProxy with deploy/haproxy.
func startHAProxy(t *testing.T, penstock string, site *site, more ...string) string {
	t.Helper()
	o := proxyOptions{site: site, daemons: [2]string{penstock, penstock}}
	dir, listen := t.TempDir(), freeAddress(t)
	copyConfig(t, "../../deploy/haproxy/penstock.lua", dir, "timeout = 2000", "timeout = 30000") // for a starved machine
	copyConfig(t, haproxyConfig, dir, o.replacements(append(more,
		"bind :80\n", "bind "+listen+"\n", "127.0.0.1:8079", freeAddress(t), "timeout connect 250ms", "timeout connect 30s")...)...)
	return startProxy(t, dir, listen, "haproxy", "-db", "-f", "haproxy.cfg")
}
