package httpserver

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"
)

func TestACallerOnAUnixSocketIsOnThisMachine(t *testing.T) {
	var from netip.Addr
	s := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { from, _ = Caller(r) }), Options{})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "door"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", l.Addr().String())
	}}}
	for relayed, want := range map[string]bool{"": true, "203.0.113.9": false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://whatever/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if relayed != "" {
			r.Header.Set("X-Forwarded-For", relayed)
		}
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if from.IsLoopback() != want {
			t.Errorf("on behalf of %q: the caller is at %v, want that it is on this machine: %t", relayed, from, want)
		}
	}
	c.CloseIdleConnections()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !IsLoopback(l.Addr()) {
		t.Errorf("%s is said to be reached from elsewhere", l.Addr())
	}
}

func TestWhichListenersOnlyThisMachineReaches(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "127.8.8.8:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "[fe80::1]:80": false,
	} {
		at, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := IsLoopback(at); got != want {
			t.Errorf("%s: got %t, want %t", address, got, want)
		}
	}
}
