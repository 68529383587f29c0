//go:build integration

package httpapi_test

import (
	"net/http"
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
