package httpapi_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/httpapi"
)

// endlessBody is a body of spaces without an end.
type endlessBody struct{ read int }

func (e *endlessBody) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, strings.Repeat(" ", len(p))), nil
}

// A body of unknown length is read up to the maximum only.
func TestServerLimitsEndlessBody(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, path := range []string{"/v1/take", "/json"} {
		body, more := io.Pipe() // of unknown length, and open until the response is there
		defer func() { _ = more.Close() }()
		go func() { _, _ = more.Write(bytes.Repeat([]byte(" "), 64<<10+1)) }()
		response, err := http.Post(base+path, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: got %s, want 413", path, response.Status)
		}
	}
	server := newServer(t, newEngine(t, frozenMemory(), nil), nil)
	body := &endlessBody{}
	r, err := http.NewRequest(http.MethodPost, "/v1/take", body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	r.Header.Set("Content-Type", "application/json")
	server.ServeHTTP(discard{http.Header{}}, r)
	if body.read > 1<<20 {
		t.Errorf("read %d bytes of an endless body", body.read)
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(b []byte) (int, error) { return len(b), nil }

// A key can be any bytes, and similar keys are different keys.
func TestTakeAcceptsKeysOfAnyBytes(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		for _, key := range []string{
			`"key":"a"`, `"key":"A"`, `"key":"a "`, `"key":"a\u0000"`, `"key":"a\n"`, `"key":"{a}"`, `"key":"{a}b"`, `"key":"%s"`,
			`"key":"\u00e4"`, `"key":"a\u0308"`, `"key":"\ufffd"`, `"key":"\\ud800"`, `"key":"\\\\ufffd"`, `"key_base64":"/w=="`, `"key_base64":"/g=="`, `"key_base64":"7w=="`,
		} {
			body := `{` + key + `,"limit":"1/1h"}`
			if got := post(t, base, body); got.status != 200 {
				t.Errorf("%s: got %+v, want 200: another key used its unit", body, got)
			}
			if got := post(t, base, body); got.status != 429 {
				t.Errorf("second request of %s: got %+v, want 429", body, got)
			}
		}
		if got := post(t, base, `{"key_base64":"77+9","limit":"1/1h"}`); got.status != 429 {
			t.Errorf("U+FFFD as key_base64: got %+v, want 429: the same key", got)
		}
	})
}

// Invalid requests do not disturb valid ones, and leave no memory in use.
func TestServerSurvivesFloodOfInvalidBodies(t *testing.T) {
	base := serveStore(t, frozenMemory())
	invalid := []string{
		strings.Repeat("[", 60_000), strings.Repeat(`{"a":`, 12_000), `{"key":"` + strings.Repeat("k", 60_000) + `"}`,
		strings.Repeat("\xff", 60_000), `{"` + strings.Repeat("x", 60_000) + `":1}`, `{"key":"a","limit":"` + strings.Repeat("9", 60_000) + `"}`,
		`{"mode":"each","requests":[` + strings.Repeat(`{},`, 15_000), `{"cost":` + strings.Repeat("1", 60_000) + `}`,
	}
	flood := func(n int) {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range n {
					if got := send(t, "POST", base+"/v1/take", invalid[(w+i)%len(invalid)], nil); got.status != 400 || len(got.body) > 1000 {
						t.Errorf("%.40s: got %d and %d bytes, want 400 and at most 1000", invalid[(w+i)%len(invalid)], got.status, len(got.body))
					}
					valid := fmt.Sprintf(`{"key":"k%d-%d-%d","limit":"1/1h name=n%d"}`, n, w, i, i)
					if got := send(t, "POST", base+"/v1/take", valid, nil); got.status != 200 {
						t.Errorf("%s: got %+v, want 200", valid, got)
					}
				}
			})
		}
		wg.Wait()
	}
	flood(10)
	before := heapInUse()
	flood(40)
	if after := heapInUse(); after > before+16<<20 {
		t.Errorf("the heap grew from %d to %d bytes over 320 invalid requests", before, after)
	}
}

// heapInUse returns the bytes of live objects.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the second run empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestTakeRejectsTruncatedBody(t *testing.T) {
	server := newServer(t, newEngine(t, frozenMemory(), nil), nil)
	r, err := http.NewRequest(http.MethodPost, "/v1/take", io.MultiReader(strings.NewReader(`{"key":"a","limit":"1/s"`), truncated{}))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	var written strings.Builder
	server.ServeHTTP(record{discard{http.Header{}}, &written}, r)
	if !strings.Contains(written.String(), httpapi.ProblemMalformed) {
		t.Errorf("got %s, want a problem", written.String())
	}
}

type truncated struct{}

func (truncated) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

type record struct {
	discard
	to io.Writer
}

func (r record) Write(b []byte) (int, error) { return r.to.Write(b) }
