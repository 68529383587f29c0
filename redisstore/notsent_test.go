package redisstore_test

import (
	"context"
	"errors"
	"io"
	"net"
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
		killClients(t, server)
		<-time.After(2 * time.Millisecond) // connections are checked after one millisecond without a command
	}
}

// killClients has the server close all connections, and returns when this machine knows
// that it has. The server closes a connection of its own last, because it is the newest.
func killClients(t *testing.T, server *redistest.Server) {
	t.Helper()
	newest, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = newest.Close() }()
	if _, err := io.WriteString(newest, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(newest, make([]byte, len("+PONG\r\n"))); err != nil {
		t.Fatal(err)
	}
	mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	if n, err := newest.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Fatalf("read %d bytes, %v from a connection that the server has closed", n, err)
	}
}

// A connection that the store has replaced is cut, with a call in flight that was
// executed. The call must not be repeated on the new one.
func TestStoreLostReplyWhileReconnectingChargesOnce(t *testing.T) {
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, longTimeout)
	p.Delay(20 * time.Millisecond)
	takeConcurrently(t, store, 64, 1, ownLimit) // makes the client pipeline calls on all its connections
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	p.Delay(time.Hour)
	failed := make(chan error, 1)
	go func() {
		_, err := store.Take(context.Background(), takeOne)
		failed <- err
	}()
	waitFor(t, "the call is executed", func() bool { return infoCounter(t, "cmdstat_evalsha", server) == 1 })
	p.Freeze()
	p.Thaw() // new connections work, the old ones do not
	p.Delay(0)
	store.Reconnect()
	waitFor(t, "the old session waits for its call", func() bool { return goroutineIn("redisstore.(*reconnector).retire(") })
	p.CutAll()
	if err := <-failed; !errors.Is(err, penstock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call whose reply was lost: got error %v, want %v at once", err, penstock.ErrUnavailable)
	}
	if n := infoCounter(t, "cmdstat_evalsha", server); n != 1 {
		t.Errorf("the script ran %d times, want once", n)
	}
}

// ownLimit gives each caller its own limit, so that calls are not batched.
func ownLimit(caller int) penstock.Request {
	return penstock.Request{Key: "k", Limit: penstock.PerHour(int64(burst + caller)), Cost: 1}
}
