package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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

// Keys and IDs are any bytes of any length. They never collide, and names in Redis
// stay short.
func TestStoreHostileKeysAndIDs(t *testing.T) {
	t.Parallel()
	prefix := newPrefix()
	store := open(t, liveServer, redisstore.Options{Prefix: prefix})
	size := 4 << 20
	if testing.Short() {
		size = 256 << 10
	}
	huge := strings.Repeat("x", size)
	texts := []string{
		"\x00", "\xff\xfe", "a\r\nDEL b", "{", "}", "{}", "}{", "{a}b", "a{b}", "{a", "a}", " ", "*", "%s", "\u202e",
		huge + "x", huge + "y", "{" + huge + "}", "{a}" + huge,
	}
	for n, l := range slowLimits {
		for i, key := range texts {
			if n > 0 && len(key) > len(huge) {
				continue // one limit is enough
			}
			r := penstock.Request{Key: key, Limit: l, Cost: int64(i + 1), ID: texts[len(texts)-1-i]}
			if d := take(t, store, r); d.Granted != r.Cost || d.Remaining != burst-r.Cost {
				t.Errorf("%s, key %.20q: taking %d of a new key: got %+v", l, key, r.Cost, d)
			}
			r.ID += "."
			r.Cost = 1
			if d := take(t, store, r); d.Remaining != burst-int64(i+1)-1 {
				t.Errorf("%s, key %.20q: another ID: got %+v, want one more taken", l, key, d)
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

func TestStoreLargeTakeEachAndTakeAll(t *testing.T) {
	t.Parallel()
	const n = 5000 // more than a connection sends at once
	store := open(t, liveServer, redisstore.Options{})
	rs, ds := make([]penstock.Request, n), make([]penstock.Decision, n)
	for i := range rs {
		rs[i] = penstock.Request{Key: fmt.Sprint(i % (n / 2)), Limit: slowLimits[i%len(slowLimits)], Cost: 1}
	}
	if err := store.TakeEach(t.Context(), rs, ds); err != nil {
		t.Fatal(err)
	}
	const together = 500 // handled by one script, for which other clients wait
	if err := store.TakeAll(t.Context(), rs[:together], ds); err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		if !d.Allowed || d.Granted != 1 {
			t.Fatalf("request %d of %d: got %+v, want it granted", i, n, d)
		}
	}
}

// A fault makes calls fail with an error that matches want.
type fault struct {
	name   string
	begin  func(t *testing.T, server *redistest.Server)
	want   string
	repair []string // command after which calls succeed again; nil if there is none
}

// Errors name the operation, the node and the cause, and are ErrUnavailable.
func TestStoreErrorsNameOperationNodeAndCause(t *testing.T) {
	for _, f := range []fault{
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
		{"down", func(_ *testing.T, server *redistest.Server) { server.Kill() }, "connection refused", nil},
		{"hung", pauseServer, "no answer within [0-9]+ms|the server did not answer the last handshake", nil},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			checkFaultErrors(t, f)
		})
	}
}

func checkFaultErrors(t *testing.T, f fault) {
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, 200*time.Millisecond)
	once, peek := takeOne, takeOne
	once.ID, peek.Cost = "x", 0
	rs, ds := []penstock.Request{peek, peek}, make([]penstock.Decision, 2)
	waitFor(t, "the store is warm", func() bool { return store.TakeAll(t.Context(), rs, ds) == nil })
	f.begin(t, server)
	rs[0], rs[1] = takeOne, takeOne
	want := regexp.MustCompile(`^(penstock: request \d: )?redisstore: (request \d: )?take (token-bucket|token-bucket once|all) on ` +
		regexp.QuoteMeta(server.Addr) + `: store unavailable: .*(` + f.want + `)`)
	for name, call := range map[string]func() error{
		"Take":            func() error { _, err := store.Take(t.Context(), takeOne); return err },
		"Take with an ID": func() error { _, err := store.Take(t.Context(), once); return err },
		"TakeEach":        func() error { return store.TakeEach(t.Context(), rs, ds) },
		"TakeAll":         func() error { return store.TakeAll(t.Context(), rs, ds) },
	} {
		waitFor(t, name+" returns the cause", func() bool { return matchesError(t, name, call(), want) })
	}
	if f.repair == nil {
		return
	}
	mustCommand(t, server, f.repair...)
	var d penstock.Decision
	waitFor(t, "the store recovers", func() (ok bool) {
		var err error
		d, err = store.Take(t.Context(), peek)
		return err == nil
	})
	if d.Remaining != burst {
		t.Errorf("%d remain, want %d: a failed call was charged", d.Remaining, burst)
	}
}

// matchesError reports whether an error is the wanted one. On a connection that was
// cut, or on a busy machine, a call may fail before it learns the cause.
func matchesError(t *testing.T, name string, err error, want *regexp.Regexp) bool {
	t.Helper()
	switch {
	case !errors.Is(err, penstock.ErrUnavailable):
		t.Fatalf("%s: got %v, want %v", name, err, penstock.ErrUnavailable)
	case want.MatchString(err.Error()):
		return true
	case !isConnError(err):
		t.Fatalf("%s: got %v, want %s", name, err, want)
	}
	return false
}

// isConnError reports whether a call failed because a connection was cut or silent.
func isConnError(err error) bool {
	for _, target := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, os.ErrDeadlineExceeded, context.DeadlineExceeded} {
		if errors.Is(err, target) {
			return true
		}
	}
	return strings.Contains(err.Error(), "did not answer the last handshake") || strings.Contains(err.Error(), "the server has closed the connection")
}

func configSet(name, value string) func(t *testing.T, server *redistest.Server) {
	return func(t *testing.T, server *redistest.Server) { mustCommand(t, server, "CONFIG", "SET", name, value) }
}

// Calls wait while a foreign script blocks the server, and go on when it is killed.
func TestStoreWaitsForBusyServer(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--busy-reply-threshold", "20")
	load := startLoad(t, openURL(t, "redis://"+server.Addr, longTimeout))
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
			t.Error("no call met the busy server")
		}
	}
	load.waitAnswers(t, 200)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
}

// busy reports whether a script blocks the server.
func busy(server *redistest.Server) bool {
	_, err := server.Command("PING")
	return err != nil && strings.HasPrefix(err.Error(), "BUSY")
}

// Killed connections cost the calls on them, and paused ones the calls meanwhile.
func TestStoreRecoversFromClientKillAndPause(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	load := startLoad(t, openURL(t, "redis://"+server.Addr, shortTimeout))
	for range 10 {
		load.waitAnswers(t, 100)
		mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	load.waitAnswers(t, 100)
	failed := load.failed.Load()
	mustCommand(t, server, "CLIENT", "PAUSE", "600000", "WRITE") // scripts are writes
	waitFor(t, "calls fail during the pause", func() bool { return load.failed.Load() > failed })
	mustCommand(t, server, "CLIENT", "UNPAUSE")
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.check(t, 0, burst)
	checkExpiry(t, server)
}

// However many calls find no connection, the rate of new connections is limited.
func TestStoreLimitsReconnects(t *testing.T) {
	for name, answer := range map[string]string{
		"closes the connection": "",
		"has too many clients":  "-ERR max number of clients reached\r\n",
		"rejects the password":  "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
		"is not Redis":          "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, liveServer.Addr)
			o := redisstore.Options{Prefix: newPrefix(), Timeout: shortTimeout}
			store := mustOpen(t, "redis://"+p.Addr, o.WithConnTimeout(longConnTimeout))
			load := startLoad(t, store)
			load.waitAnswers(t, 50)
			stub, connections := startStub(t, answer)
			began, before := time.Now(), load.failed.Load()
			p.Redirect(stub)
			p.CutAll()
			waitFor(t, "calls fail", func() bool { return connections.Load() > 0 && load.failed.Load() > before+4*loadClients })
			n, took := connections.Load(), time.Since(began)
			if most := 15 + int64(took/(20*time.Millisecond)); n > most {
				t.Errorf("%d connections in %v for %d failed calls, want at most %d", n, took, load.failed.Load(), most)
			}
			p.Redirect(liveServer.Addr)
			load.waitAnswers(t, 50)
			load.closeAndDrain(t)
			load.check(t, 0, burst)
		})
	}
}

// A call whose connection breaks during the handshake was not sent and is repeated.
func TestStoreRetriesFailedHandshake(t *testing.T) {
	t.Parallel()
	p := startProxy(t, liveServer.Addr)
	store := openURL(t, "redis://"+p.Addr, longTimeout)
	take(t, store, takeOne)
	stub, connections := startStub(t, "")
	p.Redirect(stub)
	p.CutAll()
	waitFor(t, "the cut connection is discarded", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _ = store.Take(ctx, takeOne)
		return connections.Load() > 0
	})
	answered := make(chan error)
	go func() {
		_, err := store.Take(context.Background(), takeOne)
		answered <- err
	}()
	before := connections.Load()
	waitFor(t, "some handshakes fail", func() bool { return connections.Load() > before+3 })
	p.Redirect(liveServer.Addr)
	if err := <-answered; err != nil {
		t.Errorf("a call that was never sent: %v, want it to be repeated", err)
	}
}

// startStub starts a server that answers every connection with the same text and
// closes it.
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

// A Cluster node that redirects a slot to its own address would redirect forever.
func TestStoreRedirectionLoopFails(t *testing.T) {
	t.Parallel()
	node := startServer(t, "--cluster-enabled", "yes")
	p := startProxy(t, node.Addr)
	_, port, _ := strings.Cut(p.Addr, ":")
	mustCommand(t, node, "CONFIG", "SET", "cluster-announce-port", port)
	mustCommand(t, node, "CONFIG", "SET", "cluster-announce-ip", "127.0.0.1")
	mustCommand(t, node, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	waitFor(t, "the Cluster is up", func() bool { return strings.Contains(mustCommand(t, node, "CLUSTER", "INFO"), "cluster_state:ok") })
	store := openURL(t, "redis-cluster://"+p.Addr, 200*time.Millisecond)
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), takeOne); return err == nil })
	moved := fmt.Appendf(nil, "-MOVED 1 %s\r\n", p.Addr)
	p.Rewrite(func(b []byte) []byte {
		if bytes.HasPrefix(b, []byte(":")) { // the reply to a script
			return bytes.Repeat(moved, bytes.Count(b, []byte("\r\n")))
		}
		return b
	})
	var before int
	var began time.Time
	waitFor(t, "an error says MOVED", func() bool { // a reply that comes in one piece with others is not rewritten
		began, before = time.Now(), p.Connections()
		_, err := store.Take(t.Context(), takeOne)
		if err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("got %v, want %v", err, penstock.ErrUnavailable)
		}
		return err != nil && strings.Contains(err.Error(), "MOVED")
	})
	n, took := p.Connections()-before, time.Since(began)
	if most := 15 + int(took/(20*time.Millisecond)); n > most {
		t.Errorf("%d connections in %v for one call, want at most %d", n, took, most)
	}
	p.Rewrite(nil)
	waitFor(t, "the store recovers", func() bool { _, err := store.Take(t.Context(), takeOne); return err == nil })
}
