package redisstore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A call that finds no script costs a second round trip, which the first call of a busy
// program may not have the time for.
func TestOpenLoadsScripts(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	checkScriptsLoaded(t, server)
	for _, l := range everyAlgorithm {
		take(t, store, penstock.Request{Key: "k", Limit: l, Cost: 1})
		take(t, store, penstock.Request{Key: "k", Limit: l, Cost: 1, ID: "x"})
		takeAll(t, store, l, 1, "a", "b")
		_, errs := store.TakeBatched([]penstock.Request{{Key: "b", Limit: l, Cost: 1}, {Key: "c", Limit: l, Cost: 1}})
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			t.Error(errs[i])
		}
	}
	if n := infoCounter(t, "errorstat_NOSCRIPT", server); n != 0 {
		t.Errorf("%d NOSCRIPT errors after Open, want none", n)
	}
}

func TestOpenLoadsScriptsOnSentinelPrimary(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	openURL(t, redistest.StartSentinel(t, server.Addr), longTimeout)
	checkScriptsLoaded(t, server)
}

// checkScriptsLoaded fails the test unless the server has every script that Open loads.
func checkScriptsLoaded(t *testing.T, server *redistest.Server) {
	t.Helper()
	reply := mustCommand(t, server, append([]string{"SCRIPT", "EXISTS"}, redisstore.CommonScripts()...)...)
	if strings.Contains(reply, "0") || !strings.Contains(reply, "1") {
		t.Errorf("%s: SCRIPT EXISTS after Open: %q, want only ones", server.Addr, reply)
	}
}

func checkClusterLoadsScripts(t *testing.T, c *cluster) {
	for _, node := range c.Nodes {
		mustCommand(t, node, "SCRIPT", "FLUSH")
	}
	openURL(t, c.URL(), longTimeout)
	for _, node := range c.Nodes[:shards] {
		checkScriptsLoaded(t, node)
	}
}
