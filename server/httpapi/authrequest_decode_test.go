package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// Decoding never panics, accepted requests are valid, and a header changes nothing
// but the key.
func FuzzAuthRequestDecode(f *testing.F) {
	f.Add("limit=1/s&key=header:X-Api-Key&deny=403&cost=2&max_delay=1.5", "ada")
	f.Add("domain=edge&remote_address=header:X-Forwarded-For&path=%2Flogin", "1.1.1.1, 2.2.2.2")
	f.Add("limit=1/s&key=address:X-Forwarded-For", "unknown, [2001:db8::1%eth0]:443")
	f.Add("limit=1/s&key=address:2001:db8::1&deny=403", "")
	f.Add("key=a&key=b", "&limit=9/s")
	f.Add("%zz&&=&;", "")
	f.Add("domain=edge&user=cookie:sid&and&path=path&and&q=query:q&max_delay=1", "/a?q=1")
	noLists := func(string, string) [][]rules.Entry { return nil }
	f.Fuzz(func(t *testing.T, query, header string) {
		r := httptest.NewRequest(http.MethodGet, "/v1/auth", nil)
		r.URL = &url.URL{Path: "/v1/auth", RawQuery: query}
		r.Header = http.Header{"X-Api-Key": {header}, "X-Forwarded-For": {header}, "X-Forwarded-Uri": {header}, "Cookie": {"sid=" + header}}
		addresses := address.NewResolver(address.Private(), 0)
		a, err := decodeAuthRequest(r, addresses, noLists)
		if err != nil {
			if p := problemOf(err); p.Status != http.StatusBadRequest || p.Detail == "" {
				t.Fatalf("?%s: got %+v, want status 400 and a detail", query, p)
			}
			return
		}
		if a.Request.Cost < 0 || a.denyStatus < 400 || a.denyStatus > 599 || len(a.Request.Key) > maxKey || a.fields.has(ruleFields) == a.fields.has(ownFields) {
			t.Fatalf("?%s: got %+v, which is invalid", query, a)
		}
		r.Header = http.Header{"X-Forwarded-For": {"203.0.113.9"}, "X-Forwarded-Uri": {"/"}}
		other, err := decodeAuthRequest(r, addresses, noLists)
		if err != nil {
			t.Fatalf("?%s: with another header: %v", query, err)
		}
		if a.Limit != other.Limit || a.Request.Cost != other.Request.Cost || a.denyStatus != other.denyStatus || a.Domain != other.Domain || a.Request.MaxDelay != other.Request.MaxDelay {
			t.Fatalf("?%s: got %+v with the header %q, and %+v with another", query, a, header, other)
		}
	})
}

func TestParseQueryKeepsOrder(t *testing.T) {
	got, err := httpserver.ParseQuery("b=1&a=%3d%26&&b=2&c&=d&e=f=g", 9)
	want := []httpserver.Parameter{{Name: "b", Value: "1"}, {Name: "a", Value: "=&"}, {Name: "b", Value: "2"}, {Name: "c"}, {Value: "d"}, {Name: "e", Value: "f=g"}}
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("parameter %d: got %q, want %q", i, got[i], want[i])
		}
	}
}
