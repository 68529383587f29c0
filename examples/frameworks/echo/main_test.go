package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestMiddlewareLimits(t *testing.T) {
	now := time.Now() // stands still, so that nothing refills however long a request takes
	h, err := handler(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	send := func(method, path string) (status int, header http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode, resp.Header
	}
	for _, test := range []struct {
		what, request string
		want          []int
	}{
		{"a tenant", "GET /tenants/acme", []int{200, 200, 200, 429}},
		{"another tenant", "GET /tenants/bolt", []int{200}},
		{"logins that succeed", "POST /login?as=ada", []int{200, 200, 200, 200}},
		{"logins that fail", "POST /login?as=eve", []int{401, 401, 429}},
		{"a login after too many failures", "POST /login?as=ada", []int{429}},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		var got []int
		var last http.Header
		for range test.want {
			status, header := send(method, path)
			got, last = append(got, status), header
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
		denied := got[len(got)-1] == http.StatusTooManyRequests
		if problem := last.Get("Content-Type") == "application/problem+json"; problem != denied || denied != (last.Get("Retry-After") != "") {
			t.Errorf("%s: the header is %v", test.what, last)
		}
	}
}
