package redisstore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A server closes idle connections when it is restarted, or by its timeout setting. A
// call without an ID on such a connection is known not to have been sent, so it is
// repeated on a new one, and charged once.
func TestStoreRepeatsCallOnConnectionClosedWhileIdle(t *testing.T) {
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	l := slowLimits[0]
	for i := range 5 {
		d, err := store.Take(t.Context(), penstock.Request{Key: "idle", Limit: l, Cost: 1})
		if err != nil || d.Remaining != int64(burst-1-i) {
			t.Fatalf("take %d: got %+v, %v, want %d remaining", i, d, err, burst-1-i)
		}
		old := clientIDs(t, server)
		mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		redistest.WaitFor(t, "the store's connections are closed", func() bool {
			return !slices.ContainsFunc(clientIDs(t, server), func(id string) bool { return slices.Contains(old, id) })
		})
		<-time.After(2 * time.Millisecond) // connections are checked after one millisecond without a command
	}
}

// clientIDs returns the IDs of the connections that the server has, except the one
// that asks.
func clientIDs(t *testing.T, server *redistest.Server) (ids []string) {
	t.Helper()
	for line := range strings.Lines(mustCommand(t, server, "CLIENT", "LIST")) {
		if id, rest, ok := strings.Cut(line, " "); ok && !strings.Contains(rest, "cmd=client|list") {
			ids = append(ids, id)
		}
	}
	return ids
}
