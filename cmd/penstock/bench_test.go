package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A server that grants too much, or too little, does not get away with it.
func TestBenchChecksTheAnswers(t *testing.T) {
	for name, status := range map[string]int{"always": http.StatusOK, "never": http.StatusTooManyRequests} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
		}))
		defer s.Close()
		o := benchOptions{
			door: "http", addr: strings.TrimPrefix(s.URL, "http://"), duration: 100 * time.Millisecond,
			callers: 2, pipeline: 1, keys: 1, each: 2,
		}
		var out strings.Builder
		err := bench(t.Context(), o, &out, io.Discard)
		if !errors.Is(err, errNo) || !strings.Contains(out.String(), "wrong: key bench:") {
			t.Errorf("a server that grants %s: %v\n%s", name, err, &out)
		}
	}
}

// A bench that is interrupted says so, and not that all is well.
func TestBenchThatIsInterruptedIsAnError(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer s.Close()
	o := benchOptions{door: "http", addr: strings.TrimPrefix(s.URL, "http://"), duration: time.Minute, callers: 2, pipeline: 1, keys: 1, each: 2}
	if err := bench(t.Context(), o, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("got %v, want the status", err)
	}
}

// The heap may grow by the same amount while it is small, and by half when it is
// large.
func TestRoomForGarbage(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 8 << 20: 400, 32 << 20: 100, 64 << 20: 50, 1 << 30: 50} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d %%, want %d %%", live, got, want)
		}
	}
}
