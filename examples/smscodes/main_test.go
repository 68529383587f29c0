package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

func ask(h http.Handler, phone string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodPost, "/codes", strings.NewReader(url.Values{"phone": {phone}}.Encode())), httptest.NewRecorder()
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

func TestOneNumberHasOneLimit(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	if w := ask(h, "13800000000"); w.Code != http.StatusAccepted {
		t.Errorf("%d", w.Code)
	}
	for _, written := range []string{"13800000000", " 138 0000 0000 ", "138-0000-0000", "+8613800000000", "0086 138.0000.0000", "(86)13800000000"} {
		if w := ask(h, written); w.Code != http.StatusTooManyRequests {
			t.Errorf("%q: %d", written, w.Code)
		}
	}
	if w := ask(h, "+86 139 0000 0000"); w.Code != http.StatusAccepted {
		t.Errorf("another number: %d", w.Code)
	}
}

func TestWhatIsNoNumber(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 30 { // more than an address has
		for _, written := range []string{"", "x", "1380000000", "138000000000", "+113800000000", "１３８００００００００", "13800000000\n", "13800000000,13900000000"} {
			if w := ask(h, written); w.Code != http.StatusBadRequest {
				t.Errorf("%q: %d", written, w.Code)
			}
		}
	}
	if w := ask(h, "13800000000"); w.Code != http.StatusAccepted {
		t.Errorf("after those, which cost nothing: %d", w.Code)
	}
}

// Nobody goes through all numbers from one address, whether they are reached or not.
func TestManyNumbers(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for i := range 100 {
		number := fmt.Sprintf("138000%05d", i)
		if i%2 == 0 {
			number = fmt.Sprintf("138%05d404", i)
		}
		if w := ask(h, number); w.Code != http.StatusTooManyRequests {
			tried++
		}
	}
	if tried != 20 {
		t.Errorf("%d numbers were tried, want 20", tried)
	}
}
