package redisstore_test

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A primary that is a replica for a moment causes no error.
func TestStoreHidesBriefDemotion(t *testing.T) {
	for _, c := range []struct{ stale, word string }{{"yes", "READONLY"}, {"no", "MASTERDOWN"}} {
		t.Run(c.word, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, "--replica-serve-stale-data", c.stale)
			unused := strconv.Itoa(freePort(t))
			load := startLoad(t, openURL(t, "redis://"+server.Addr, longTimeout))
			for range 5 {
				load.waitAnswers(t, 300)
				before := infoCounter(t, "errorstat_"+c.word, server)
				mustCommand(t, server, "REPLICAOF", "127.0.0.1", unused)
				waitFor(t, "calls reach the replica", func() bool { return infoCounter(t, "errorstat_"+c.word, server) > before })
				mustCommand(t, server, "REPLICAOF", "NO", "ONE")
			}
			load.closeAndDrain(t)
			load.checkNoFailures(t)
			checkExpiry(t, server)
		})
	}
}

func TestStoreReplicaErrorNamesServer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, shortTimeout)
	makeReplica(t, server)
	waitFor(t, "an error with READONLY and the address", func() bool {
		_, err := store.Take(t.Context(), takeOne)
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("a replica: got %v, want %v", err, penstock.ErrUnavailable)
		}
		return strings.Contains(err.Error(), "READONLY") && strings.Contains(err.Error(), server.Addr)
	})
}

// A call that is rejected, repeated and then not answered reports both errors.
func TestStoreTimeoutErrorKeepsEarlierError(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	o := redisstore.Options{Timeout: 10 * time.Second}
	store := openOptions(t, "redis://"+p.Addr, o.WithConnTimeout(longConnTimeout))
	take(t, store, takeOne)
	makeReplica(t, server)
	t.Cleanup(func() { _ = server.Resume() })
	p.Rewrite(func(reply []byte) []byte {
		if bytes.Contains(reply, []byte("READONLY")) { // the last reply that the store gets
			_ = server.Pause()
		}
		return reply
	})
	_, err := store.Take(t.Context(), takeOne)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "no answer within") || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("got %v, want no answer after READONLY", err)
	}
}

// A name or a virtual address moves to a new primary. The old primary becomes a
// replica and keeps its connections, on which every call would be rejected.
func TestStoreFollowsMovedAddress(t *testing.T) {
	t.Parallel()
	old, next := startServer(t), startServer(t)
	mustCommand(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	load := startLoad(t, openURL(t, "redis://"+p.Addr, longTimeout))
	load.waitAnswers(t, 300)
	began, connected := time.Now(), p.Connections()
	p.Redirect(next.Addr)
	swapRoles(t, old, next)
	load.waitAnswers(t, 1000)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	if infoCounter(t, "errorstat_READONLY", old) == 0 || infoCounter(t, "cmdstat_evalsha", next) == 0 {
		t.Errorf("%d calls reached the old primary and %d the new one: the address has not moved",
			infoCounter(t, "errorstat_READONLY", old), infoCounter(t, "cmdstat_evalsha", next))
	}
	most := 20 + int(time.Since(began)/(50*time.Millisecond))
	if n := p.Connections() - connected; n == 0 || n > most {
		t.Errorf("%d connections were made when the address moved, want from 1 to %d", n, most)
	}
	checkExpiry(t, old, next)
}

// swapRoles promotes the replica and demotes the primary without losing a write.
func swapRoles(t *testing.T, old, next *redistest.Server) {
	t.Helper()
	waitFor(t, "the replica is ready", func() bool {
		_, err := old.Command("FAILOVER", "TO", "127.0.0.1", strconv.Itoa(next.Port))
		return err == nil
	})
	waitFor(t, "the roles are swapped", func() bool { return infoField(t, old, "role") == "slave" && infoField(t, next, "role") == "master" })
}

// The same with sentinels that know both primaries by one address.
func TestSentinelFollowsMovedAddress(t *testing.T) {
	t.Parallel()
	old, next := startServer(t), startServer(t)
	mustCommand(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	load := startLoad(t, openURL(t, redistest.StartSentinel(t, p.Addr), longTimeout))
	load.waitAnswers(t, 300)
	p.Redirect(next.Addr)
	swapRoles(t, old, next)
	load.waitAnswers(t, 1000)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	if infoCounter(t, "errorstat_READONLY", old) == 0 || infoCounter(t, "cmdstat_evalsha", next) == 0 {
		t.Error("the address has not moved")
	}
}

// A server that stays a replica is reconnected to, but not once for every rejected
// call.
func TestStoreReplicaLimitsReconnects(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	load := startLoad(t, openURL(t, "redis://"+p.Addr, shortTimeout))
	load.waitAnswers(t, 300)
	makeReplica(t, server)
	waitFor(t, "calls fail", func() bool { return load.failed.Load() > 0 })
	began, connected, refused := time.Now(), p.Connections(), infoCounter(t, "errorstat_READONLY", server)
	var connections, refusals int
	waitFor(t, "the store reconnects twice, and many more calls are refused", func() bool {
		connections, refusals = p.Connections()-connected, infoCounter(t, "errorstat_READONLY", server)-refused
		return connections >= 2 && refusals > 300+connections
	})
	took := time.Since(began)
	if most := 4 + 4*int(took/(100*time.Millisecond)); connections > most {
		t.Errorf("%d connections were made in %v for %d refusals, want at most %d", connections, took, refusals, most)
	}
	mustCommand(t, server, "REPLICAOF", "NO", "ONE")
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.check(t, 0, burst)
	checkExpiry(t, server)
}
