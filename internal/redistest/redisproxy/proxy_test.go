package redisproxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

func startServers(t *testing.T) []*redistest.Server {
	t.Helper()
	return []*redistest.Server{redistest.StartForTest(t, redistest.Options{}), redistest.StartForTest(t, redistest.Options{})}
}

// A client is a connection to a proxy.
type client struct {
	*testing.T
	*backend
}

func connect(t *testing.T, p *Proxy) client {
	t.Helper()
	b, err := dial(p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
	return client{t, b}
}

// want fails the test unless a command has this reply, or closes the connection.
func (c client) want(reply string, words ...string) {
	c.Helper()
	got, err := c.call(words)
	if closed := err != nil; closed != (reply == Close) || !closed && got != reply+"\r\n" {
		c.Errorf("%q: %q, %v, want %q", words, got, err, reply)
	}
}

// keysOf returns a key of each of two servers.
func keysOf(t *testing.T) (first, second string) {
	t.Helper()
	for i := 0; first == "" || second == ""; i++ {
		if key := fmt.Sprint("key", i); Slot(key) < slots/2 {
			first = key
		} else {
			second = key
		}
	}
	return first, second
}

func TestSlotIsThatOfCluster(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
	for _, key := range []string{"a", "{a}b", "b{a}", "{}a", "a{}b", "{a", "}a{b}", "{{a}}", "penstock:user:42"} {
		if got, want := fmt.Sprint(Slot(key)), redistest.MustCommand(t, server, "CLUSTER", "KEYSLOT", key); got != want {
			t.Errorf("slot of %q: %s, want %s", key, got, want)
		}
	}
}

// Without an error, a script writes the second of its keys to the wrong server.
func TestFirstKeyDecidesSilently(t *testing.T) {
	servers := startServers(t)
	c := connect(t, Start(t, FirstKey, servers...))
	first, second := keysOf(t)
	c.want("+OK", "SET", first, "1")
	c.want("+OK", "SET", second, "2")
	for i, key := range []string{first, second} {
		if got := redistest.MustCommand(t, servers[i], "GET", key); got != fmt.Sprint(i+1) {
			t.Errorf("%s on server %d: %q", key, i, got)
		}
	}
	c.want(":2", "EVAL", "redis.call('INCRBY', KEYS[1], 1) return redis.call('INCRBY', KEYS[2], 2)", "2", first, second)
	c.want("$1\r\n2", "GET", first)
	c.want("$1\r\n2", "GET", second) // unchanged
	if got := redistest.MustCommand(t, servers[0], "GET", second); got != "2" {
		t.Errorf("%s on the wrong server: %q, want 2", second, got)
	}
}

// A proxy that knows no hash tags spreads keys with the same one.
func TestNoTagsSpreadsKeysOfOneTag(t *testing.T) {
	servers := startServers(t)
	for _, preset := range []Preset{FirstKey, Twemproxy} {
		c := connect(t, Start(t, preset, servers...))
		for i := range 20 {
			c.want("+OK", "SET", fmt.Sprint("{"+preset.Name+"}", i), "1")
		}
		on := 0
		for _, server := range servers {
			if redistest.MustCommand(t, server, "KEYS", "{"+preset.Name+"}*") != "" {
				on++
			}
		}
		if want := map[bool]int{false: 1, true: 2}[preset.NoTags]; on != want {
			t.Errorf("%s: keys of one tag are on %d servers, want %d", preset.Name, on, want)
		}
	}
}

func TestPresetsRefuse(t *testing.T) {
	servers := startServers(t)
	first, second := keysOf(t)
	const get, alias = "return redis.call('GET', KEYS[1])", "local key = KEYS[1] return redis.call('GET', key)"
	nothing, twoKeys := "_", []string{"EVAL", get, "2", first, second}
	for _, c := range []struct {
		preset Preset
		want   string
		words  []string
	}{
		{FirstKey, nothing, twoKeys},
		{CrossSlot, "-" + crossSlot, twoKeys},
		{Alibaba, "-ERR eval/evalsha command keys must be in same slot", twoKeys},
		{Alibaba, "-" + badKey, []string{"EVAL", alias, "1", first}},
		{Alibaba, "-" + badKey, []string{"SCRIPT", "LOAD", alias}},
		{Alibaba, nothing, []string{"EVAL", get, "1", first}},
		{Alibaba, "-ERR for redis cluster, eval/evalsha number of keys can't be negative or zero", []string{"EVAL", "return 1", "0"}},
		{Alibaba, "*1\r\n:0", []string{"SCRIPT", "EXISTS", strings.Repeat("0", 40)}},
		{Tencent, "-NOPROTO unsupported protocol version", []string{"HELLO", "3"}},
		{Huawei, "-ERR unknown command", []string{"hello", "3"}},
		{Huawei, nothing, twoKeys},
		{ElastiCacheServerless, "-ERR Lua scripts without any input keys are not supported.", []string{"EVAL", "return 1", "0"}},
		{RedisEnterprise, "-" + crossSlot, twoKeys},
		{EnvoyRing, "-NOPROTO unsupported protocol version", []string{"HELLO", "3"}},
		{EnvoyRing, nothing, twoKeys},
		{EnvoyRing, "-invalid request", []string{"EVAL", "return 1", "0"}},
		{EnvoyCluster, "-" + crossSlot, twoKeys},
		{Twemproxy, Close, []string{"HELLO", "3"}},
		{Twemproxy, Close, []string{"INFO"}},
		{Twemproxy, nothing, twoKeys},
		{Codis, "-ERR command 'INFO' is not allowed", []string{"INFO"}},
	} {
		t.Run(c.preset.Name, func(t *testing.T) {
			p := Start(t, c.preset, servers...)
			client := connect(t, p)
			if c.want == nothing { // in RESP3, or else in RESP2
				if reply, err := client.call([]string{"HELLO", "3"}); err != nil || reply[0] == '-' {
					client, c.want = connect(t, p), "$-1"
				}
			}
			before := p.Refused()
			client.want(c.want, c.words...)
			if refused := p.Refused() - before; (refused == 1) != (c.want == Close || c.want[0] == '-') {
				t.Errorf("%q: %d refused", c.words, refused)
			}
		})
	}
}

// After a HELLO, servers that are put to use later speak the same protocol.
func TestNewServersGetHandshake(t *testing.T) {
	servers := startServers(t)
	p := Start(t, FirstKey, servers[0])
	c := connect(t, p)
	_, second := keysOf(t)
	if reply, err := c.call([]string{"HELLO", "3"}); err != nil || reply[0] != '%' {
		t.Fatalf("HELLO: %q, %v", reply, err)
	}
	p.Use(servers...)
	c.want("_", "GET", second)
	p.Behave(Codis)
	c.want("-ERR command 'INFO' is not allowed", "INFO")
}

func TestStopAndResume(t *testing.T) {
	servers := startServers(t)
	p := Start(t, FirstKey, servers...)
	c := connect(t, p)
	c.want("+PONG", "PING")
	p.Stop()
	c.want(Close, "PING")
	if b, err := dial(p.Addr); err == nil {
		_ = b.conn.Close()
		t.Error("connected to a stopped proxy")
	}
	p.Resume(t)
	connect(t, p).want("+PONG", "PING")
}

// What is no command closes the connection, and nothing else.
func TestBadProtocolClosesConnection(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	p := Start(t, FirstKey, server)
	for _, text := range []string{"\n", "*\r\n", "*-1\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "*x\r\n"} {
		c := connect(t, p)
		_, err := c.conn.Write([]byte(text))
		_, readErr := c.r.ReadByte()
		if err := errors.Join(err, readErr); err == nil {
			t.Errorf("%q: connection is open", text)
		}
	}
	connect(t, p).want("+PONG", "PING")
}
