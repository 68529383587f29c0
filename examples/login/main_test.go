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
		time.Sleep(3 * time.Minute)
		if got, want := postLogins(h, "alice", "203.0.113.1:1", right, "x"), []int{200, 401}; !slices.Equal(got, want) {
			t.Errorf("after 3 minutes, a fifth of the period: %v, want %v", got, want)
		}
	})
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
