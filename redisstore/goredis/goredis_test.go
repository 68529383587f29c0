package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/redisstore/goredis"
	"github.com/penstock-io/penstock/storetest"
	"github.com/redis/go-redis/v9"
)

// fakeClockServer is shared by the tests; they set its clock.
var fakeClockServer *redistest.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	server, err := redistest.Start(redistest.Options{FakeClock: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	fakeClockServer = server
	return m.Run()
}

// longTimeout only detects hangs, also on a busy machine.
const longTimeout = time.Minute

var prefixes atomic.Int64

// newStore returns a store on a go-redis client, which it closes with the test.
func newStore(t testing.TB, client redis.UniversalClient, timeout time.Duration) *redisstore.Store {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	return shareStore(t, client, timeout)
}

// shareStore returns a store on a client that other stores use too.
func shareStore(t testing.TB, client redis.UniversalClient, timeout time.Duration) *redisstore.Store {
	t.Helper()
	c, err := goredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	var s *redisstore.Store
	redistest.WaitFor(t, "the server answers in time", func() bool { // some clients are impatient
		s, err = redisstore.New(c, &redisstore.Options{Prefix: fmt.Sprintf("g%d-", prefixes.Add(1)), Timeout: timeout})
		if err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	return s
}

func newClient(server *redistest.Server) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: server.Addr, ContextTimeoutEnabled: true, DialTimeout: longTimeout, ReadTimeout: longTimeout, WriteTimeout: longTimeout,
	})
}

// newServer starts a server for one test.
func newServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	return redistest.StartForTest(t, redistest.Options{Args: args})
}

// count returns a number from INFO, or 0 if it is missing.
func count(t *testing.T, server *redistest.Server, section, pattern string) int {
	t.Helper()
	found := regexp.MustCompile(pattern + `(\d+)`).FindStringSubmatch(redistest.MustCommand(t, server, "INFO", section))
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func take(t *testing.T, s penstock.Store, key string, l penstock.Limit, cost int64) penstock.Decision {
	t.Helper()
	d, err := s.Take(context.Background(), penstock.Request{Key: key, Limit: l, Cost: cost})
	if err != nil {
		t.Fatalf("taking %d of %s under %s: %v", cost, key, l, err)
	}
	return d
}

func TestClientStoreConformance(t *testing.T) {
	client := newClient(fakeClockServer)
	t.Cleanup(func() { _ = client.Close() })
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		err := clock.Follow(func(now time.Time) error {
			fakeClockServer.Clock.Set(now)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return shareStore(t, client, longTimeout)
	})
}

// limitsOfEveryKind returns limits that do not refill during a test.
func limitsOfEveryKind() (limits []penstock.Limit) {
	for a := range penstock.SlidingLog + 1 {
		limits = append(limits, penstock.Limit{Algorithm: a, Count: 7, Period: 24 * time.Hour})
	}
	return append(limits,
		penstock.Limit{Algorithm: penstock.FixedWindow, Count: 7, Period: 240 * 24 * time.Hour, Align: penstock.AlignClock},
		penstock.Limit{Algorithm: penstock.FixedWindow, Count: 7, Align: penstock.AlignYear, Zone: "Europe/Berlin"},
	)
}

// withoutTimes drops the durations of a decision, which differ between two stores.
func withoutTimes(d penstock.Decision) penstock.Decision {
	return penstock.Decision{Allowed: d.Allowed, Granted: d.Granted, Limit: d.Limit, Remaining: d.Remaining}
}

func TestClusterClientAgreesWithMemory(t *testing.T) {
	nodes := newCluster(t)
	redisStore, memory := newStore(t, newClusterClient(nodes), longTimeout), penstock.NewMemory(nil)
	for round := range 9 {
		var rs []penstock.Request
		for key := range 20 {
			for _, l := range limitsOfEveryKind() {
				rs = append(rs, penstock.Request{
					Key: fmt.Sprintf("key %d", key), Limit: l, Cost: int64(key%3 + 1), AtMost: key%2 == 0,
					ID: []string{"", fmt.Sprint(round / 2)}[key%5/4],
				})
			}
		}
		got, want := make([]penstock.Decision, len(rs)), make([]penstock.Decision, len(rs))
		if err := penstock.TakeEach(context.Background(), redisStore, rs, got); err != nil {
			t.Fatal(err)
		}
		if err := penstock.TakeEach(context.Background(), memory, rs, want); err != nil {
			t.Fatal(err)
		}
		for i := range rs {
			if withoutTimes(got[i]) != withoutTimes(want[i]) {
				t.Fatalf("round %d, %+v:\n got %+v\nwant %+v", round, rs[i], got[i], want[i])
			}
		}
	}
	for _, node := range nodes {
		if redistest.MustCommand(t, node, "DBSIZE") == "0" {
			t.Errorf("node %s holds no keys: the test proves little", node.Addr)
		}
	}
}

func TestClusterClientTakeAllAcrossSlots(t *testing.T) {
	s := newStore(t, newClusterClient(newCluster(t)), longTimeout)
	l := penstock.PerDay(2)
	together := []penstock.Request{{Key: "a", Limit: l, Cost: 1}, {Key: "b", Limit: l, Cost: 1}, {Key: "c", Limit: l, Cost: 1}}
	take(t, s, "b", l, 1)
	for i, want := range []bool{true, false} {
		ds := make([]penstock.Decision, len(together))
		if err := penstock.TakeAll(context.Background(), s, together, ds); err != nil {
			t.Fatal(err)
		}
		got := !slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
		if got != want {
			t.Errorf("taking %d of a, b and c together, when one of b was taken before: %+v", i+1, ds)
		}
	}
	if d := take(t, s, "a", l, 0); d.Remaining != 1 {
		t.Errorf("after one TakeAll was granted and one refused, a has %d remaining, want 1", d.Remaining)
	}
}

func TestClusterClientFollowsMovedSlots(t *testing.T) {
	c := redistest.StartCluster(t)
	for _, keys := range [][]string{{"alone"}, {"first", "second", "third"}} {
		// Each time another client, because the last one may still be learning where slots are.
		s := newStore(t, newClusterClient(c.Nodes[:redistest.Shards]), longTimeout)
		slot := c.Slot(t, keys[0])
		owner := c.Owner(t, slot)
		c.MigrateSlot(t, slot, (owner+1)%redistest.Shards)
		from := c.Nodes[owner]
		before := count(t, from, "errorstats", `errorstat_MOVED:count=`)
		var rs []penstock.Request
		for _, key := range keys {
			rs = append(rs, penstock.Request{Key: key, Limit: penstock.PerDay(5), Cost: 1})
		}
		ds := make([]penstock.Decision, len(rs))
		if err := penstock.TakeEach(context.Background(), s, rs, ds); err != nil {
			t.Fatal(err)
		}
		for i, d := range ds {
			if d.Remaining != 4 {
				t.Errorf("%s: one of 5 was taken, and %d remain", keys[i], d.Remaining)
			}
		}
		if n := count(t, from, "errorstats", `errorstat_MOVED:count=`); n == before {
			t.Errorf("taking from %q: the old node of %s never returned MOVED", keys, keys[0])
		}
	}
}

func TestClientReloadsFlushedScripts(t *testing.T) {
	server := newServer(t)
	s := newStore(t, newClient(server), longTimeout)
	l := penstock.PerDay(100)
	take(t, s, "key", l, 1)
	for i := range int64(5) {
		redistest.MustCommand(t, server, "SCRIPT", "FLUSH")
		rs := []penstock.Request{{Key: "key", Limit: l, Cost: 1}, {Key: "key", Limit: l, Cost: 1}, {Key: "other", Limit: l, Cost: 1}}
		ds := make([]penstock.Decision, len(rs))
		if err := penstock.TakeEach(context.Background(), s, rs, ds); err != nil {
			t.Fatal(err)
		}
		redistest.MustCommand(t, server, "SCRIPT", "FLUSH")
		if got, want := take(t, s, "key", l, 1).Remaining, 99-3*(i+1); got != want {
			t.Errorf("after %d takes, each once, %d of 100 remain, want %d", 1+3*(i+1), got, want)
		}
	}
	if n := count(t, server, "errorstats", `errorstat_NOSCRIPT:count=`); n < 10 {
		t.Errorf("the scripts were flushed 10 times, but missing only %d times", n)
	}
}

// shortTimeout is when a client gives up a paused server. It is the timeout of reads alone: that of
// writes has the same default, and a process that is held up before a write would not send the call.
const shortTimeout = 50 * time.Millisecond

// By itself the client would send a call up to four times, on the open connections, and
// give each attempt only a part of the store's timeout.
func TestClientDoesNotRetryUnansweredCalls(t *testing.T) {
	server := newServer(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: 3,
		ReadTimeout: shortTimeout, WriteTimeout: longTimeout, DialTimeout: longTimeout,
	})
	s := newStore(t, client, longTimeout)
	for calls := range 3 {
		callPausedServer(t, s, server, client, calls+1)
	}
}

func TestClusterClientDoesNotRetryUnansweredCalls(t *testing.T) {
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addressesOf(nodes), ContextTimeoutEnabled: true, MaxRedirects: 3,
		ReadTimeout: shortTimeout, WriteTimeout: longTimeout, DialTimeout: longTimeout,
	})
	s := newStore(t, client, longTimeout)
	var node *redis.Client
	redistest.WaitFor(t, "the Cluster answers in time", func() (ok bool) {
		var err error
		node, err = client.MasterForKey(context.Background(), "key")
		return err == nil
	})
	server := nodes[slices.Index(addressesOf(nodes), node.Options().Addr)]
	for calls := range 3 {
		callPausedServer(t, s, server, node, calls+1)
	}
}

// callPausedServer makes calls to a paused server and checks that each was executed
// once in the end.
func callPausedServer(t *testing.T, s *redisstore.Store, server *redistest.Server, node *redis.Client, calls int) {
	t.Helper()
	rs := slices.Repeat([]penstock.Request{{Key: "key", Limit: penstock.PerDay(100), Cost: 1}}, calls)
	call := func() error { return penstock.TakeEach(context.Background(), s, rs, make([]penstock.Decision, calls)) }
	redistest.WaitFor(t, "the server answers in time", func() bool { return call() == nil })
	openConnections(t, node, 4)
	asked := count(t, server, "commandstats", `cmdstat_evalsha:calls=`)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	err := call()
	if resumed := server.Resume(); resumed != nil {
		t.Fatal(resumed)
	}
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), server.Addr) {
		t.Errorf("the server does not answer: got error %v, want one that is ErrUnavailable and names %s", err, server.Addr)
	}
	// The waiting calls are executed before new ones.
	redistest.MustCommand(t, server, "PING")
	redistest.MustCommand(t, server, "PING")
	if got := count(t, server, "commandstats", `cmdstat_evalsha:calls=`) - asked; got != calls {
		t.Errorf("%d calls without answer were carried out %d times in the end", calls, got)
	}
}

// openConnections leaves n connections in the client's pool.
func openConnections(t *testing.T, client *redis.Client, n int) {
	t.Helper()
	var conns []*redis.Conn
	for range n {
		redistest.WaitFor(t, "the server answers in time", func() bool {
			conn := client.Conn()
			conns = append(conns, conn)
			return conn.Ping(context.Background()).Err() == nil
		})
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
}

func TestClientHonorsDeadline(t *testing.T) {
	server := newServer(t)
	s := newStore(t, newClient(server), 30*time.Millisecond)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	// The server stays silent, so only the deadline ends the call.
	_, err := s.Take(context.Background(), penstock.Request{Key: "key", Limit: penstock.PerDay(1), Cost: 1})
	if !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a silent server: got error %v, want one that is ErrUnavailable", err)
	}
}

func TestClientKeepsErrors(t *testing.T) {
	server := newServer(t)
	s := newStore(t, newClient(server), longTimeout)
	r := penstock.Request{Key: "key", Limit: penstock.PerDay(5), Cost: 1}
	take(t, s, r.Key, r.Limit, 1)
	name := redistest.MustCommand(t, server, "KEYS", "*")
	redistest.MustCommand(t, server, "DEL", name)
	redistest.MustCommand(t, server, "SADD", name, "something else")
	redistest.MustCommand(t, server, "EXPIRE", name, "100")
	_, err := s.Take(context.Background(), r)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "WRONGTYPE") {
		t.Errorf("a set under the name of a bucket: got error %v, want one that is ErrUnavailable and says WRONGTYPE", err)
	}

	redistest.MustCommand(t, server, "DEL", name)
	redistest.MustCommand(t, server, "ACL", "SETUSER", "default", "-set")
	r.ID = "id"
	var refused *redisstore.RefusedError
	if _, err = s.Take(context.Background(), r); !errors.As(err, &refused) || !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "can't run") {
		t.Errorf("a user without write permission: got error %v, want a refusal that says so", err)
	}
	client := newClient(server)
	t.Cleanup(func() { _ = client.Close() })
	c, err := goredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = redisstore.New(c, nil); !errors.As(err, &refused) {
		t.Errorf("a store for a user without write permission: got error %v, want a refusal", err)
	}
	redistest.MustCommand(t, server, "ACL", "SETUSER", "default", "+set", "-info")
	s = newStore(t, newClient(server), time.Hour)
	if got := s.Warnings(); len(got) != 1 || !strings.Contains(got[0], "INFO") {
		t.Errorf("a user without INFO: got warnings %q, want one", got)
	}
	redistest.MustCommand(t, server, "ACL", "SETUSER", "default", "+@all")

	s = newStore(t, newClient(server), 50*time.Millisecond)
	server.Kill()
	redistest.WaitFor(t, "an error says why", func() bool { // the first may be about the connection that ended
		if _, err = s.Take(context.Background(), r); !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("a server that is gone: got error %v, want one that is ErrUnavailable", err)
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

func TestNewRejectsUnfitClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	impatient := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = impatient.Close() })
	for client, want := range map[redis.UniversalClient]string{ring: "*redis.Ring", impatient: "ContextTimeoutEnabled", nil: "<nil>"} {
		if _, err := goredis.New(client); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a client of type %T: got error %v, want one that says %s", client, err, want)
		}
	}
}
