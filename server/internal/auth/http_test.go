package auth_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/server/internal/auth"
)

func TestHTTPCallerOnUnixSocketIsLocal(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	var local bool
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		local = auth.HTTPCaller(r).Local
	}))
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", l.Addr().String())
	}}}
	defer c.CloseIdleConnections()
	for forwardedFor, want := range map[string]bool{"": true, "203.0.113.9": false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://any.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if forwardedFor != "" {
			r.Header.Set("X-Forwarded-For", forwardedFor)
		}
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if local != want {
			t.Errorf("X-Forwarded-For %q: got local: %t, want %t", forwardedFor, local, want)
		}
	}
	if !auth.IsLoopback(l.Addr()) {
		t.Errorf("%s: got not loopback, want loopback", l.Addr())
	}
}
