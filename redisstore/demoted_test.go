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

func TestServerThatWasDemotedForAMomentIsNoError(t *testing.T) {
	for _, c := range []struct{ stale, word string }{{"yes", "READONLY"}, {"no", "MASTERDOWN"}} {
		t.Run(c.word, func(t *testing.T) {
			server := launch(t, redistest.Options{Args: []string{"--replica-serve-stale-data", c.stale}})
			nobody := strconv.Itoa(freePort(t))
			crowd := gather(t, openURL(t, "redis://"+server.Addr, generous))
			for range 5 {
				crowd.answered(t, 300)
				before := stat(t, "errorstat_"+c.word, server)
				tell(t, server, "REPLICAOF", "127.0.0.1", nobody)
				await(t, "callers meet a replica", func() bool { return stat(t, "errorstat_"+c.word, server) > before })
				tell(t, server, "REPLICAOF", "NO", "ONE")
			}
			crowd.disperse(t)
			crowd.judgeCalm(t)
			mortal(t, server)
		})
	}
}

func TestReplicaIsAnErrorWithItsName(t *testing.T) {
	server := launch(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, 50*time.Millisecond)
	tell(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	_, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1})
	if err == nil || !strings.Contains(err.Error(), "READONLY") || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("a server that stays a replica: got %v, want READONLY and %s", err, server.Addr)
	}
}

// Who is refused, and then not answered any more, is told of both.
func TestTimeoutAfterARefusalTellsOfBoth(t *testing.T) {
	server := launch(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, 500*time.Millisecond)
	take(t, store, anyRequest)
	tell(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	ended := make(chan error)
	go func() {
		_, err := store.Take(context.Background(), anyRequest)
		ended <- err
	}()
	await(t, "the call is refused", func() bool { return stat(t, "errorstat_READONLY", server) > 0 })
	pause(t, server)
	err := <-ended
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "no answer within") || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("got %v, want no answer after READONLY", err)
	}
}

// A name, or a virtual address, moves to a new primary. The old one is a replica
// now, and keeps its connections: who stays on them is refused for ever.
func TestAddressThatMovesToAnotherPrimaryIsNoError(t *testing.T) {
	old, next := launch(t, redistest.Options{}), launch(t, redistest.Options{})
	tell(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	crowd := gather(t, openURL(t, "redis://"+p.Addr, generous))
	crowd.answered(t, 300)
	connected := p.Connections()

	p.Redirect(next.Addr)
	changePlaces(t, old, next)
	crowd.answered(t, 1000)
	crowd.disperse(t)
	crowd.judgeCalm(t)
	if stat(t, "errorstat_READONLY", old) == 0 || stat(t, "cmdstat_evalsha", next) == 0 {
		t.Errorf("%d calls met the old primary, and %d the next: nothing has moved",
			stat(t, "errorstat_READONLY", old), stat(t, "cmdstat_evalsha", next))
	}
	if n := p.Connections() - connected; n == 0 || n > 20 {
		t.Errorf("%d connections were made when the address moved, want some and not many", n)
	}
	mortal(t, old, next)
}

// changePlaces makes a replica the primary, and the primary its replica, and loses
// nothing.
func changePlaces(t *testing.T, old, next *redistest.Server) {
	t.Helper()
	await(t, "the replica is ready", func() bool {
		_, err := old.Command("FAILOVER", "TO", "127.0.0.1", strconv.Itoa(next.Port))
		return err == nil
	})
	await(t, "they have changed places", func() bool { return field(t, old, "role") == "slave" && field(t, next, "role") == "master" })
}

// The same among sentinels, to which the old primary and the next have one name.
func TestSentinelsThatNameAnAddressWhichMovesAreNoError(t *testing.T) {
	old, next := launch(t, redistest.Options{}), launch(t, redistest.Options{})
	tell(t, next, "REPLICAOF", "127.0.0.1", strconv.Itoa(old.Port))
	p := startProxy(t, old.Addr)
	crowd := gather(t, openURL(t, redistest.StartSentinel(t, p.Addr), generous))
	crowd.answered(t, 300)
	p.Redirect(next.Addr)
	changePlaces(t, old, next)
	crowd.answered(t, 1000)
	crowd.disperse(t)
	crowd.judgeCalm(t)
	if stat(t, "errorstat_READONLY", old) == 0 || stat(t, "cmdstat_evalsha", next) == 0 {
		t.Error("nothing has moved")
	}
}

// A server that stays a replica is connected to again and again, but not by every
// call that it refuses.
func TestServerThatStaysAReplicaIsNotStormed(t *testing.T) {
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	crowd := gather(t, openURL(t, "redis://"+p.Addr, 50*time.Millisecond))
	crowd.answered(t, 300)
	tell(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
	await(t, "callers meet a replica", func() bool { return crowd.failed.Load() > 0 })
	began, connected, refused := time.Now(), p.Connections(), stat(t, "errorstat_READONLY", server)
	await(t, "the store tries another connection twice", func() bool { return p.Connections() >= connected+2 })
	crowd.goOn(t, 300)
	connections, refusals, took := p.Connections()-connected, stat(t, "errorstat_READONLY", server)-refused, time.Since(began)
	if most := 4 + 4*int(took/(100*time.Millisecond)); connections > most || refusals < 10*connections {
		t.Errorf("%d connections were made in %v for %d refusals, want at most %d", connections, took, refusals, most)
	}
	tell(t, server, "REPLICAOF", "NO", "ONE")
	crowd.answered(t, 300)
	crowd.disperse(t)
	crowd.judge(t, 0, burst)
	mortal(t, server)
}
