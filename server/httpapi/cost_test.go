// The race detector makes pools forget at random, so that nothing can be counted.

//go:build !race

package httpapi

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// discard is a response that costs nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// replay returns a function that asks the door the same again and again.
func replay(d *Server, body string) func() {
	r := httptest.NewRequest(http.MethodPost, "/v1/take", nil)
	r.Header.Set("Content-Type", "application/json")
	text := []byte(body)
	reader := bytes.NewReader(text)
	r.Body, r.ContentLength = io.NopCloser(reader), int64(len(text))
	w := &discard{http.Header{}}
	return func() {
		reader.Reset(text)
		clear(w.header)
		d.ServeHTTP(w, r)
	}
}

// One take costs a copy of the body, one of the key, and two for the headers.
func TestATakeAllocatesLittle(t *testing.T) {
	d, store := testDoor(t)
	ask := replay(d, `{"key":"user:42","limit":"1000000/1s"}`)
	got := testing.AllocsPerRun(1000, ask)
	if got > 4 {
		t.Errorf("a take makes %v allocations, want at most 4", got)
	}
	if store.Stats().Keys != 1 {
		t.Errorf("%d keys are held, want that one was asked about", store.Stats().Keys)
	}
}

func BenchmarkTake(b *testing.B) {
	d, _ := testDoor(b)
	ask := replay(d, `{"key":"user:42","limit":"1000000/1s"}`)
	b.ReportAllocs()
	for b.Loop() {
		ask()
	}
}
