package redisstore_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
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
		mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		time.Sleep(20 * time.Millisecond)
	}
}
