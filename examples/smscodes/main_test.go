package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

func ask(h http.Handler, phone string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodPost, "/codes", strings.NewReader("phone="+phone)), httptest.NewRecorder()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	h.ServeHTTP(w, r)
	return w
}

func TestCodesADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := handler(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		const someone = "13800000000"
		for i := range 5 {
			if w := ask(h, someone); w.Code != http.StatusAccepted {
				t.Errorf("code %d: %d", i, w.Code)
			}
			w, want := ask(h, someone), "60"
			if i == 4 {
				want = "57360" // it was the last of the day, too
			}
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != want {
				t.Errorf("another at once: %d, Retry-After %s, want %s", w.Code, w.Header().Get("Retry-After"), want)
			}
			time.Sleep(time.Minute)
		}
		// The bubble's clock began at midnight in London, eight in the morning
		// in Shanghai.
		w := ask(h, someone)
		if want := "57300"; w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != want {
			t.Errorf("the sixth: %d, Retry-After %s, want %s", w.Code, w.Header().Get("Retry-After"), want)
		}
		time.Sleep(57300 * time.Second)
		if w := ask(h, someone); w.Code != http.StatusAccepted {
			t.Errorf("after midnight in Shanghai: %d", w.Code)
		}
	})
}

func TestWhatWasNotSentIsFree(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if w := ask(h, "13800000404"); w.Code != http.StatusBadGateway {
			t.Errorf("%d", w.Code)
		}
	}
}
