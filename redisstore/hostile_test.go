package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// What people send, and what servers answer, when they mean no good.

// Keys are any bytes, of any length, and so are IDs. No two of them are the same
// to a store, and none is too long for a name in Redis.
func TestStoreHostileKeysAndIDs(t *testing.T) {
	prefix := newPrefix()
	store := open(t, liveServer, redisstore.Options{Prefix: prefix})
	huge := strings.Repeat("x", 4<<20)
	texts := []string{
		"\x00", "\xff\xfe", "a\r\nDEL b", "{", "}", "{}", "}{", "{a}b", "a{b}", "{a", "a}", " ", "*", "%s", "\u202e",
		huge + "x", huge + "y", "{" + huge + "}", "{a}" + huge,
	}
	for n, l := range slowLimits {
		for i, key := range texts {
			if n > 0 && len(key) > len(huge) {
				continue // one limit shows it
			}
			r := penstock.Request{Key: key, Limit: l, Cost: int64(i + 1), ID: texts[len(texts)-1-i]}
			if d := take(t, store, r); d.Granted != r.Cost || d.Remaining != burst-r.Cost {
				t.Errorf("%s, key %.20q: taking %d of a new key: got %+v", l, key, r.Cost, d)
			}
			r.ID += "."
			r.Cost = 1
			if d := take(t, store, r); d.Remaining != burst-int64(i+1)-1 {
				t.Errorf("%s, key %.20q: another ID: got %+v, want one more to be taken", l, key, d)
			}
			r.ID, r.Cost = "", penstock.Reset
			take(t, store, r)
		}
	}
	longest, err := liveServer.Command("EVAL", `
		local longest = 0
		for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do longest = math.max(longest, #name) end
		return longest`, "0", prefix)
	if err != nil || len(longest) > 3 {
		t.Errorf("the longest name has %s bytes (%v), want some hundreds at most", longest, err)
	}
}

// Batches are of any length, too.
func TestStoreLargeTakeEachAndTakeAll(t *testing.T) {
	const n = 5000 // more than a client's connection sends at once
	store := open(t, liveServer, redisstore.Options{})
	rs, ds := make([]penstock.Request, n), make([]penstock.Decision, n)
	for i := range rs {
		rs[i] = penstock.Request{Key: fmt.Sprint(i % (n / 2)), Limit: slowLimits[i%len(slowLimits)], Cost: 1}
	}
	if err := store.TakeEach(t.Context(), rs, ds); err != nil {
		t.Fatal(err)
	}
	const together = 500 // which one script takes, and everybody else waits for
	if err := store.TakeAll(t.Context(), rs[:together], ds); err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		if !d.Allowed || d.Granted != 1 {
			t.Fatalf("request %d of %d: got %+v, want it granted", i, n, d)
		}
	}
}

// An error says which operation failed, on which node and why, and is one of
// those that mean that nothing was decided.
func TestStoreErrorsNameOperationNodeAndCause(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, server *redistest.Server)
		why   string
		mend  []string // so that it works again; nothing if it does by itself
	}{
		{"memory", configSet("maxmemory", "1"), "OOM ", []string{"CONFIG", "SET", "maxmemory", "0"}},
		{"replicas", configSet("min-replicas-to-write", "1"), "NOREPLICAS ", []string{"CONFIG", "SET", "min-replicas-to-write", "0"}},
		{"permission", func(t *testing.T, server *redistest.Server) {
			mustCommand(t, server, "ACL", "SETUSER", "default", "-incrby", "-set")
		}, "NOPERM |ERR The user executing the script can't run", []string{"ACL", "SETUSER", "default", "+incrby", "+set"}},
		{"scripts", func(t *testing.T, server *redistest.Server) {
			mustCommand(t, server, "ACL", "SETUSER", "default", "-evalsha", "-eval")
		}, "NOPERM ", []string{"ACL", "SETUSER", "default", "+evalsha", "+eval"}},
		{"password", func(t *testing.T, server *redistest.Server) {
			mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			mustCommand(t, server, "CONFIG", "SET", "requirepass", "other")
		}, "NOAUTH ", nil},
		{"away", func(_ *testing.T, server *redistest.Server) { server.Kill() }, "connection refused", nil},
		{"hung", func(t *testing.T, server *redistest.Server) { pauseServer(t, server) }, "no answer within 200ms|it did not answer when it was last connected to", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, redistest.Options{})
			store := openURL(t, "redis://"+server.Addr, 200*time.Millisecond)
			rs, ds := []penstock.Request{takeOne, takeOne}, make([]penstock.Decision, 2)
			waitFor(t, "the store is warm", func() bool { return store.TakeAll(t.Context(), rs, ds) == nil })
			c.spoil(t, server)
			want := regexp.MustCompile(`^redisstore: (request \d: )?take (token-bucket|token-bucket once|all) on ` + regexp.QuoteMeta(server.Addr) + `: store unavailable: .*(` + c.why + `)`)
			once := takeOne
			once.ID = "x"
			for name, ask := range map[string]func() error{
				"Take":            func() error { _, err := store.Take(t.Context(), takeOne); return err },
				"Take with an ID": func() error { _, err := store.Take(t.Context(), once); return err },
				"TakeEach":        func() error { return store.TakeEach(t.Context(), rs, ds) },
				"TakeAll":         func() error { return store.TakeAll(t.Context(), rs, ds) },
			} {
				waitFor(t, "the reason is known", func() bool {
					err := ask()
					if !errors.Is(err, penstock.ErrUnavailable) {
						t.Fatalf("%s: got %v, want %v", name, err, penstock.ErrUnavailable)
					}
					if want.MatchString(err.Error()) {
						return true
					}
					// Who uses a connection that was cut learns no more than that.
					if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
						t.Fatalf("%s: got %v, want %s", name, err, want)
					}
					return false
				})
			}
			if c.mend != nil {
				mustCommand(t, server, c.mend...)
				look := takeOne
				look.Cost = 0
				if d := take(t, store, look); d.Remaining != burst-2 {
					t.Errorf("%d are left, want %d: what failed was charged", d.Remaining, burst-2)
				}
			}
		})
	}
}

func configSet(name, value string) func(t *testing.T, server *redistest.Server) {
	return func(t *testing.T, server *redistest.Server) { mustCommand(t, server, "CONFIG", "SET", name, value) }
}

// Somebody's script that does not end is none of ours; when it is killed, callers
// go on.
func TestStoreWaitsForBusyServer(t *testing.T) {
	server := startServer(t, redistest.Options{Args: []string{"--busy-reply-threshold", "20"}})
	load := startLoad(t, openURL(t, "redis://"+server.Addr, generous))
	for range 3 {
		load.waitAnswers(t, 200)
		before := infoCounter(t, "errorstat_BUSY", server)
		go func() { _, _ = server.Command("EVAL", "while true do end", "0") }()
		waitFor(t, "the server is busy", func() bool { return busy(server) })
		waitFor(t, "the script is killed", func() bool {
			_, _ = server.Command("SCRIPT", "KILL")
			return !busy(server)
		})
		if infoCounter(t, "errorstat_BUSY", server) <= before {
			t.Error("nobody met a busy server")
		}
	}
	load.waitAnswers(t, 200)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
}

// busy reports whether a server answers nobody but those who would help it.
func busy(server *redistest.Server) bool {
	_, err := server.Command("PING")
	return err != nil && strings.HasPrefix(err.Error(), "BUSY")
}

// Connections that an operator cuts cost the calls on them, and no more.
func TestStoreRecoversFromClientKillAndPause(t *testing.T) {
	server := startServer(t, redistest.Options{})
	load := startLoad(t, openURL(t, "redis://"+server.Addr, 50*time.Millisecond))
	for range 10 {
		load.waitAnswers(t, 100)
		mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	load.waitAnswers(t, 100)
	failed := load.failed.Load()
	mustCommand(t, server, "CLIENT", "PAUSE", "400")
	waitFor(t, "callers notice the pause", func() bool { return load.failed.Load() > failed })
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.check(t, 0, burst)
	checkExpiry(t, server)
}

// However many callers find no connection, and for whatever reason, they do not
// connect more often than is useful.
func TestStoreLimitsReconnects(t *testing.T) {
	for name, answer := range map[string]string{
		"hangs up":                  "",
		"is full":                   "-ERR max number of clients reached\r\n",
		"wants another password":    "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
		"does not speak like Redis": "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, liveServer.Addr)
			store := openURL(t, "redis://"+p.Addr, 50*time.Millisecond)
			load := startLoad(t, store)
			load.waitAnswers(t, 50)
			stub, connections := startStub(t, answer)
			p.Redirect(stub)
			began := time.Now()
			p.CutAll()
			waitFor(t, "callers notice", func() bool { return load.failed.Load() > 20*loadClients })
			n, took := connections.Load(), time.Since(began)
			if most := 15 + int64(took/(20*time.Millisecond)); n == 0 || n > most {
				t.Errorf("%d connections in %v for %d failed calls, want at most %d", n, took, load.failed.Load(), most)
			}
			p.Redirect(liveServer.Addr)
			load.waitAnswers(t, 50)
			load.closeAndDrain(t)
			load.check(t, 0, burst)
		})
	}
}

// A connection that breaks before anything was said on it has cost nobody a call.
func TestStoreRetriesFailedHandshake(t *testing.T) {
	p := startProxy(t, liveServer.Addr)
	store := openURL(t, "redis://"+p.Addr, generous)
	take(t, store, takeOne)
	stub, connections := startStub(t, "")
	p.Redirect(stub)
	p.CutAll()
	for range 20 { // on connections that were cut, of which there are some
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, _ = store.Take(impatient, takeOne)
		cancel()
	}
	answered := make(chan error)
	go func() {
		_, err := store.Take(context.Background(), takeOne)
		answered <- err
	}()
	before := connections.Load()
	waitFor(t, "some greetings fail", func() bool { return connections.Load() > before+3 })
	p.Redirect(liveServer.Addr)
	if err := <-answered; err != nil {
		t.Errorf("a call that was never sent: %v, want it to be repeated", err)
	}
}

// startStub starts something that answers everybody with the same, and hangs up.
func startStub(t *testing.T, answer string) (address string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	connections = &atomic.Int64{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
	return l.Addr().String(), connections
}

// A Cluster whose node says that a slot is at its own address leads nowhere.
func TestStoreRedirectionLoopFails(t *testing.T) {
	node := startServer(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
	p := startProxy(t, node.Addr)
	_, port, _ := strings.Cut(p.Addr, ":")
	mustCommand(t, node, "CONFIG", "SET", "cluster-announce-port", port)
	mustCommand(t, node, "CONFIG", "SET", "cluster-announce-ip", "127.0.0.1")
	mustCommand(t, node, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	waitFor(t, "the Cluster is there", func() bool { return strings.Contains(mustCommand(t, node, "CLUSTER", "INFO"), "cluster_state:ok") })
	store := openURL(t, "redis-cluster://"+p.Addr, 200*time.Millisecond)
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), takeOne); return err == nil })
	moved := fmt.Appendf(nil, "-MOVED 1 %s\r\n", p.Addr)
	p.Rewrite(func(b []byte) []byte {
		if bytes.HasPrefix(b, []byte(":")) { // an answer to a script
			return bytes.Repeat(moved, bytes.Count(b, []byte("\r\n")))
		}
		return b
	})
	var err error
	before := 0
	waitFor(t, "a reply comes by itself, and is not seen", func() bool { // others may come before it in one piece
		before = p.Connections()
		_, err = store.Take(t.Context(), takeOne)
		return err != nil
	})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "MOVED") {
		t.Errorf("got %v, want %v after MOVED", err, penstock.ErrUnavailable)
	}
	if n := p.Connections() - before; n > 25 {
		t.Errorf("%d connections were made for one call", n)
	}
	p.Rewrite(nil)
	waitFor(t, "the store recovers", func() bool { _, err := store.Take(t.Context(), takeOne); return err == nil })
}
