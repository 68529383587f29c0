package respapi

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// A connection keeps its names while it is idle, and a client may have thousands of connections.
func TestServerRejectsLongNames(t *testing.T) {
	c := dial(t, startServer(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil)))
	long := strings.Repeat("n", maxName+1)
	c.want("+OK", "CLIENT", "SETNAME", long[1:])
	c.want("-ERR Client names cannot be longer than 256 bytes.", "CLIENT", "SETNAME", long)
	c.want("-ERR Client names cannot be longer than 256 bytes.", "HELLO", "2", "SETNAME", long)
	c.want("-ERR lib-name cannot be longer than 256 bytes.", "CLIENT", "SETINFO", "LIB-NAME", long)
	c.want("-ERR lib-ver cannot be longer than 256 bytes.", "CLIENT", "SETINFO", "LIB-VER", long)
	c.want(`"`+long[1:]+`"`, "CLIENT", "GETNAME")
}

// Before AUTH, only short AUTH and HELLO commands are accepted.
func TestServerRequireAuthRejectsCommands(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, &engine.Options{Token: "secret"}, &Options{RequireAuth: true})
	addr := startServer(t, s)
	c := dial(t, addr)
	noAuthReply := "-NOAUTH Authentication required."
	c.want(noAuthReply, "PING")
	c.want(noAuthReply, "CL.THROTTLE", "k", "15", "30", "60")
	c.want(noAuthReply, "DEL", "k")
	c.want(noAuthReply, "NOPE")
	c.want("-WRONGPASS invalid username-password pair or user is disabled.", "AUTH", "")
	c.want(noAuthReply, "PING")
	if got := c.do("HELLO", "3"); !strings.HasPrefix(got, "-NOAUTH HELLO must be called") {
		t.Errorf("HELLO: got %s", got)
	}
	if got := c.do("HELLO", "3", "AUTH", "default", "secret"); !strings.HasPrefix(got, "%7") {
		t.Errorf("HELLO with AUTH: got %s", got)
	}
	c.want("*5 :0 :16 :15 :-1 :120", "CL.THROTTLE", "k", "15", "30", "3600")
	c.want(":1", "DEL", "k")
	c.want(`"`+strings.Repeat("x", 20<<10)+`"`, "ECHO", strings.Repeat("x", 20<<10))
	c.want("+RESET", "RESET")
	c.want(noAuthReply, "PING")

	for raw, want := range map[string]string{
		"*11\r\n":                        "-ERR Protocol error: unauthenticated multibulk length",
		"*2\r\n$4\r\nAUTH\r\n$16385\r\n": "-ERR Protocol error: unauthenticated bulk length",
	} {
		c := dial(t, addr)
		c.send(raw)
		if got := c.read(); got != want {
			t.Errorf("%q: got %s, want %s", raw, got, want)
		}
		if got := c.read(); got != "closed" {
			t.Errorf("%q: then got %s, want closed", raw, got)
		}
	}
}

// A client with a password that meets a server without a token is told the cause.
func TestServerWithoutTokenExplainsRejectedPassword(t *testing.T) {
	c := dial(t, startServer(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil)))
	const want = "-WRONGPASS the server has no token: connect without a password"
	c.want(want, "AUTH", "sesame")
	c.want(want, "HELLO", "3", "AUTH", "default", "sesame")
	c.want("+PONG", "PING")
}
