package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A store that may be away is there before its server: calls fail at once, and pass
// when there is somebody to ask.
func TestOpenAllowUnavailableRecovers(t *testing.T) {
	server := serve(t)
	server.Kill()
	url := "redis://" + server.Addr
	if _, err := redisstore.Open(t.Context(), url, nil); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a store that must be there: %v", err)
	}
	store, err := redisstore.Open(t.Context(), url, &redisstore.Options{Timeout: time.Minute, AllowUnavailable: true})
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
	if time.Since(began) > 30*time.Second {
		t.Error("it waited for the server, and did not fail at once")
	}
	if _, err := store.RunIDs(t.Context()); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("runs of nobody: %v", err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the server decides", func() bool {
		_, err := store.Take(t.Context(), take)
		return err == nil
	})
	if runs, err := store.RunIDs(t.Context()); err != nil || runs[server.Addr] == "" {
		t.Errorf("runs: %v, %v", runs, err)
	}
}

// Whoever asks in the moment between connecting and going over to the new connections
// finds nobody yet, but is told so.
func TestOpenAllowUnavailableCallWhileConnecting(t *testing.T) {
	server := serve(t)
	server.Kill()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{AllowUnavailable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the server is met", func() bool { return store.Connect(t.Context()) == nil })
	_, err = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("got %v, want that it is not connected", err)
	}
}

// The servers are looked at when they are there, as they would have been at first.
func TestOpenAllowUnavailableInspectsLater(t *testing.T) {
	server := serve(t, "--maxmemory-policy", "allkeys-lru")
	server.Kill()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{AllowUnavailable: true})
	if err != nil || len(store.Warnings()) != 0 {
		t.Fatalf("%v, %v", store, err)
	}
	defer store.Close()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "a warning of a server that evicts", func() bool {
		_, _ = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(10)})
		return len(store.Warnings()) > 0
	})
}

// What will not pass by itself is an error, and so is everything for those who did not
// say that the server may be away.
func TestOpenAllowUnavailableRejectsMistakes(t *testing.T) {
	server := serve(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for url, want := range map[string]string{
		"redis://nobody:wrong@" + server.Addr: "WRONGPASS",
		"redis://" + server.Addr + "/99":      "out of range",
		"redis://" + server.Addr + "?x=y":     `"x"`,
		"redis://" + silent.Addr().String():   "",
		"redis://nowhere.invalid":             "",
	} {
		store, err := redisstore.Open(ctx, url, &redisstore.Options{AllowUnavailable: true})
		if err == nil {
			store.Close()
		}
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", url, err, want)
		}
	}
}

// Closed before it was ever connected, a store leaves nothing behind.
func TestOpenAllowUnavailableClose(t *testing.T) {
	server := serve(t)
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
