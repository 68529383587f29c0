package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/httpapi"
)

// askSpelled asks /v1/auth as a proxy that passes everything on as it is. It returns the key that was counted, or ""
// for a denial.
func askSpelled(t *testing.T, server *httpapi.Server, counted *countedKeys, parameter string, s spelling) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/auth?limit=1000000/1d&key="+parameter, nil)
	r.Header = headerOf(s)
	if r.Header.Get("X-Forwarded-Uri") == "" {
		r.Header.Set("X-Forwarded-Uri", s.target)
	}
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	switch keys := counted.take(); {
	case w.Code == 200 && len(keys) == 1:
		return keys[0]
	case w.Code != 429 || len(keys) > 0:
		t.Errorf("%s of %q: got %d, counted as %q, want 200 and one key, or 429", parameter, s, w.Code, keys)
	}
	return ""
}

// However a client spells a value, an application that reads it as the same has the same counter, or the request is denied.
func TestAuthRequestSpellingsOfOneValueShareCounter(t *testing.T) {
	for _, source := range sources {
		counted, counting, denied := &countedKeys{}, counting{}, 0
		server := newServer(t, newEngine(t, counted.store(), nil), nil)
		for _, s := range source.spellings {
			if strings.HasPrefix(strings.ToLower(strings.Join(s.fields, "")), "x") {
				continue // what proxies replace
			}
			key := askSpelled(t, server, counted, source.parameter, s)
			if key == "" {
				denied++
				continue
			}
			counting.add(t, source.readers, s, s.target, headerOf(s), key)
		}
		if denied == 0 || denied > len(source.spellings)/2 {
			t.Errorf("%s: %d of %d spellings are denied, want some", source.parameter, denied, len(source.spellings))
		}
	}
}

// What clients really send is not denied.
func TestAuthRequestAcceptsUsualSpellings(t *testing.T) {
	for _, c := range []struct {
		parameter, want string
		spelling        spelling
	}{
		{"path", "/login", spelling{target: "/login?next=%2F%23top&x=a\\b"}},
		{"path", "/a b/商", spelling{target: "/a%20b/%E5%95%86"}},
		{"path", "/C#/x\\y", spelling{target: "/C%23/x%5Cy"}},
		{"path", "/login/", spelling{target: "/login/."}},
		{"path", "/login;a=b", spelling{target: "/login;a=b"}},
		{"query:q", "a b", spelling{target: "/?a=1&amp;b=2&q=a+b"}},
		{"query:q", "x;y", spelling{target: "/?q=x%3By&r=1"}},
		{"query:filter[user]", "ada", spelling{target: "/?filter[user]=ada&filter[page]=2"}},
		{"query:q", "1", spelling{target: "/?q=1&quick=2&q.x=3&a[q]=4"}},
		{"cookie:sid", "ab+/c==", cookies([]string{`prefs={"sid":"x", "a":[1,2]}; sid=ab+/c==; theme="dark"; msid=1; sid2=3`})[0]},
		{"cookie:sid", "ab+/c==", cookies([]string{"sid=ab%2B%2Fc%3D%3D"})[0]},
		{"cookie:sid", "a,b-c", cookies([]string{"url=https://x/?a=1&sid=2; sid=a,b-c"})[0]},
		{"cookie:sid", "100%", cookies([]string{"x=; sid=100%"})[0]},
		{"cookie:sid", "John+Doe", cookies([]string{"sid=John%20Doe"})[0]},
		{"cookie:user.id", "7", cookies([]string{"user.id=7"})[0]},
	} {
		counted := &countedKeys{}
		server := newServer(t, newEngine(t, counted.store(), nil), nil)
		if got := askSpelled(t, server, counted, c.parameter, c.spelling); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s of %q: counted as %q, want %q", c.parameter, c.spelling, got, c.want)
		}
	}
}

// What an application reads has one counter, however the client has written it: that of the plainest spelling.
func FuzzAuthRequestSpellings(f *testing.F) {
	for _, source := range sources {
		for _, s := range source.spellings {
			f.Add(s.target, headerOf(s).Get("Cookie"))
		}
	}
	f.Fuzz(func(t *testing.T, target, cookie string) {
		counted := &countedKeys{}
		server := newServer(t, newEngine(t, counted.store(), nil), nil)
		s := spelling{target, []string{"Cookie: " + cookie}}
		for _, source := range sources {
			key := askSpelled(t, server, counted, source.parameter, s)
			for _, r := range source.readers {
				value := r.value(target, headerOf(s))
				if key == "" || value == "" {
					continue
				}
				spell := escaped
				if r.spell != nil {
					spell = r.spell
				}
				plain := source.request(spell(value))
				if again := askSpelled(t, server, counted, source.parameter, plain); again != "" && again != key {
					t.Errorf("%s reads %q from %q and from %q, which are counted as %q and %q", r.name, value, s, plain, key, again)
				}
			}
		}
	})
}
