package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/rules"
)

// redis is a server whose clock the tests hold. They share it, under prefixes of
// their own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		shared.Clock.Set(noon)
	}))
}

// noon is when it is where a test's clock stands still.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

var prefixes atomic.Int64

// onBothStores runs a test on each kind of store. Their clocks stand still.
func onBothStores(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, stillMemory()) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(context.Background(), "unix://"+redis.Socket, &redisstore.Options{
			Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
			Timeout: 10 * time.Second, // a busy machine is no failure here
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, store)
	})
}

func stillMemory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon }, Tick: time.Millisecond})
}

// ruleFile has a rule of every kind that answers differ by.
const ruleFile = `
domain: edge
descriptors:
  - key: remote_address
    limit: "3/1m"
  - key: tenant
    limit: "5/1m"
  - key: watched
    shadow_mode: true
    limit: "1/1m"
  - key: plan
    value: gold
    quota_mode: true
    limit: "1/1m"
  - key: free
    rate_limit:
      unlimited: true
  - key: line
    limit: "1/100ms leaky-bucket burst=3"
  - key: queue
    limit: "1/1h leaky-bucket burst=3"
`

// judgeOf returns a judge by the rules above.
func judgeOf(t testing.TB, store penstock.Store, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		t.Fatal(err)
	}
	j := engine.New(store, o)
	j.SetRules(set)
	return j
}

// newDoor returns a door that nobody listens at.
func newDoor(t testing.TB, j *engine.Engine, o *httpapi.Options) *httpapi.Server {
	t.Helper()
	door, err := httpapi.New(j, o)
	if err != nil {
		t.Fatal(err)
	}
	return door
}

// serve opens a door on a port, and returns its address.
func serve(t testing.TB, door *httpapi.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- door.Serve(l) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // which the door would wait for
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := door.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// An answer is what came back from the door.
type answer struct {
	status  int
	header  http.Header
	body    string // without space around it
	rawBody string
}

// post sends a body to /v1/take.
func post(t testing.TB, address, body string) answer {
	t.Helper()
	return do(t, http.MethodPost, address+"/v1/take", body, nil)
}

// do sends a request to a door, and holds the answer against openapi.yaml. A body
// without a Content-Type is sent as JSON.
func do(t testing.TB, method, url, body string, header http.Header) answer {
	t.Helper()
	got := send(t, method, url, body, header)
	path, query, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "?")
	path = path[strings.IndexByte(path, '/'):]
	checkAgainstSpec(t, exchange{method, path, query, body, got})
	return got
}

// send sends a request to anyone.
func send(t testing.TB, method, url, body string, header http.Header) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	if body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(bytes.TrimSpace(text)), string(text)}
}

// jsonOf returns a value in JSON.
func jsonOf(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// want compares an answer with the one that is expected.
func (a answer) want(t testing.TB, status int, body string) {
	t.Helper()
	if a.status != status || a.body != body {
		t.Errorf("got  %d %s\nwant %d %s", a.status, a.body, status, body)
	}
}
