package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// Whatever is in the URL and in a header, reading it does not panic; what is asked
// has a meaning; and a header never changes anything but the key.
func FuzzVisit(f *testing.F) {
	f.Add("limit=1/s&key=header:X-Api-Key&deny=403&cost=2&max_delay=1.5", "ada")
	f.Add("domain=edge&remote_address=header:X-Forwarded-For&path=%2Flogin", "1.1.1.1, 2.2.2.2")
	f.Add("key=a&key=b", "&limit=9/s")
	f.Add("%zz&&=&;", "")
	f.Fuzz(func(t *testing.T, query, header string) {
		r := httptest.NewRequest(http.MethodGet, "/v1/auth", nil)
		r.URL = &url.URL{Path: "/v1/auth", RawQuery: query}
		r.Header = http.Header{"X-Api-Key": {header}, "X-Forwarded-For": {header}}
		v, err := readVisit(r)
		if err != nil {
			if p := problemOf(err); p.Status != http.StatusBadRequest || p.Detail == "" {
				t.Fatalf("?%s: got %+v, want a problem of status 400 that says why", query, p)
			}
			return
		}
		if v.cost < 0 || v.deny < 400 || v.deny > 599 || len(v.key) > maxKey || v.said.has(byRules) == v.said.has(byLimit) {
			t.Fatalf("?%s: got %+v, which has no meaning", query, v)
		}
		r.Header = http.Header{}
		other, err := readVisit(r)
		if err != nil {
			t.Fatalf("?%s: without headers: %v", query, err)
		}
		if v.limit != other.limit || v.cost != other.cost || v.deny != other.deny || v.domain != other.domain || v.maxDelay != other.maxDelay {
			t.Fatalf("?%s: got %+v with the header %q, and %+v without", query, v, header, other)
		}
	})
}

func TestParametersAreReadInOrder(t *testing.T) {
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
