package redisstore_test

import (
	"context"
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

// fakeClockServer is a server whose clock the tests hold, and live is one on the machine's
// own clock. Tests share them, under prefixes of their own.
var fakeClockServer, liveServer *redistest.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, s := range []struct {
		server **redistest.Server
		held   bool
	}{{&fakeClockServer, true}, {&liveServer, false}} {
		server, err := redistest.Start(redistest.Options{FakeClock: s.held})
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

// checkKeysExpire returns an error if a key would stay for ever.
func checkKeysExpire(server *redistest.Server) error {
	immortal, err := server.Command("EVAL", `
		local names = {}
		for _, name in ipairs(redis.call('KEYS', '*')) do
			if redis.call('PTTL', name) == -1 and string.sub(name, 1, 7) ~= 'foreign' then names[#names + 1] = name end
		end
		return names`, "0")
	if err != nil {
		return err
	}
	if immortal != "" {
		return fmt.Errorf("keys without expiry, of which there must be none:\n%s", immortal)
	}
	return nil
}

var prefixes atomic.Int64

// newPrefix returns one that no other test uses.
func newPrefix() string { return fmt.Sprintf("t%d-", prefixes.Add(1)) }

// open opens a store on a server, under a prefix of its own.
func open(t testing.TB, server *redistest.Server, o redisstore.Options) *redisstore.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = newPrefix()
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second // a busy machine is no failure here
	}
	s, err := redisstore.Open(context.Background(), "unix://"+server.Socket, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// openShared returns how storetest opens stores that go by the clocks of servers. It
// opens thousands, so that they share the connections of one.
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
		s, err := one.Share(redisstore.Options{Prefix: newPrefix(), Timeout: generous})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// keys returns the names of the keys under a prefix.
func keys(t *testing.T, server *redistest.Server, prefix string) []string {
	t.Helper()
	list, err := server.Command("KEYS", prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(list)
}

// take asks for a decision that there must be.
func take(t *testing.T, store penstock.Store, r penstock.Request) penstock.Decision {
	t.Helper()
	d, err := store.Take(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
