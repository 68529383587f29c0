package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// Calls fail at once while the server is down and succeed when it is up.
func TestOpenAllowUnavailableRecovers(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	server.Kill()
	url := "redis://" + server.Addr
	if _, err := redisstore.Open(t.Context(), url, nil); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("without AllowUnavailable: %v", err)
	}
	store, err := redisstore.Open(t.Context(), url, &redisstore.Options{Timeout: time.Hour, AllowUnavailable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	take := penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1}
	began := time.Now()
	_, err = store.Take(t.Context(), take)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "not connected: connect to "+server.Addr) {
		t.Errorf("without a server: %v, want that it is not connected", err)
	}
	if time.Since(began) > 30*time.Minute {
		t.Error("the call waited for the server instead of failing at once")
	}
	if _, err := store.RunIDs(t.Context()); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("RunIDs without a server: %v", err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server decides", func() bool {
		_, err := store.Take(t.Context(), take)
		return err == nil
	})
	if runs, err := store.RunIDs(t.Context()); err != nil || runs[server.Addr] == "" {
		t.Errorf("runs: %v, %v", runs, err)
	}
}

// A call made after the connection is up but before the store switches to it still
// reports that the store is not connected.
func TestOpenAllowUnavailableCallWhileConnecting(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	server.Kill()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{AllowUnavailable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server is reached", func() bool { return store.Connect(t.Context()) == nil })
	_, err = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("got %v, want that it is not connected", err)
	}
}

// The server is inspected when it is first reached.
func TestOpenAllowUnavailableInspectsLater(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory-policy", "allkeys-lru")
	server.Kill()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{AllowUnavailable: true})
	if err != nil || len(store.Warnings()) != 0 {
		t.Fatalf("%v, %v", store, err)
	}
	defer store.Close()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a warning about eviction", func() bool {
		_, _ = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)})
		return len(store.Warnings()) > 0
	})
}

// Mistakes that will not go away are errors; a server that is down is none.
func TestOpenAllowUnavailableRejectsMistakes(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	const short = 300 * time.Millisecond
	for _, c := range []struct {
		url     string
		timeout time.Duration
		want    string
	}{
		{"redis://unknown:wrong@" + server.Addr, longTimeout, "WRONGPASS"},
		{"redis://" + server.Addr + "/99", longTimeout, "out of range"},
		{"redis://" + server.Addr + "?x=y", longTimeout, `"x"`},
		{"redis://" + silent.Addr().String(), short, ""},
		{"redis://nowhere.invalid", short, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
		o := redisstore.Options{AllowUnavailable: true}.WithConnTimeout(longConnTimeout) // a timeout is no mistake
		store, err := redisstore.Open(ctx, c.url, &o)
		cancel()
		if err == nil {
			store.Close()
		}
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.url, err, c.want)
		}
	}
}

// A store that was never connected can be closed.
func TestOpenAllowUnavailableClosesUnconnected(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	server.Kill()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{AllowUnavailable: true})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)})
	store.Close()
	store.Close()
	if _, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
}
