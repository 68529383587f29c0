package auth_test

import (
	"net"
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

// 127.0.0.6 is where Istio's sidecar connects from on behalf of remote clients.
func TestIsLocalPeerIsOneAddressOrASocket(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want bool
	}{
		{&net.TCPAddr{IP: net.ParseIP("127.0.0.1"), Port: 80}, true},
		{&net.TCPAddr{IP: net.ParseIP("::1"), Port: 80}, true},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1).To16(), Port: 80}, true},
		{&net.UnixAddr{Name: "socket", Net: "unix"}, true},
		{&net.TCPAddr{IP: net.ParseIP("127.0.0.6"), Port: 80}, false},
		{&net.TCPAddr{IP: net.ParseIP("127.255.255.254"), Port: 80}, false},
		{&net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 80}, false},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}, false},
		{&net.TCPAddr{IP: net.ParseIP("::1"), Zone: "eth0"}, false},
		{&net.TCPAddr{}, false},
		{&net.IPAddr{IP: net.ParseIP("127.0.0.1")}, false},
		{nil, false},
	} {
		if got := auth.IsLocalPeer(c.addr); got != c.want {
			t.Errorf("%v: got %t, want %t", c.addr, got, c.want)
		}
	}
}

func TestIsLocalRejectsSignsOfAProxy(t *testing.T) {
	tcp, unix := &net.TCPAddr{IP: net.ParseIP("127.0.0.1")}, &net.UnixAddr{Net: "unix"}
	for _, c := range []struct {
		peer  net.Addr
		host  string
		field string
		want  bool
	}{
		{tcp, "localhost:8081", "", true},
		{tcp, "LOCALHOST", "", true},
		{tcp, "127.0.0.1:8081", "authorization", true},
		{tcp, "[::1]:8081", "x-request-id", true},
		{tcp, "api.localhost", "", true},
		{tcp, "", "", false},
		{tcp, "penstock.mesh.svc.cluster.local", "", false},
		{tcp, "localhost.example", "", false},
		{tcp, "10.0.0.1:8081", "", false},
		{tcp, "localhost", "x-forwarded-for", false},
		{tcp, "localhost", "X-Forwarded-Proto", false},
		{tcp, "localhost", "x-envoy-expected-rq-timeout-ms", false},
		{tcp, "localhost", "via", false},
		{tcp, "localhost", "forwarded", false},
		{tcp, "localhost", "x-real-ip", false},
		{tcp, "localhost", "CF-Connecting-IP", false},
		{unix, "any.example", "", true},
		{unix, "localhost", "x-forwarded-for", false},
		{&net.TCPAddr{IP: net.ParseIP("127.0.0.6")}, "localhost", "", false},
	} {
		fields := map[string][]string{}
		if c.field != "" {
			fields[c.field] = []string{"1.2.3.4"}
		}
		if got := auth.IsLocal(c.peer, c.host, fields); got != c.want {
			t.Errorf("from %v to %q with %q: got %t, want %t", c.peer, c.host, c.field, got, c.want)
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
