package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/storetest"
)

// Tests share two servers, each under its own prefix. Those on fakeClockServer set
// its clock and must not run in parallel.
var fakeClockServer, liveServer *redistest.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	reduceChecks()
	for _, s := range []struct {
		server    **redistest.Server
		fakeClock bool
	}{{&fakeClockServer, true}, {&liveServer, false}} {
		server, err := redistest.Start(redistest.Options{FakeClock: s.fakeClock})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer server.Stop()
		*s.server = server
	}
	code := m.Run()
	for _, server := range []*redistest.Server{fakeClockServer, liveServer} {
		if err := checkKeysExpire(server); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// reduceChecks lowers the number of random cases of storetest, because four stores
// run it here and each case takes many round trips. -rapid.checks overrides it.
func reduceChecks() {
	checks := "50"
	if testing.Short() {
		checks = "20"
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", checks)
	}
}

// checkKeysExpire returns an error if a key has no expiry.
func checkKeysExpire(server *redistest.Server) error {
	names, err := server.Command("EVAL", `
		local names = {}
		for _, name in ipairs(redis.call('KEYS', '*')) do
			if redis.call('PTTL', name) == -1 and string.sub(name, 1, 7) ~= 'foreign' then names[#names + 1] = name end
		end
		return names`, "0")
	if err != nil {
		return err
	}
	if names != "" {
		return fmt.Errorf("keys without expiry:\n%s", names)
	}
	return nil
}

var prefixes atomic.Int64

// newPrefix returns a prefix that no other test uses.
func newPrefix() string { return fmt.Sprintf("t%04d-", prefixes.Add(1)) }

// shortTimeout lets calls fail soon while a server is down, and leaves time for an answer on
// a busy machine.
const shortTimeout = 500 * time.Millisecond

// longTimeout and longConnTimeout only detect hangs: no healthy server takes as long
// to answer, however busy the machine is.
const (
	longTimeout     = time.Minute
	longConnTimeout = 30 * time.Second
)

// open opens a store on a server, by default with its own prefix and a long timeout.
func open(t testing.TB, server *redistest.Server, o redisstore.Options) *redisstore.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = newPrefix()
	}
	if o.Timeout == 0 {
		o.Timeout = longTimeout
	}
	return mustOpen(t, "unix://"+server.Socket, o.WithConnTimeout(longConnTimeout))
}

// mustOpen opens a store that the test closes. With a short timeout, Open fails if the
// server is silent for a second, as it may be on a busy machine, so it is repeated. A connection
// has a place for each of MaxCalls, which take the race detector long to make.
func mustOpen(t testing.TB, url string, o redisstore.Options) (store *redisstore.Store) {
	t.Helper()
	o.MaxCalls = cmp.Or(o.MaxCalls, 512)
	waitFor(t, "the store opens", func() (ok bool) {
		var err error
		if store, err = redisstore.Open(context.Background(), url, &o); err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatal(err)
		} else if err != nil {
			t.Log(err)
		}
		return err == nil
	})
	t.Cleanup(store.Close)
	return store
}

// openFakeClock sets the fake clock, which an earlier test may have left at any time,
// and opens a store on its server.
func openFakeClock(t *testing.T, o redisstore.Options) *redisstore.Store {
	t.Helper()
	fakeClockServer.Clock.Set(time.Date(2033, 5, 6, 7, 8, 9, 0, time.UTC))
	return open(t, fakeClockServer, o)
}

// openShared opens stores for storetest that follow the clocks of the servers. They
// share the connections of one store, because storetest opens thousands.
func openShared(one *redisstore.Store, servers ...*redistest.Server) storetest.Open {
	return func(t testing.TB, clock *storetest.Clock) penstock.Store {
		err := clock.Follow(func(now time.Time) error {
			for _, server := range servers {
				server.Clock.Set(now)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := one.Share(redisstore.Options{Prefix: newPrefix(), Timeout: longTimeout})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// keys returns the names of the keys with a prefix.
func keys(t *testing.T, server *redistest.Server, prefix string) []string {
	t.Helper()
	list, err := server.Command("KEYS", prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(list)
}

// take fails the test if the store returns an error.
func take(t *testing.T, store penstock.Store, r penstock.Request) penstock.Decision {
	t.Helper()
	d, err := store.Take(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
