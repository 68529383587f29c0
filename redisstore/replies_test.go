package redisstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// unaskedReplies are what a faulty proxy, or another service on the address of a Redis, may send at any time. rueidis
// panics because of some, and allocates without end because of others.
var unaskedReplies = map[string]string{
	"a status":            "+OK\r\n",
	"a number":            ":1\r\n",
	"an error":            "-ERR something\r\n",
	"a text":              "$2\r\nhi\r\n",
	"nil":                 "$-1\r\n",
	"an array":            "*2\r\n:1\r\n:2\r\n",
	"an empty array":      "*0\r\n",
	"two replies":         "+OK\r\n+OK\r\n",
	"a streamed text":     "$?\r\n;2\r\nhi\r\n;0\r\n",
	"a streamed array":    "*?\r\n:1\r\n.\r\n",
	"the end of a stream": ".\r\n",
	"a negative length":   "*-5\r\n",
	"a negative text":     "$-5\r\n",
	"a negative map":      "%-1\r\n",
	"a huge array":        "*2147483647\r\n",
	"a huge map":          "%1000000000\r\n",
	"a huge text":         "$2147483647\r\n",
	"a length too long":   "*18446744073709551617\r\n",
	"a deep array":        strings.Repeat("*1\r\n", 20_000),
	"wide arrays":         strings.Repeat("*100000\r\n", 1000),
	"a push":              ">2\r\n$3\r\nfoo\r\n:1\r\n",
	"a confirmation":      ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
	"an event":            ">3\r\n$7\r\nmessage\r\n$9\r\n+sentinel\r\n$1\r\nx\r\n",
	"a redirection":       "-MOVED\r\n",
	"HTTP":                "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
	"zeros":               strings.Repeat("\x00", 100_000),
	"a line without end":  "+" + strings.Repeat("x", 100_000),
}

// Whatever arrives beside the replies costs calls at most, and the store is right again afterwards.
func TestStoreSurvivesUnaskedReplies(t *testing.T) {
	for name, connect := range map[string]func(t *testing.T) (*redistest.Proxy, *redisstore.Store){
		"callers that read": func(t *testing.T) (*redistest.Proxy, *redisstore.Store) {
			p := startProxy(t, liveServer.Addr)
			return p, mustOpen(t, "redis://"+p.Addr, redisstore.Options{Prefix: newPrefix(), Timeout: shortTimeout})
		},
		"pipeline": func(t *testing.T) (*redistest.Proxy, *redisstore.Store) {
			p := startProxy(t, liveServer.Addr)
			o := redisstore.Options{Prefix: newPrefix(), Timeout: shortTimeout}
			return p, mustOpen(t, "redis://"+p.Addr, o.WithPipelining())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, store := connect(t)
			for what, text := range unaskedReplies {
				t.Run(what, func(t *testing.T) { checkUnaskedReply(t, p, store, text) })
			}
		})
	}
}

// checkUnaskedReply injects a reply while nothing is in flight, and then between others.
func checkUnaskedReply(t *testing.T, p *redistest.Proxy, store *redisstore.Store, text string) {
	before := systemMemory()
	r := penstock.Request{Key: t.Name(), Limit: slowLimits[2], Cost: 1}
	waitFor(t, "a connection is idle", func() bool { _, err := store.Take(t.Context(), r); return err == nil && p.Inject([]byte(text)) > 0 })
	checkRecovered(t, store, t.Name()+" idle")

	load := startLoad(t, store)
	for range 10 {
		load.waitAnswers(t, 20)
		p.Inject([]byte(text))
	}
	load.close()
	checkRecovered(t, store, t.Name()+" load")
	if after := systemMemory(); after > before+128<<20 {
		t.Errorf("the process had %d MB, and has %d now", before>>20, after>>20)
	}
}

// A Sentinel sends events by itself, and rueidis takes the parts of an answer without looking how many there are.
func TestStoreSurvivesUnaskedRepliesOfSentinel(t *testing.T) {
	server := startServer(t)
	toServer := startProxy(t, server.Addr)
	address, name, _ := strings.Cut(strings.TrimPrefix(redistest.StartSentinel(t, toServer.Addr), "redis-sentinel://"), "/")
	toSentinel := startProxy(t, address)
	store := mustOpen(t, "redis-sentinel://"+toSentinel.Addr+"/"+name, redisstore.Options{Prefix: newPrefix(), Timeout: shortTimeout})
	host, port, _ := strings.Cut(toServer.Addr, ":")
	for _, text := range []string{"*0\r\n", "*1\r\n$1\r\na\r\n", "*1000000000\r\n"} {
		truth := fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
		checkRewritten(t, toSentinel, store, truth, text)
		checkRewritten(t, toServer, store, "*3\r\n$6\r\nmaster\r\n", text)
	}
	for what, text := range unaskedReplies {
		waitFor(t, "a connection to the Sentinel is open", func() bool { return toSentinel.Inject([]byte(text)) > 0 })
		checkRecovered(t, store, what)
	}
}

// checkRewritten lets a server answer something else for a while.
func checkRewritten(t *testing.T, p *redistest.Proxy, store *redisstore.Store, truth, lie string) {
	t.Helper()
	var lies atomic.Int64
	p.Rewrite(func(b []byte) []byte {
		if i := bytes.Index(b, []byte(truth)); i >= 0 {
			lies.Add(1)
			return append(slices.Clone(b[:i]), lie...)
		}
		return b
	})
	waitFor(t, "the client asks", func() bool { return lies.Load() > 2 })
	p.Rewrite(nil)
	checkRecovered(t, store, truth+lie)
}

func systemMemory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys
}

// checkRecovered checks that decisions become right again, and stay so: each unit of a key is taken once. A reply too many is
// noticed when nothing is in flight, on each of several connections by itself.
func checkRecovered(t *testing.T, store *redisstore.Store, key string) {
	t.Helper()
	attempt, right := 0, 0
	waitFor(t, "decisions are right", func() bool {
		attempt++
		if right++; !takesInTurn(t, store, fmt.Sprint(key, attempt)) {
			right = 0
		}
		return right == 10
	})
}

// takesInTurn reports whether a new key is charged unit by unit.
func takesInTurn(t *testing.T, store *redisstore.Store, key string) bool {
	t.Helper()
	for i := range int64(5) {
		d, err := store.Take(t.Context(), penstock.Request{Key: key, Limit: slowLimits[2], Cost: 1})
		if err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("got %v, want %v", err, penstock.ErrUnavailable)
		}
		if err != nil || !d.Allowed || d.Remaining != burst-1-i {
			return false
		}
	}
	return true
}
