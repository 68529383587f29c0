package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
)

// redis is a real server that tests share. Each test has its own key prefix.
var redis *redistest.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if redis, err = redistest.Start(redistest.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer redis.Stop()
	return m.Run()
}

// testTimeout is far longer than anything takes in a test that passes.
const testTimeout = 5 * time.Minute

// A daemon is a running server under test.
type daemon struct {
	*server.Server
	t     *testing.T
	log   *logBuffer
	front string // the address of a proxy in front of HTTP, if any
	trace string // what calls over gRPC have as their traceparent, if any
	stop  context.CancelFunc
	done  chan struct{}
	err   error // of Run, when done
}

// start runs a server with settings, on free ports unless others are set. The server ends
// with the test, without an error.
func start(t *testing.T, settings map[string]string) *daemon {
	t.Helper()
	return startConfig(t, load(t, settings))
}

func startConfig(t *testing.T, c *server.Config) *daemon {
	t.Helper()
	d := &daemon{t: t, log: &logBuffer{}, done: make(chan struct{})}
	var err error
	d.Server, err = server.New(t.Context(), c, slog.New(slog.NewTextHandler(d.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go func() {
		d.err = d.Run(ctx)
		close(d.done)
	}()
	t.Cleanup(d.end)
	return d
}

// load returns the configuration of settings and an environment, with free ports.
func load(t *testing.T, settings map[string]string, env ...string) *server.Config {
	t.Helper()
	flags := map[string]string{}
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		flags[name] = "127.0.0.1:0"
	}
	for name, value := range settings {
		flags[name] = value
	}
	c, err := server.LoadConfig(flags, env)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// end stops the server and waits for it. It can be called again.
func (d *daemon) end() {
	d.t.Helper()
	d.stop()
	select {
	case <-d.done:
	case <-time.After(testTimeout):
		d.t.Fatalf("the server has not ended after %v; its log:\n%s", testTimeout, d.log)
	}
	if d.err != nil {
		d.t.Errorf("the server ended with %v; its log:\n%s", d.err, d.log)
	}
}

func (d *daemon) addr(listener string) string {
	if listener == "http" && d.front != "" {
		return d.front
	}
	return d.Addr(listener).String()
}

// await waits until a condition holds.
func (d *daemon) await(what string, holds func() bool) {
	d.t.Helper()
	await(d.t, func() string { return what + "; its log:\n" + d.log.String() }, holds)
}

func await(t *testing.T, what func() string, holds func() bool) {
	t.Helper()
	deadline := time.After(testTimeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v not yet: %s", testTimeout, what())
		}
	}
}

// reserveAddr returns an address on which no other program listens until the test ends.
func reserveAddr(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))
}

// get returns the response to GET.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, read(t, answer)
}

// post returns the response to POST /v1/take.
func post(t *testing.T, addr, body string) (status int, answer string) {
	t.Helper()
	r, err := http.Post("http://"+addr+"/v1/take", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, read(t, r)
}

func read(t *testing.T, answer *http.Response) string {
	t.Helper()
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A logBuffer collects log lines, and can be read meanwhile.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) has(text string) bool { return strings.Contains(b.String(), text) }
