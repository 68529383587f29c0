package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/storetest"
)

// startRented starts a proxy in front of two servers.
func startRented(t *testing.T, preset redisproxy.Preset) (*redisproxy.Proxy, []*redistest.Server) {
	t.Helper()
	servers := []*redistest.Server{startServer(t), startServer(t)}
	return redisproxy.Start(t, preset, servers...), servers
}

// Behind each proxy, whether it says so or not, every call is decided by the states that all other calls see.
func TestStoreIsExactBehindProxies(t *testing.T) {
	t.Parallel()
	for _, preset := range redisproxy.Presets {
		t.Run(preset.Name, func(t *testing.T) {
			t.Parallel()
			p, servers := startRented(t, preset)
			store := openURL(t, p.URL(), longTimeout)
			checkExact(t, store)
			for _, server := range servers {
				redistest.CheckExpiry(t, server)
			}
		})
	}
}

// checkExact takes from each of 20 keys, in a short run 5, by 32 callers, in every way, and wants the limit granted,
// not more.
func checkExact(t *testing.T, store *redisstore.Store) {
	t.Helper()
	const callers, limit = 32, 10
	keys := 20
	if testing.Short() && !*allProxies {
		keys = 5
	}
	for name, take := range map[string]func(context.Context, []penstock.Request, []penstock.Decision) error{
		"Take": func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (err error) {
			for i := range rs {
				if ds[i], err = store.Take(ctx, rs[i]); err != nil {
					return err
				}
			}
			return nil
		},
		"TakeEach": store.TakeEach,
		"TakeAll":  store.TakeAll,
	} {
		for _, id := range []bool{false, true} {
			granted := make([]atomic.Int64, keys)
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() {
					for i := range keys {
						pair := []int{i, (i + 7) % keys}
						rs, ds := make([]penstock.Request, 2), make([]penstock.Decision, 2)
						for j, key := range pair {
							rs[j] = penstock.Request{Key: fmt.Sprint(name, id, key), Limit: penstock.PerHour(limit), Cost: 1}
							if id {
								rs[j].ID = fmt.Sprint(caller, i)
							}
						}
						if err := take(t.Context(), rs, ds); err != nil {
							t.Errorf("%s, IDs %v: %v", name, id, err)
							return
						}
						if name == "TakeAll" && ds[0].Allowed != ds[1].Allowed && (ds[0].Granted > 0 || ds[1].Granted > 0) {
							t.Errorf("TakeAll, IDs %v: got %+v, want all or nothing", id, ds)
						}
						for j, key := range pair {
							granted[key].Add(ds[j].Granted)
						}
					}
				})
			}
			wg.Wait()
			for key := range granted {
				if n := granted[key].Load(); n > limit || n < limit && name != "TakeAll" {
					t.Errorf("%s, IDs %v: %d of %d granted on key %d", name, id, n, limit, key)
				}
			}
		}
	}
}

var (
	allProxies = flag.Bool("redisstore.proxies", false, "test conformance behind every proxy that is emulated, not only the hardest")
	twemproxy  = flag.String("redisstore.twemproxy", "", "program of a real twemproxy to test behind")
)

// proxies returns how to start proxies to test conformance behind: one that does not look at keys, one that reads scripts, and
// one that knows no hash tags and closes the connection on what it does not know.
func proxies() map[string]func(*testing.T, ...*redistest.Server) (url string) {
	presets := []redisproxy.Preset{redisproxy.EnvoyRing, redisproxy.Alibaba6, redisproxy.Twemproxy}
	if *allProxies {
		presets = redisproxy.Presets
	}
	list := map[string]func(*testing.T, ...*redistest.Server) string{}
	for _, preset := range presets {
		list[preset.Name] = func(t *testing.T, servers ...*redistest.Server) string {
			return redisproxy.Start(t, preset, servers...).URL()
		}
	}
	for name, tags := range map[string]bool{"real twemproxy": false, "real twemproxy with hash tags": true} {
		if *twemproxy != "" {
			list[name] = func(t *testing.T, servers ...*redistest.Server) string {
				return redisproxy.StartTwemproxy(t, *twemproxy, tags, servers...)
			}
		}
	}
	return list
}

// The same transcripts as on one server, though keys are on two.
func TestStoreConformanceBehindProxies(t *testing.T) {
	t.Parallel()
	for name, start := range proxies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := redistest.Options{FakeClock: true}
			servers := []*redistest.Server{redistest.StartForTest(t, fake), redistest.StartForTest(t, fake)}
			store := openURL(t, start(t, servers...), longTimeout)
			runAgain(t, storetest.RunSequential, openShared(store, servers...))
			if *twemproxy != "" { // the others are tested by TestStoreIsExactBehindProxies
				checkExact(t, store)
			}
			for _, server := range servers {
				if infoField(t, server, "db0") == "" {
					t.Errorf("%s has no keys: the proxy has not used it", server.Addr)
				}
			}
			checkExpiry(t, servers...)
		})
	}
}

// What the store finds out about keys that share a script; and it leaves no keys behind where they do.
func TestOpenFindsOutWhichKeysShareScripts(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, c := range []struct {
		preset      redisproxy.Preset
		servers     int
		slots, slot bool
	}{
		{redisproxy.FirstKey, 1, true, true},
		{redisproxy.Twemproxy, 1, true, true},
		{redisproxy.FirstKey, 2, false, true},
		{redisproxy.CrossSlot, 1, false, true},
		{redisproxy.Alibaba, 2, false, true},
		{redisproxy.Twemproxy, 2, false, false},
	} {
		servers := []*redistest.Server{server, startServer(t)}[:c.servers]
		store := openURL(t, redisproxy.Start(t, c.preset, servers...).URL(), longTimeout)
		if slots, slot := store.SharesScripts(); slots != c.slots || slot != c.slot {
			t.Errorf("%s, %d servers: different slots %v, one slot %v, want %v, %v", c.preset.Name, c.servers, slots, slot, c.slots, c.slot)
		}
		if n := mustCommand(t, server, "DBSIZE"); c.slots && n != "0" {
			t.Errorf("%s, %d servers: %s keys after Open, want none", c.preset.Name, c.servers, n)
		}
		mustCommand(t, server, "FLUSHALL")
	}
}

// Also by the hash of twemproxy, in which the end of a text changes only the last bits, a probe has keys everywhere.
func TestProbeKeysAreFarApart(t *testing.T) {
	t.Parallel()
	fnv1a := func(text string) (hash uint32) {
		hash = 0x84222325
		for _, c := range []byte(text) {
			hash = (hash ^ uint32(c)) * 0x1b3
		}
		return hash
	}
	for range 100 {
		parts := map[uint32]bool{}
		for _, key := range redisstore.ProbeKeys() {
			tag := key[strings.Index(key, "{")+1 : len(key)-1]
			parts[fnv1a(tag)>>28] = true
		}
		if len(parts) < 9 { // 64 random keys are in eight parts of sixteen once in 10^15 probes
			t.Fatalf("the keys are in %d of 16 parts of the hashes", len(parts))
		}
	}
}

// Behind a proxy that loads no scripts, the first calls bring them. Those on one key are executed in their order all
// the same.
func TestFirstCallsOnOneKeyKeepTheirOrder(t *testing.T) {
	t.Parallel()
	of := func(key string, cost int64, id string) penstock.Request {
		return penstock.Request{Key: key, Limit: penstock.PerHour(10), Cost: cost, ID: id}
	}
	for name, c := range map[string]struct {
		take func(*redisstore.Store, context.Context, []penstock.Request, []penstock.Decision) error
		rs   []penstock.Request
	}{
		"TakeEach": {(*redisstore.Store).TakeEach, []penstock.Request{of("k", 4, "x"), of("k", 0, "")}},
		"TakeAll":  {(*redisstore.Store).TakeAll, []penstock.Request{of("k", 4, ""), of("k", 0, ""), of("other", 0, "")}},
	} {
		p, _ := startRented(t, redisproxy.Twemproxy)
		store, ds := openURL(t, p.URL(), longTimeout), make([]penstock.Decision, len(c.rs))
		take(t, store, of("k", 0, "")) // brings the script of the second request, but not that of the first
		if err := c.take(store, t.Context(), c.rs, ds); err != nil || ds[0].Remaining != 6 || ds[1].Remaining != 6 {
			t.Errorf("%s: got %+v, %v, want that 6 remain after the first request", name, ds, err)
		}
	}
}

// A proxy that comes back is accepted with every handshake.
func TestStoreReconnectsToProxies(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, preset := range redisproxy.Presets {
		t.Run(preset.Name, func(t *testing.T) {
			t.Parallel()
			p := redisproxy.Start(t, preset, server)
			store := openURL(t, p.URL(), longTimeout)
			for range 2 {
				p.Stop()
				if _, err := store.Take(shortContext(t), penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1}); err == nil {
					t.Error("a take succeeded while the proxy was down")
				}
				p.Resume(t)
				waitFor(t, "the store decides again", func() bool {
					_, err := store.Take(shortContext(t), penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
					return err == nil
				})
			}
		})
	}
}

func shortContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A server more behind a proxy: one that refuses keys of several slots since is obeyed at once, in the refused call
// itself; one that says nothing is found out by the next probe, or when it is connected to again.
func TestStoreNoticesServerAddedBehindProxy(t *testing.T) {
	t.Parallel()
	for name, add := range map[string]func(*redisproxy.Proxy, *redisstore.Store, ...*redistest.Server){
		"refuses": func(p *redisproxy.Proxy, _ *redisstore.Store, servers ...*redistest.Server) {
			p.Use(servers...)
			p.Behave(redisproxy.CrossSlot)
		},
		"says nothing": func(p *redisproxy.Proxy, s *redisstore.Store, servers ...*redistest.Server) {
			p.Use(servers...)
			s.ProbeNow()
			noticed(t, s)
		},
		"restarts": func(p *redisproxy.Proxy, s *redisstore.Store, servers ...*redistest.Server) {
			p.Stop()
			p.Use(servers...)
			p.Resume(t)
			noticed(t, s)
		},
	} {
		for _, all := range []bool{true, false} {
			servers := []*redistest.Server{startServer(t), startServer(t)}
			p := redisproxy.Start(t, redisproxy.FirstKey, servers[0])
			store := openURL(t, p.URL(), longTimeout)
			rs, ds := requestsFor(penstock.PerHour(10), 1, "a", "b", "c"), make([]penstock.Decision, 3)
			take := store.TakeEach
			if all {
				take = store.TakeAll
			}
			if err := take(t.Context(), rs, ds); err != nil || !allAllowed(ds) {
				t.Fatalf("%s: got %+v, %v", name, ds, err)
			}
			add(p, store, servers...)
			if err := take(t.Context(), rs, ds); err != nil || !allAllowed(ds) {
				t.Errorf("%s, all %v: got %+v, %v, want that all are allowed", name, all, ds, err)
			}
			if n, last := store.Refusals(); n != 0 || last != nil {
				t.Errorf("%s, all %v: %d refusals, %v, want none: the call was decided", name, all, n, last)
			}
			if slots, _ := store.SharesScripts(); slots {
				t.Errorf("%s, all %v: keys of different slots still share scripts", name, all)
			}
		}
	}
}

// noticed waits until keys of different slots share no scripts.
func noticed(t *testing.T, store *redisstore.Store) {
	t.Helper()
	waitFor(t, "the store has noticed", func() bool {
		_, _ = store.Take(shortContext(t), penstock.Request{Key: "other", Limit: penstock.PerHour(10), Cost: 1})
		slots, slot := store.SharesScripts()
		return !slots && slot
	})
}

// A server that is too slow for its callers loses connections all the time. It is not probed as often.
func TestStoreProbesSeldomWhileConnectionsAreLost(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	began := time.Now()
	for range 200 {
		store.ForgetSpread()
		take(t, store, penstock.Request{Key: "k", Limit: penstock.PerHour(1000), Cost: 1})
	}
	const calls = 1 + 1 + 1 + 64 // of a probe
	most := (2 + int(time.Since(began)/redisstore.MinProbeGap)) * calls
	if n := infoCounter(t, "cmdstat_evalsha", server) - 200; n > most {
		t.Errorf("%d calls of probes in %v, want at most %d", n, time.Since(began), most)
	}
	waitFor(t, "keys share scripts again", func() bool {
		take(t, store, penstock.Request{Key: "k", Limit: penstock.PerHour(1000), Cost: 1})
		slots, _ := store.SharesScripts()
		return slots
	})
}
