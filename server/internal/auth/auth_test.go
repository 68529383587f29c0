package auth_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/server/internal/auth"
)

func TestBearerTokenIgnoresOtherSchemes(t *testing.T) {
	for authorization, want := range map[string]string{
		"Bearer secret": "secret", "bearer  secret ": "secret", "BEARER secret": "secret",
		"": "", "Bearer": "", "Bearer ": "", "secret": "", "Basic secret": "", "Bearers secret": "",
	} {
		if got := auth.BearerToken(authorization); got != want {
			t.Errorf("%q: got %q, want %q", authorization, got, want)
		}
	}
}

func TestPeerAddrUnixSocketIsLoopback(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want netip.Addr
	}{
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 80}, netip.MustParseAddr("10.0.0.1")},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}, netip.MustParseAddr("2001:db8::1")},
		{&net.UnixAddr{Name: "socket", Net: "unix"}, netip.IPv6Loopback()},
		{&net.IPAddr{IP: net.ParseIP("127.0.0.1")}, netip.Addr{}},
		{nil, netip.Addr{}},
	} {
		if got := auth.PeerAddr(c.addr); got != c.want {
			t.Errorf("%v: got %v, want %v", c.addr, got, c.want)
		}
	}
}

func TestIsLoopbackRejectsWildcardAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "127.8.8.8:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "[fe80::1]:80": false,
	} {
		addr, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := auth.IsLoopback(addr); got != want {
			t.Errorf("%s: got %t, want %t", address, got, want)
		}
	}
}
