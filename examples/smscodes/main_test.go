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

func requestCode(h http.Handler, phone string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodPost, "/codes", strings.NewReader(url.Values{"phone": {phone}}.Encode())), httptest.NewRecorder()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	h.ServeHTTP(w, r)
	return w
}

func TestNumberGetsFiveCodesADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := handler(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		const number = "13800000000"
		for i := range 5 {
			if w := requestCode(h, number); w.Code != http.StatusAccepted {
				t.Errorf("code %d: %d", i, w.Code)
			}
			w, want := requestCode(h, number), "60"
			if i == 4 {
				want = "57360" // it was the last of the day
			}
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != want {
				t.Errorf("a second one at once: %d, Retry-After %s, want %s", w.Code, w.Header().Get("Retry-After"), want)
			}
			time.Sleep(time.Minute)
		}
		// The clock of synctest starts at midnight UTC, which is 8:00 in Shanghai.
		w := requestCode(h, number)
		if want := "57300"; w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != want {
			t.Errorf("the sixth: %d, Retry-After %s, want %s", w.Code, w.Header().Get("Retry-After"), want)
		}
		time.Sleep(57300 * time.Second)
		if w := requestCode(h, number); w.Code != http.StatusAccepted {
			t.Errorf("after midnight in Shanghai: %d", w.Code)
		}
	})
}

func TestFailedSendsAreRefunded(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if w := requestCode(h, "13800000404"); w.Code != http.StatusBadGateway {
			t.Errorf("%d", w.Code)
		}
	}
}

func TestNumberFormatsShareLimit(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	if w := requestCode(h, "13800000000"); w.Code != http.StatusAccepted {
		t.Errorf("%d", w.Code)
	}
	for _, written := range []string{"13800000000", " 138 0000 0000 ", "138-0000-0000", "+8613800000000", "0086 138.0000.0000", "(86)13800000000"} {
		if w := requestCode(h, written); w.Code != http.StatusTooManyRequests {
			t.Errorf("%q: %d", written, w.Code)
		}
	}
	if w := requestCode(h, "+86 139 0000 0000"); w.Code != http.StatusAccepted {
		t.Errorf("another number: %d", w.Code)
	}
}

func TestInvalidNumberIsNotCharged(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 30 { // more than the limit of an address
		for _, written := range []string{"", "x", "1380000000", "138000000000", "+113800000000", "１３８００００００００", "13800000000\n", "13800000000,13900000000"} {
			if w := requestCode(h, written); w.Code != http.StatusBadRequest {
				t.Errorf("%q: %d", written, w.Code)
			}
		}
	}
	if w := requestCode(h, "13800000000"); w.Code != http.StatusAccepted {
		t.Errorf("after invalid numbers: %d", w.Code)
	}
}

// One address cannot request codes for many numbers, whether they are sent or not.
func TestAddressGetsTwentyCodesAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := handler(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		tried := 0
		for i := range 120 { // one every 30 s
			number := fmt.Sprintf("138000%05d", i)
			if i%2 == 0 {
				number = fmt.Sprintf("138%05d404", i)
			}
			if w := requestCode(h, number); w.Code != http.StatusTooManyRequests {
				tried++
			}
			time.Sleep(30 * time.Second)
		}
		if tried != 20 {
			t.Errorf("%d requests were allowed in an hour, want 20", tried)
		}
	})
}
