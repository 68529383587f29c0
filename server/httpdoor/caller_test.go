package httpdoor

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
	d := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { from, _ = Caller(r) }), Options{})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "door"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = d.Serve(l) }()
	c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", l.Addr().String())
	}}}
	r, err := c.Get("http://whatever/")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	c.CloseIdleConnections()
	if err := d.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !from.IsLoopback() || !IsLoopback(l.Addr()) {
		t.Errorf("the caller is at %v, want on this machine", from)
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
