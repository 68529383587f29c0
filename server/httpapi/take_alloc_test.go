// Under the race detector sync.Pool drops items at random, so allocations vary.

//go:build !race

package httpapi

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// discard is a ResponseWriter that does not allocate.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// repeatTake returns a function that sends the same take again and again.
func repeatTake(s *Server, body string) func() {
	r := httptest.NewRequest(http.MethodPost, "/v1/take", nil)
	r.Header.Set("Content-Type", "application/json")
	text := []byte(body)
	reader := bytes.NewReader(text)
	r.Body, r.ContentLength = io.NopCloser(reader), int64(len(text))
	w := &discard{http.Header{}}
	return func() {
		reader.Reset(text)
		clear(w.header)
		s.ServeHTTP(w, r)
	}
}

// A take allocates a copy of the body, one of the key, and two for the headers.
func TestTakeAllocations(t *testing.T) {
	s, store := newMemoryServer(t)
	take := repeatTake(s, `{"key":"user:42","limit":"1000000/1s"}`)
	got := testing.AllocsPerRun(1000, take)
	if got > 4 {
		t.Errorf("got %v allocations, want at most 4", got)
	}
	if store.Stats().Keys != 1 {
		t.Errorf("the store has %d keys, want 1", store.Stats().Keys)
	}
}

func BenchmarkTake(b *testing.B) {
	s, _ := newMemoryServer(b)
	take := repeatTake(s, `{"key":"user:42","limit":"1000000/1s"}`)
	b.ReportAllocs()
	for b.Loop() {
		take()
	}
}
