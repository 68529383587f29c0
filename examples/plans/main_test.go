package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestPlans(t *testing.T) {
	now := time.Now() // for good: quotas end at midnight
	h, err := handler(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, key string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
		r.Header.Set("X-API-Key", key)
		h.ServeHTTP(w, r)
		return w
	}
	var got []int
	for range 4 {
		got = append(got, ask(http.MethodGet, "/", "ada").Code)
	}
	if want := []int{200, 200, 200, 429}; !slices.Equal(got, want) {
		t.Errorf("on the free plan: %v, want %v", got, want)
	}
	if w := ask(http.MethodPost, "/plans/ada/pro", ""); w.Code != 200 {
		t.Errorf("moving up: %d", w.Code)
	}
	w := ask(http.MethodGet, "/", "ada")
	if got, want := remaining(w), `"api";r=996`; w.Code != 200 || got != want {
		t.Errorf("on the pro plan: %d, %s, want what was used before to count: %s", w.Code, got, want)
	}
	if w := ask(http.MethodGet, "/", "eve"); w.Code != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", w.Code)
	}
	if w := ask(http.MethodPost, "/plans/ada/platinum", ""); w.Code != http.StatusNotFound {
		t.Errorf("no such plan: %d", w.Code)
	}
}

// remaining returns the RateLimit field up to its time, which depends on the hour.
func remaining(w *httptest.ResponseRecorder) string {
	field := w.Header().Get("RateLimit")
	return field[:min(len(field), len(`"api";r=996`))]
}
