package respapi

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// Connections above the limit get an error, and INFO counts them.
func TestServerConnectionLimitRepliesMaxClients(t *testing.T) {
	l := newTestListener(t)
	limited := connlimit.New(l, connlimit.Options{Max: 2, Refuse: WriteMaxClients})
	s := newServer(t, penstock.NewMemory(nil), nil, nil, &Options{Listener: limited})
	serve(t, s, limited)
	first := l.dial(t)
	first.want("+PONG", "PING")
	l.dial(t).want("+PONG", "PING")
	if got := l.dial(t).read(); got != "-ERR max number of clients reached" {
		t.Errorf("the third connection got %s", got)
	}
	_ = first.conn.Close()
	waitForConns(t, s, 1)
	again := l.dial(t)
	again.want("+PONG", "PING")
	for section, want := range map[string]string{"stats": `rejected_connections:1\r\n`, "clients": `maxclients:2\r\n`} {
		if got := again.do("INFO", section); !strings.Contains(got, want) {
			t.Errorf("INFO %s: got %s, want %s", section, got, want)
		}
	}
	again.want(`*2 "maxclients" "2"`, "CONFIG", "GET", "maxclients")
}

var errBroken = errors.New("broken")

func TestServeReturnsListenerError(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	if err := s.Serve(&failingListener{newTestListener(t), []error{errBroken}}); !errors.Is(err, errBroken) {
		t.Errorf("Serve: got %v, want %v", err, errBroken)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestUnixSocketIsLocal(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/resp")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	c.want("*5 :0 :16 :15 :-1 :120", "CL.THROTTLE", "k", "15", "30", "3600")
	c.want(":1", "DEL", "k")
}

// Without a token only clients at 127.0.0.1 and ::1 may reset: sidecars connect from other
// loopback addresses on behalf of remote clients. With one, all clients need it.
func TestDelNeedsLocalClientOrToken(t *testing.T) {
	const noToken = "-NOPERM DEL resets a limit: the server has no token, so only clients on its machine may"
	const needsToken = "-NOPERM DEL resets a limit: AUTH with the token first"
	for _, c := range []struct {
		ip      string
		options engine.Options
		want    string
	}{
		{"127.0.0.1", engine.Options{}, ":1"},
		{"::1", engine.Options{}, ":1"},
		{"127.0.0.6", engine.Options{}, noToken},
		{"203.0.113.9", engine.Options{}, noToken},
		{"127.0.0.1", engine.Options{DistrustLocal: true}, noToken},
		{"127.0.0.1", engine.Options{Token: "secret"}, needsToken},
		{"::1", engine.Options{Token: "secret"}, needsToken},
		{"203.0.113.9", engine.Options{Token: "secret"}, needsToken},
	} {
		l := newTestListener(t)
		l.from = &net.TCPAddr{IP: net.ParseIP(c.ip), Port: 4711}
		serve(t, newServer(t, penstock.NewMemory(nil), nil, &c.options, nil), l)
		client := l.dial(t)
		client.want("*5 :0 :16 :15 :-1 :120", "CL.THROTTLE", "k", "15", "30", "3600")
		client.want(c.want, "DEL", "k")
		if c.options.Token != "" {
			client.want("+OK", "AUTH", c.options.Token)
			client.want(":1", "DEL", "k")
		}
	}
}

func TestNewNeedsEngine(t *testing.T) {
	if _, err := New(nil, nil); err == nil {
		t.Error("New without an engine succeeded")
	}
}
