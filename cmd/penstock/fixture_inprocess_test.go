package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
)

// serveInProcess runs a daemon with rules on free ports, until the test ends.
func serveInProcess(t *testing.T, store, rules string) *server.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute) // a start waits for files that are new
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	const free = "127.0.0.1:0"
	config, err := server.LoadConfig(map[string]string{
		"grpc": free, "http": free, "resp": free, "admin": free, "rules": file, "store": store, "deny-cache": "false", "redis-timeout": waitTimeout.String(),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := server.New(t.Context(), config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		if stop(); <-ended != nil {
			t.Error("the daemon did not end well")
		}
	})
	return daemon
}

// call sends a request to a listener and returns the status and the body.
func call(t *testing.T, d *server.Server, listener, method, path, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+d.Addr(listener).String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// runCommand runs a command against a listener of a daemon and returns its exit code and all that it prints.
func runCommand(d *server.Server, words ...string) (int, string) {
	listener := "admin"
	if words[0] == "take" || words[0] == "settle" {
		listener = "http"
	}
	var out strings.Builder
	code := run(append(words, "--server", "http://"+d.Addr(listener).String()), &out, &out)
	return code, out.String()
}
