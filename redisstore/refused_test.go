package redisstore_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/redisstore"
)

// A proxy that rewrites the version stands for an old server.
func startOldServer(t *testing.T, major string) (addr string) {
	t.Helper()
	p := startProxy(t, liveServer.Addr)
	version := regexp.MustCompile(`redis_version:[0-9]`)
	p.Rewrite(func(b []byte) []byte { return version.ReplaceAll(b, []byte("redis_version:"+major)) })
	return p.Addr
}

func TestOpenAcceptsOldestServer(t *testing.T) {
	t.Parallel()
	o := redisstore.Options{}.WithConnTimeout(longConnTimeout)
	s, err := redisstore.Open(context.Background(), "redis://"+startOldServer(t, "6"), &o)
	if err != nil {
		t.Fatalf("a server of version 6: %v", err)
	}
	s.Close()
}

func TestOpenRejectsOldServer(t *testing.T) {
	t.Parallel()
	addr := startOldServer(t, "5")
	err := openError(t, "redis://"+addr)
	for _, part := range []string{addr, "version 5.", "want 6 or later"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("a server of version 5: got %v, want it to say %q", err, part)
		}
	}
}

// openError returns the error of a URL that must not open.
func openError(t *testing.T, url string) error {
	t.Helper()
	o := redisstore.Options{}.WithConnTimeout(longConnTimeout)
	s, err := redisstore.Open(context.Background(), url, &o)
	if err == nil {
		s.Close()
		t.Fatalf("Open(%q) succeeded", url)
	}
	if !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("Open(%q): %v, want it to be %v", url, err, penstock.ErrUnavailable)
	}
	return err
}

// replies is a proxy that answers some commands by itself.
func replies(pairs ...string) redisproxy.Preset {
	p := redisproxy.Preset{Replies: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		p.Replies[pairs[i]] = pairs[i+1]
	}
	return p
}

// A server that answers, but refuses scripts, makes Open fail, with its words and what to do, even if it may be
// unavailable at the start.
func TestOpenFailsIfScriptsAreRefused(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, c := range []struct {
		preset redisproxy.Preset
		want   []string
	}{
		{replies("EVAL", "-ERR unknown command 'eval'", "EVALSHA", "-ERR unknown command 'evalsha'"), []string{"unknown command 'eval'", "want Redis 6"}},
		{replies("EVAL", "-NOPERM this user has no permissions to run the 'eval' command", "EVALSHA", "-NOPERM no"), []string{"NOPERM", "give the user"}},
		{replies("EVAL", "-ERR quota of words exceeded", "EVALSHA", "-ERR quota of words exceeded"), []string{"quota of words", "no outage"}},
		{replies("EVAL", "+OK", "EVALSHA", "+OK"), []string{"unexpected reply", "no outage"}},
		{replies("EVAL", ":0", "EVALSHA", ":0"), []string{"does not find", "one primary"}},
		{replies("HELLO", "-WRONGPASS invalid username-password pair"), []string{"WRONGPASS", "check user and password"}},
	} {
		p := redisproxy.Start(t, c.preset, server)
		o := redisstore.Options{AllowUnavailable: true}.WithConnTimeout(longConnTimeout)
		store, err := redisstore.Open(t.Context(), p.URL(), &o)
		if err == nil {
			store.Close()
		}
		var refused *redisstore.RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%v: got %v, want a RefusedError that is ErrUnavailable", c.preset.Replies, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want it to say %q", err, part)
			}
		}
	}
}

// Commands of the handshake, and those that only help, may be missing or answered in any way.
func TestOpenAcceptsAnyHandshake(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, odd := range []string{"-ERR unknown command", "-NOPROTO unsupported protocol version", "-ERR unsupported", "+OK", "*0", ":1", redisproxy.Close} {
		for _, commands := range [][]string{
			{"HELLO"},
			{"HELLO 3"},
			{"INFO"},
			{"CLIENT"},
			{"SCRIPT"},
			{"CLUSTER"},
			{"TIME"},
			{"HELLO", "INFO", "CLIENT", "SCRIPT", "CLUSTER", "TIME"},
		} {
			var pairs []string
			for _, command := range commands {
				pairs = append(pairs, command, odd)
			}
			p := redisproxy.Start(t, replies(pairs...), server)
			o := redisstore.Options{Prefix: newPrefix(), Timeout: longTimeout}.WithConnTimeout(longConnTimeout)
			store, err := redisstore.Open(t.Context(), p.URL(), &o)
			if err != nil {
				t.Errorf("%v answered by %q: %v", commands, odd, err)
				continue
			}
			take(t, store, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1, ID: "x"})
			if _, err := store.RunIDs(t.Context()); err != nil {
				t.Errorf("%v answered by %q: run IDs: %v", commands, odd, err)
			}
			store.Close()
		}
	}
}

// A server without EVALSHA gets the texts of scripts.
func TestStoreSendsTextsWithoutEVALSHA(t *testing.T) {
	t.Parallel()
	p := redisproxy.Start(t, replies("EVALSHA", "-ERR unknown command 'evalsha'", "SCRIPT", "-ERR unknown command 'script'"), startServer(t))
	store := openURL(t, p.URL(), longTimeout)
	refused := p.Refused()
	for range 3 {
		take(t, store, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
	}
	if n := p.Refused(); n != refused {
		t.Errorf("%d commands were refused after Open, want none", n-refused)
	}
}

// The form of scripts that a server accepts is found again by each probe.
func TestStoreKeepsFormOfScripts(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, preset := range []redisproxy.Preset{replies("EVALSHA", "-ERR unknown command 'evalsha'"), redisproxy.Alibaba6} {
		p := redisproxy.Start(t, preset, server)
		store := openURL(t, p.URL(), longTimeout)
		for i := range 4 {
			if err := store.Probe(t.Context()); err != nil {
				t.Errorf("%s: probe %d: %v", preset.Name, i, err)
			}
			take(t, store, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1, ID: "x"})
			if n, last := store.Refusals(); n != 0 {
				t.Errorf("%s: %d refusals after probe %d, the last %v", preset.Name, n, i, last)
			}
		}
	}
}

// A server that begins to refuse is told apart from one that is down, and one that ends it decides again.
func TestStoreTellsRefusalsFromOutages(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := redisproxy.Start(t, redisproxy.Preset{}, server)
	store := openURL(t, p.URL(), longTimeout)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1}
	for i, c := range []struct {
		reply   string
		refused bool
	}{
		{"-NOPERM this user has no permissions to run the 'evalsha' command", true},
		{"-ERR bad lua script for redis cluster, redis.call/pcall, wrong number of arguments for 'pexpire' command", true},
		{"-ERR something that no reference lists", true},
		{"-upstream failure", false},
		{"-OOM command not allowed when used memory > 'maxmemory'.", false},
	} {
		count, _ := store.Refusals()
		p.Behave(replies("EVAL", c.reply, "EVALSHA", c.reply))
		_, err := store.Take(t.Context(), r)
		var refused *redisstore.RefusedError
		if errors.As(err, &refused) != c.refused || !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%s: got %v, want a RefusedError %v", c.reply, err, c.refused)
		}
		after, last := store.Refusals()
		if c.refused && (after == count || last == nil || !strings.Contains(last.Error(), c.reply[1:])) || i == 0 && count != 0 {
			t.Errorf("%s: %d refusals, before %d, the last %v", c.reply, after, count, last)
		}
		p.Behave(redisproxy.Preset{})
		take(t, store, r)
	}
}

// All texts with which a server or a proxy refuses are refusals. Those that pass, and those about one key, are not.
func TestRefusalsByText(t *testing.T) {
	t.Parallel()
	const bad = "ERR bad lua script for redis cluster, "
	for _, text := range []string{
		"ERR for redis cluster, eval/evalsha number of keys can't be negative or zero",
		"ERR eval/evalsha command keys must be in same slot",
		bad + "all the keys that the script uses should be passed using the KEYS array, and KEYS should not be in expression",
		bad + "first parameter of redis.call/redis.pcall must be a single literal string",
		bad + "redis.call/pcall, wrong number of arguments for 'pexpire' command",
		"ERR eval/evalsha numkeys must be bigger than zero in redis cluster mode",
		"ERR Lua scripts without any input keys are not supported.",
		"CROSSSLOT Keys in request don't hash to the same slot",
		"ERR unknown command", "ERR unknown command 'EVAL', with args beginning with: ", "ERR command is not allowed",
		"NOPERM this user has no permissions to run the 'eval' command",
		"ERR ACL failure in script: User limiter has no permissions to run the 'get' command",
		"NOAUTH Authentication required.", "DENIED Redis is running in protected mode",
		"MOVED 3999 127.0.0.1:6381", "ERR Write commands not allowed after non deterministic commands",
		"ERR words of an unknown proxy",
	} {
		if !redisstore.IsRefusal(errors.New(text)) {
			t.Errorf("%s: want a refusal", text)
		}
	}
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.", "BUSY Redis is busy",
		"OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis is configured to save RDB snapshots",
		"ERR upstream failure", "ERR no upstream host", "ERR max number of clients reached", "ERR Connection refused", "ERR Connection timed out",
		"ERR No route to host", "ERR Network is unreachable", "ERR Broken pipe", "ERR handle response, backend conn reset",
		"ERR FOREIGN value", "WRONGTYPE Operation against a key holding the wrong kind of value", "i/o timeout",
	} {
		if redisstore.IsRefusal(errors.New(text)) {
			t.Errorf("%s: want no refusal", text)
		}
	}
}

// Errors are logged and shown to everyone. What a server repeats of a command may be secret, and its words are many.
func TestRefusalsRepeatNoArguments(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	server := startServer(t)
	for _, reply := range []string{
		"-ERR unknown command, with args beginning with: 'HELLO' '3' 'AUTH' 'default' '" + secret + "' ",
		"-ERR unknown command 'EVALSHA', with args beginning with: '6b1bf486c81ceb7edf3c093f4c48582e38c0e791' '1' 'p{" + secret + "' same slot'",
		"-ERR ACL failure in script: User limiter has no permissions to access the 'p{" + secret + "' same slot}Xk3_a9Q' key",
		"-ERR " + strings.Repeat("long ", 10_000) + secret,
	} {
		for _, commands := range [][]string{{"HELLO", "AUTH", "PING"}, {"EVAL", "EVALSHA"}} {
			var pairs []string
			for _, command := range commands {
				pairs = append(pairs, command, reply)
			}
			err := openError(t, strings.Replace(redisproxy.Start(t, replies(pairs...), server).URL(), "//", "//:"+secret+"@", 1))
			var refused *redisstore.RefusedError
			if text := err.Error(); !errors.As(err, &refused) || strings.Contains(text, secret) || strings.Contains(text, "same slot") || len(text) > 1000 {
				t.Errorf("%.200q answered by %.80q, want a short refusal without arguments", text, reply)
			}
		}
	}
}
