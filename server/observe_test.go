package server_test

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/observe"
)

// observed returns the response of an endpoint of the admin API.
func observed[T any](t *testing.T, d *daemon, target string) (v T) {
	t.Helper()
	status, body := get(t, "http://"+d.addr("admin")+target)
	if err := json.Unmarshal([]byte(body), &v); status != 200 || err != nil {
		t.Fatalf("%s: %d %s: %v", target, status, body, err)
	}
	return v
}

// calls returns how many calls with decisions each listener had.
func calls(l observe.Live) string {
	var names []string
	for _, l := range l.Listeners {
		names = append(names, fmt.Sprint(l.Name, l.Calls))
	}
	return strings.Join(names, " ")
}

// What the admin API shows equals the metrics, whatever the store.
func TestServerLiveAgreesWithMetrics(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		for range 7 {
			post(t, d.addr("http"), `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`)
		}
		post(t, d.addr("http"), `{"key":"k","limit":"5/1h"}`)
		throttle(t, d, "k 5 5 3600")
		d.await("history", func() bool { return observed[observe.Live](t, d, "/v1/live").Counts.Decisions() == 9 })
		d.await("latencies", func() bool { return calls(observed[observe.Live](t, d, "/v1/live")) == "grpc0 http8 resp1 admin0" })
		live := observed[observe.Live](t, d, "/v1/live?window=1h&sort=denied")
		if want := (observe.Counts{Allowed: 7, Denied: 2}); live.Totals != want || live.Counts != want {
			t.Errorf("totals %+v, counts %+v, want %+v", live.Totals, live.Counts, want)
		}
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		for _, r := range live.Rules {
			line := fmt.Sprintf(`penstock_decisions_total{mode="enforce",outcome="denied",rule=%q} %d`, r.Name, r.Totals.Denied)
			if !strings.Contains(metrics, line) {
				t.Errorf("the metrics have no %s", line)
			}
		}
		if live.Store.Degraded || (live.Store.Kind == "memory") != (live.Store.Memory != nil) || live.Store.Kind == "redis" && len(live.Store.Shards) != 1 {
			t.Errorf("store %+v", live.Store)
		}
		top := observed[observe.Top](t, d, "/v1/top?by=denied")
		if len(top.Keys) != 1 || top.Keys[0].Key != "user=42" || top.Keys[0].Rule != "shop/user" || top.Keys[0].Count != 2 {
			t.Errorf("denied: %+v", top.Keys)
		}
		none := ""
		if top = observed[observe.Top](t, d, "/v1/top?rule="+none); len(top.Keys) != 2 || top.Keys[0].Limit == "" {
			t.Errorf("of limits in requests: %+v", top.Keys)
		}
	})
}

// A mistake in the rules keeps a server from starting, but costs no history.
func TestServerThatFailsToStartKeepsHistory(t *testing.T) {
	settings := map[string]string{"data": t.TempDir(), "rules": writeRules(t, shopRules)}
	d := start(t, settings)
	post(t, d.addr("http"), `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`)
	d.end()

	wrong := load(t, map[string]string{"data": settings["data"], "rules": writeRules(t, "domain: shop\ndescriptors: [{kee: user}]")})
	if _, err := server.New(t.Context(), wrong, nil); err == nil {
		t.Fatal("a server with wrong rules has started")
	}
	d = start(t, settings)
	d.await("history", func() bool {
		for _, r := range observed[observe.Live](t, d, "/v1/live?window=1d").Rules {
			if r.Name == "shop/user" && len(r.Decisions) > 0 { // empty until the first second is over
				if r.Counts.Allowed != 1 {
					t.Errorf("the history has %+v, want one allowed request", r.Counts)
				}
				return true
			}
		}
		return false
	})
}

// A snapshot of another version is not called damaged.
func TestServerNamesTheVersionOfAnOldSnapshot(t *testing.T) {
	settings := map[string]string{"data": t.TempDir()}
	d := start(t, settings)
	post(t, d.addr("http"), `{"key":"k","limit":"5/1h"}`)
	d.end()

	name := filepath.Join(settings["data"], "memory.snapshot")
	saved, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const header, end = 8, 56 // the version comes first, and a checksum follows
	saved[header] = 1
	binary.LittleEndian.PutUint32(saved[end:], crc32.ChecksumIEEE(saved[header:end]))
	if err := os.WriteFile(name, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	d = start(t, settings)
	if !d.log.has(`level=WARN msg="snapshot is of another version, counters start empty"`) || !d.log.has("of another version: 1, and this reads ") || d.log.has("is damaged") {
		t.Error("the log does not say so")
	}
	if aside, err := filepath.Glob(name + ".other-version-*"); err != nil || len(aside) != 1 {
		t.Errorf("set aside as %q, %v", aside, err)
	}
}

func TestServerWithoutTopKeysKeepsNoKeys(t *testing.T) {
	d := start(t, map[string]string{"top-keys": "0"})
	post(t, d.addr("http"), `{"key":"secret","limit":"5/1h"}`)
	if top := observed[observe.Top](t, d, "/v1/top"); top.Enabled || len(top.Keys) != 0 {
		t.Errorf("got %+v, want none", top)
	}
}

// Three daemons on one Redis answer for each other, and one that ends is gone.
func TestServersOnOneRedisAnswerForAll(t *testing.T) {
	prefix := rand.Text()
	var all []*daemon
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, start(t, map[string]string{
			"store": "redis://" + redis.Addr, "redis-prefix": prefix, "redis-timeout": "10s", "name": name, "rules": writeRules(t, shopRules),
		}))
	}
	for i, d := range all {
		for range 2 + i {
			post(t, d.addr("http"), `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`)
		}
	}
	want := observe.Counts{Allowed: 5, Denied: 4}
	for _, d := range all {
		awaitSlowly(d, "all counted", func() bool {
			live := observed[observe.Live](t, d, "/v1/live?scope=all&window=1d")
			return len(live.Daemons) == 3 && live.Totals == want && live.Counts == want
		})
	}
	for _, d := range all {
		awaitSlowly(d, "the keys of all", func() bool {
			for i, asked := range all { // again, because a list is of the last two minutes
				post(t, asked.addr("http"), fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"of-%d"}]}]}`, i))
			}
			listed := map[string]bool{}
			for _, k := range observed[observe.Top](t, d, "/v1/top?scope=all&by=asked").Keys {
				listed[k.Key] = true
			}
			return listed["user=of-0"] && listed["user=of-1"] && listed["user=of-2"]
		})
	}
	all[2].end()
	awaitSlowly(all[0], "c is gone", func() bool { // or missing, if the board took too long to remove it
		ds := observed[observe.Top](t, all[0], "/v1/top?scope=all").Daemons
		listed := func(name string) bool {
			return slices.ContainsFunc(ds, func(d observe.Daemon) bool { return d.Name == name && !d.Missing })
		}
		return listed("b") && !listed("c")
	})
}

// awaitSlowly is for what changes every ten seconds.
func awaitSlowly(d *daemon, what string, holds func() bool) {
	d.t.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	d.await(what, func() bool {
		if holds() {
			return true
		}
		<-tick.C
		return false
	})
}
