package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// postLogins sends passwords and returns the statuses.
func postLogins(h http.Handler, user, from string, passwords ...string) (statuses []int) {
	for _, password := range passwords {
		form := url.Values{"user": {user}, "password": {password}}.Encode()
		r, w := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form)), httptest.NewRecorder()
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = from
		h.ServeHTTP(w, r)
		statuses = append(statuses, w.Code)
	}
	return statuses
}

func TestLoginLimitsWrongPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := handler(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		const right = "correct horse"
		for _, step := range []struct {
			what       string
			user, from string
			passwords  []string
			want       []int
		}{
			{"guessing", "alice", "203.0.113.1:1", []string{"a", "b", "c", "d", "e", "f", right}, []int{401, 401, 401, 401, 401, 429, 429}},
			{"guessing from elsewhere", "Alice", "203.0.113.2:1", []string{right}, []int{429}},
			{"another user", "bob", "203.0.113.1:1", []string{"x", right, "x", "x", "x", "x", "x", "x"}, []int{401, 200, 401, 401, 401, 401, 401, 429}},
		} {
			if got := postLogins(h, step.user, step.from, step.passwords...); !slices.Equal(got, step.want) {
				t.Errorf("%s: %v, want %v", step.what, got, step.want)
			}
		}
		time.Sleep(15*time.Minute - time.Nanosecond)
		if got, want := postLogins(h, "alice", "203.0.113.1:1", right), []int{429}; !slices.Equal(got, want) {
			t.Errorf("a nanosecond before 15 minutes have passed: %v, want %v", got, want)
		}
		time.Sleep(time.Nanosecond)
		if got, want := postLogins(h, "alice", "203.0.113.1:1", right, "x"), []int{200, 401}; !slices.Equal(got, want) {
			t.Errorf("after 15 minutes: %v, want %v", got, want)
		}
	})
}

// A client that guesses once a second gets no more than the comment of the example says,
// in whichever 15 minutes.
func TestLoginAllowsFiveGuessesInAny15Minutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := handler(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		var guesses, fromOneAddress []time.Time
		for second := range 3600 {
			from := fmt.Sprintf("203.0.%d.%d:1", second/250, second%250)
			if postLogins(h, "alice", from, "guess")[0] == http.StatusUnauthorized {
				guesses = append(guesses, time.Now())
			}
			user := fmt.Sprintf("user%d", second)
			if postLogins(h, user, "198.51.100.1:1", "guess")[0] == http.StatusUnauthorized {
				fromOneAddress = append(fromOneAddress, time.Now())
			}
			time.Sleep(time.Second)
		}
		if got := mostIn15Minutes(guesses); got != 5 || len(guesses) != 4*5 {
			t.Errorf("%d guesses at one user in an hour, %d in 15 minutes, want 20 and 5", len(guesses), got)
		}
		if got := mostIn15Minutes(fromOneAddress); got != 20 || len(fromOneAddress) != 4*20 {
			t.Errorf("%d guesses from one address in an hour, %d in 15 minutes, want 80 and 20", len(fromOneAddress), got)
		}
	})
}

func mostIn15Minutes(times []time.Time) (most int) {
	for i := range times {
		n := 0
		for _, at := range times[i:] {
			if at.Sub(times[i]) < 15*time.Minute {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// One address cannot guess passwords of many users.
func TestLoginLimitsAddress(t *testing.T) {
	h, err := handler(penstock.NewMemory(nil))
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range 100 {
		if got := postLogins(h, fmt.Sprintf("user%d", i), "203.0.113.1:1", "guess"); got[0] == http.StatusUnauthorized {
			wrong++
		}
	}
	if wrong != 20 {
		t.Errorf("%d guesses were allowed, want 20", wrong)
	}
}
