package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestUpgradeKeepsUsage(t *testing.T) {
	now := time.Now() // stopped, because quotas end at midnight
	h, err := handler(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}))
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, path, key string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
		r.Header.Set("X-API-Key", key)
		h.ServeHTTP(w, r)
		return w
	}
	var got []int
	for range 4 {
		got = append(got, send(http.MethodGet, "/", "ada").Code)
	}
	if want := []int{200, 200, 200, 429}; !slices.Equal(got, want) {
		t.Errorf("on the free plan: %v, want %v", got, want)
	}
	if w := send(http.MethodPost, "/plans/ada/pro", ""); w.Code != 200 {
		t.Errorf("upgrade: %d", w.Code)
	}
	w := send(http.MethodGet, "/", "ada")
	if got, want := remaining(w), `"api";r=996`; w.Code != 200 || got != want {
		t.Errorf("on the pro plan: %d, %s, want the earlier usage to count: %s", w.Code, got, want)
	}
	if w := send(http.MethodGet, "/", "eve"); w.Code != http.StatusUnauthorized {
		t.Errorf("unknown key: %d", w.Code)
	}
	if w := send(http.MethodPost, "/plans/ada/platinum", ""); w.Code != http.StatusNotFound {
		t.Errorf("no such plan: %d", w.Code)
	}
}

// remaining returns the RateLimit field without its reset time, which depends on the time
// of day.
func remaining(w *httptest.ResponseRecorder) string {
	field := w.Header().Get("RateLimit")
	return field[:min(len(field), len(`"api";r=996`))]
}
