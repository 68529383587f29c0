package httpapi_test

import (
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

// endless is a body that does not end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, strings.Repeat(" ", len(p))), nil
}

// A body of which nobody knows how long it is is read no further than it may be.
func TestABodyThatDoesNotEnd(t *testing.T) {
	at := open(t, stillMemory())
	for _, path := range []string{"/v1/take", "/json"} {
		response, err := http.Post(at+path, "application/json", &endless{})
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: got %s, want 413", path, response.Status)
		}
	}
	door := newDoor(t, judgeOf(t, stillMemory(), nil), nil)
	body := &endless{}
	r, err := http.NewRequest(http.MethodPost, "/v1/take", body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	r.Header.Set("Content-Type", "application/json")
	door.ServeHTTP(discard{http.Header{}}, r)
	if body.read > 1<<20 {
		t.Errorf("%d bytes of an endless body were read", body.read)
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(b []byte) (int, error) { return len(b), nil }

// Any bytes can be a key, and no two keys are the same.
func TestKeysOfOddBytes(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		for _, key := range []string{
			`"key":"a"`, `"key":"A"`, `"key":"a "`, `"key":"a\u0000"`, `"key":"a\n"`, `"key":"{a}"`, `"key":"{a}b"`, `"key":"%s"`,
			`"key":"\u00e4"`, `"key":"a\u0308"`, `"key":"\ufffd"`, `"key_base64":"/w=="`, `"key_base64":"/g=="`, `"key_base64":"7w=="`,
		} {
			ask := `{` + key + `,"limit":"1/1h"}`
			if got := post(t, at, ask); got.status != 200 {
				t.Errorf("%s: got %+v: somebody else took the only unit", ask, got)
			}
			if got := post(t, at, ask); got.status != 429 {
				t.Errorf("%s for the second time: got %+v, want 429", ask, got)
			}
		}
		if got := post(t, at, `{"key_base64":"77+9","limit":"1/1h"}`); got.status != 429 {
			t.Errorf("U+FFFD by its bytes: got %+v, want the key of that name", got)
		}
	})
}

// While some send rubbish, others are served, and nothing piles up.
func TestRubbishFromManyPilesUpNowhere(t *testing.T) {
	at := open(t, stillMemory())
	rubbish := []string{
		strings.Repeat("[", 60_000), strings.Repeat(`{"a":`, 12_000), `{"key":"` + strings.Repeat("k", 60_000) + `"}`,
		strings.Repeat("\xff", 60_000), `{"` + strings.Repeat("x", 60_000) + `":1}`, `{"key":"a","limit":"` + strings.Repeat("9", 60_000) + `"}`,
		`{"mode":"each","requests":[` + strings.Repeat(`{},`, 15_000), `{"cost":` + strings.Repeat("1", 60_000) + `}`,
	}
	flood := func(n int) {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range n {
					if got := send(t, "POST", at+"/v1/take", rubbish[(w+i)%len(rubbish)], nil); got.status != 400 || len(got.body) > 1000 {
						t.Errorf("%.40s: got %d and %d bytes, want 400 and a few", rubbish[i%len(rubbish)], got.status, len(got.body))
					}
					ask := fmt.Sprintf(`{"key":"k%d-%d-%d","limit":"1/1h name=n%d"}`, n, w, i, i)
					if got := send(t, "POST", at+"/v1/take", ask, nil); got.status != 200 {
						t.Errorf("%s: got %+v, want 200", ask, got)
					}
				}
			})
		}
		wg.Wait()
	}
	flood(10)
	before := heap()
	flood(40)
	if after := heap(); after > before+16<<20 {
		t.Errorf("%d bytes were held before 320 pieces of rubbish, and %d after", before, after)
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what is in pools goes the second time
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A caller that breaks off in the middle of its body is told so, if it listens, and
// charges nothing.
func TestABodyThatEndsEarly(t *testing.T) {
	door := newDoor(t, judgeOf(t, stillMemory(), nil), nil)
	r, err := http.NewRequest(http.MethodPost, "/v1/take", io.MultiReader(strings.NewReader(`{"key":"a","limit":"1/s"`), brokenOff{}))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	var said strings.Builder
	door.ServeHTTP(record{discard{http.Header{}}, &said}, r)
	if !strings.Contains(said.String(), httpapi.ProblemMalformed) {
		t.Errorf("got %s, want a problem", said.String())
	}
}

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

type record struct {
	discard
	to io.Writer
}

func (r record) Write(b []byte) (int, error) { return r.to.Write(b) }
