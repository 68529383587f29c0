package redisstore_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A primary can become a replica while it is connected to.

func TestStoreHidesBriefDemotion(t *testing.T) {
	for _, c := range []struct{ stale, word string }{{"yes", "READONLY"}, {"no", "MASTERDOWN"}} {
		t.Run(c.word, func(t *testing.T) {
			server := startServer(t, redistest.Options{Args: []string{"--replica-serve-stale-data", c.stale}})
			nobody := strconv.Itoa(freePort(t))
			load := startLoad(t, openURL(t, "redis://"+server.Addr, generous))
			for range 5 {
				load.waitAnswers(t, 300)
				before := infoCounter(t, "errorstat_"+c.word, server)
				mustCommand(t, server, "REPLICAOF", "127.0.0.1", nobody)
				waitFor(t, "callers meet a replica", func() bool { return infoCounter(t, "errorstat_"+c.word, server) > before })
				mustCommand(t, server, "REPLICAOF", "NO", "ONE")
			}
			load.closeAndDrain(t)
			load.checkNoFailures(t)
			checkExpiry(t, server)
		})
	}
}

func TestStoreReplicaErrorNamesServer(t *testing.T) {
	server := startServer(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, 50*time.Millisecond)
	mustCommand(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	_, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1})
	if err == nil || !strings.Contains(err.Error(), "READONLY") || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("a server that stays a replica: got %v, want READONLY and %s", err, server.Addr)
	}
}

// Who is refused, and then not answered any more, is told of both.
func TestStoreTimeoutErrorKeepsEarlierError(t *testing.T) {
	server := startServer(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, 500*time.Millisecond)
	take(t, store, takeOne)
	mustCommand(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	ended := make(chan error)
	go func() {
		_, err := store.Take(context.Background(), takeOne)
		ended <- err
	}()
	waitFor(t, "the call is refused", func() bool { return infoCounter(t, "errorstat_READONLY", server) > 0 })
	pauseServer(t, server)
	err := <-ended
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "no answer within") || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("got %v, want no answer after READONLY", err)
	}
}

// A name, or a virtual address, moves to a new primary. The old one is a replica
// now, and keeps its connections: who stays on them is refused for ever.
func TestStoreFollowsMovedAddress(t *testing.T) {
	old, next := startServer(t, redistest.Options{}), startServer(t, redistest.Options{})
	mustCommand(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	load := startLoad(t, openURL(t, "redis://"+p.Addr, generous))
	load.waitAnswers(t, 300)
	connected := p.Connections()

	p.Redirect(next.Addr)
	swapRoles(t, old, next)
	load.waitAnswers(t, 1000)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	if infoCounter(t, "errorstat_READONLY", old) == 0 || infoCounter(t, "cmdstat_evalsha", next) == 0 {
		t.Errorf("%d calls met the old primary, and %d the next: nothing has moved",
			infoCounter(t, "errorstat_READONLY", old), infoCounter(t, "cmdstat_evalsha", next))
	}
	if n := p.Connections() - connected; n == 0 || n > 20 {
		t.Errorf("%d connections were made when the address moved, want some and not many", n)
	}
	checkExpiry(t, old, next)
}

// swapRoles makes a replica the primary, and the primary its replica, and loses
// nothing.
func swapRoles(t *testing.T, old, next *redistest.Server) {
	t.Helper()
	waitFor(t, "the replica is ready", func() bool {
		_, err := old.Command("FAILOVER", "TO", "127.0.0.1", strconv.Itoa(next.Port))
		return err == nil
	})
	waitFor(t, "they have changed places", func() bool { return infoField(t, old, "role") == "slave" && infoField(t, next, "role") == "master" })
}

// The same among sentinels, to which the old primary and the next have one name.
func TestSentinelFollowsMovedAddress(t *testing.T) {
	old, next := startServer(t, redistest.Options{}), startServer(t, redistest.Options{})
	mustCommand(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	load := startLoad(t, openURL(t, redistest.StartSentinel(t, p.Addr), generous))
	load.waitAnswers(t, 300)
	p.Redirect(next.Addr)
	swapRoles(t, old, next)
	load.waitAnswers(t, 1000)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	if infoCounter(t, "errorstat_READONLY", old) == 0 || infoCounter(t, "cmdstat_evalsha", next) == 0 {
		t.Error("nothing has moved")
	}
}

// A server that stays a replica is connected to again and again, but not by every
// call that it refuses.
func TestStoreReplicaLimitsReconnects(t *testing.T) {
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	load := startLoad(t, openURL(t, "redis://"+p.Addr, 50*time.Millisecond))
	load.waitAnswers(t, 300)
	mustCommand(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	waitFor(t, "callers meet a replica", func() bool { return load.failed.Load() > 0 })
	began, connected, refused := time.Now(), p.Connections(), infoCounter(t, "errorstat_READONLY", server)
	waitFor(t, "the store tries another connection twice", func() bool { return p.Connections() >= connected+2 })
	load.waitCalls(t, 300)
	connections, refusals, took := p.Connections()-connected, infoCounter(t, "errorstat_READONLY", server)-refused, time.Since(began)
	if most := 4 + 4*int(took/(100*time.Millisecond)); connections > most || refusals < 10*connections {
		t.Errorf("%d connections were made in %v for %d refusals, want at most %d", connections, took, refusals, most)
	}
	mustCommand(t, server, "REPLICAOF", "NO", "ONE")
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.check(t, 0, burst)
	checkExpiry(t, server)
}
