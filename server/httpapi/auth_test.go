package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

// auth asks whether a request may pass.
func auth(t testing.TB, at, query string, header ...string) answer {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return do(t, http.MethodGet, at+"/v1/auth?"+query, "", h)
}

func TestARequestPassesUntilNothingIsLeft(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		for _, query := range []string{
			"limit=2/1m&key=10.0.0.1",
			"domain=edge&remote_address=10.0.0.1&cost=1",
		} {
			first := auth(t, at, query)
			first.want(t, 200, "")
			if first.header.Get("Ratelimit") == "" || first.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: got %v, want RateLimit, and nothing to be kept", query, first.header)
			}
			auth(t, at, query)
			if strings.HasPrefix(query, "domain") {
				auth(t, at, query)
			}
			denied := auth(t, at, query)
			if p := denied.problem(t); denied.status != 429 || denied.header.Get("Retry-After") == "" ||
				p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" {
				t.Errorf("%s: got %+v, want a denial that says when to come back", query, denied)
			}
			if got := auth(t, at, query+"&deny=403"); got.status != 403 || got.header.Get("Retry-After") == "" {
				t.Errorf("%s, denied with 403: got %+v", query, got)
			}
		}
	})
}

func TestAnyMethodMayBeAskedAbout(t *testing.T) {
	at := open(t, stillMemory())
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"} {
		if got := do(t, method, at+"/v1/auth?limit=100/1m&key=k", "", nil); got.status != 200 {
			t.Errorf("%s: got %+v, want 200", method, got)
		}
	}
	if got := auth(t, at, "limit=100/1m&key=k&cost=0"); got.header.Get("Ratelimit") != `"default";r=92;t=56` {
		t.Errorf("after 8 requests of 100: got %v", got.header)
	}
}

// Who is asking can be one of the request's headers, if the URL says so.
func TestAHeaderIsTheKey(t *testing.T) {
	at := open(t, stillMemory())
	key := "limit=1/1m&key=header:X-Api-Key"
	auth(t, at, key, "X-Api-Key", "ada").want(t, 200, "")
	auth(t, at, key, "X-Api-Key", "bob").want(t, 200, "")
	auth(t, at, key, "X-Api-Key", "bob&cost=0&limit=9/s").want(t, 200, "") // one key like any other
	for _, again := range []string{"ada", "bob", "bob&cost=0&limit=9/s"} {
		if got := auth(t, at, key, "X-Api-Key", again); got.status != 429 {
			t.Errorf("X-Api-Key: %s for the second time: got %+v, want 429", again, got)
		}
	}
	auth(t, at, key).want(t, 200, "")
	if got := auth(t, at, key, "X-Other", "x"); got.status != 429 {
		t.Errorf("without the header for the second time: got %+v, want that they share a key", got)
	}
	auth(t, at, "limit=1/1m&key=X-Api-Key", "X-Api-Key", "ada").want(t, 200, "") // not without being told
}

// A client can write what it wants into X-Forwarded-For, but for the last address.
func TestOnlyTheNearestAddressCounts(t *testing.T) {
	at := open(t, stillMemory())
	for _, query := range []string{"limit=1/1m&key=header:x-forwarded-for", "domain=edge&remote_address=header:X-Forwarded-For&cost=3"} {
		auth(t, at, query, "X-Forwarded-For", "1.1.1.1, 10.0.0.9").want(t, 200, "")
		for _, spoofed := range []string{"10.0.0.9", "2.2.2.2,10.0.0.9", "3.3.3.3 ,  10.0.0.9 "} {
			if got := auth(t, at, query, "X-Forwarded-For", spoofed); got.status != 429 {
				t.Errorf("%s: X-Forwarded-For: %s: got %+v, want 429", query, spoofed, got)
			}
		}
		if got := auth(t, at, query, "X-Forwarded-For", "2.2.2.2", "X-Forwarded-For", "10.0.0.9"); got.status != 429 {
			t.Errorf("%s: in two lines: got %+v, want 429", query, got)
		}
		auth(t, at, query, "X-Forwarded-For", "10.0.0.9, 10.0.0.8").want(t, 200, "")
	}
}

// However long a client's header is, it is counted, and no store gets to see a key
// of more than 4 KiB.
func TestALongHeaderIsCounted(t *testing.T) {
	memory := stillMemory()
	at := open(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if len(r.Key) > 4<<10 {
			t.Errorf("the store is asked about a key of %d bytes", len(r.Key))
		}
		return memory.Take(ctx, r)
	}))
	long := strings.Repeat("k", 9000)
	for _, query := range []string{"limit=1/1m&key=header:X-Api-Key", "domain=edge&tenant=header:X-Api-Key&cost=5"} {
		auth(t, at, query, "X-Api-Key", long).want(t, 200, "")
		if got := auth(t, at, query, "X-Api-Key", long); got.status != 429 {
			t.Errorf("%s: a header of 9000 bytes for the second time: got %+v, want 429", query, got)
		}
		auth(t, at, query, "X-Api-Key", long+"k").want(t, 200, "")
	}
}

func TestMalformedVisits(t *testing.T) {
	at := open(t, stillMemory())
	for _, c := range []struct{ query, kind, parameter, detail string }{
		{"", httpapi.ProblemMalformed, "key", "want key and limit, or domain"},
		{"limit=1/s", httpapi.ProblemMalformed, "key", "want key and limit"},
		{"key=a", httpapi.ProblemMalformed, "limit", "want a limit"},
		{"limit=1/s&key=", httpapi.ProblemBadKey, "key", "is empty"},
		{"limit=nine&key=a", httpapi.ProblemBadLimit, "limit", "want a count"},
		{"limit=1/s&key=a&key=b", httpapi.ProblemMalformed, "key", "twice"},
		{"limit=1/s&limit=9/s&key=a", httpapi.ProblemMalformed, "limit", "twice"},
		{"limit=1/s&key=a&burst=2", httpapi.ProblemMalformed, "burst", "is not known without a domain"},
		{"limit=1/s&key=a&cost=-1", httpapi.ProblemBadCost, "cost", "0 or more"},
		{"limit=1/s&key=a&cost=one", httpapi.ProblemBadCost, "cost", "whole number"},
		{"limit=1/s&key=a&deny=200", httpapi.ProblemMalformed, "deny", "from 400 to 599"},
		{"limit=1/s&key=a&deny=999", httpapi.ProblemMalformed, "deny", "from 400 to 599"},
		{"limit=1/s&key=a&max_delay=1m", httpapi.ProblemMalformed, "max_delay", "nothing after"},
		{"limit=1/s&key=a&max_delay=Inf", httpapi.ProblemMalformed, "max_delay", "want a number"},
		{"limit=1/s&key=a&max_delay=-1", httpapi.ProblemBadCost, "max_delay", "must not be negative"},
		{"domain=edge&key=a", httpapi.ProblemMalformed, "key", "does not go together"},
		{"domain=edge", httpapi.ProblemMalformed, "descriptors", "want at least one"},
		{"domain=&a=b", httpapi.ProblemMalformed, "domain", "want a domain"},
		{"domain=edge&=b", httpapi.ProblemMalformed, "", "has no name"},
		{"domain=edge&a=%zz", httpapi.ProblemMalformed, "", "invalid URL escape"},
		{"domain=edge" + strings.Repeat("&a=b", 17), httpapi.ProblemMalformed, "", "at most 16"},
		{"domain=edge" + strings.Repeat("&a=b", 2000), httpapi.ProblemMalformed, "", "more than 20 parameters"},
	} {
		got := auth(t, at, c.query)
		if p := got.problem(t); got.status != 400 || p.Type != c.kind || p.Parameter != c.parameter || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("?%.80s\ngot  %d %+v\nwant 400 %s about %q: %q", c.query, got.status, p, c.kind, c.parameter, c.detail)
		}
	}
}

// visit asks a door that is not on a network, so that time can be held.
func visit(ctx context.Context, door http.Handler, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	door.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/auth?"+query, strings.NewReader("a body")))
	return w
}

// What a leaky bucket admits with a delay is held for exactly that long.
func TestRequestsAreHeldUntilTheirTurn(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/100ms leaky-bucket burst=3") + "&key=k",
		"domain=edge&line=k",
	} {
		synctest.Test(t, func(t *testing.T) {
			door := newDoor(t, judgeOf(t, penstock.NewMemory(nil), nil), nil)
			begin := time.Now()
			for i := range 3 {
				go func() {
					// Those who come first are first.
					time.Sleep(time.Duration(i) * time.Millisecond)
					w := visit(context.Background(), door, query)
					held := time.Since(begin)
					if want := time.Duration(i) * 100 * time.Millisecond; w.Code != 200 || held != want {
						t.Errorf("%s: request %d: got %d after %v, want 200 after %v", query, i, w.Code, held, want)
					}
				}()
			}
			time.Sleep(10 * time.Millisecond)
			if w := visit(context.Background(), door, query); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: the fourth of three: got %d %v, want 429", query, w.Code, w.Header())
			}
			time.Sleep(time.Second)
		})
	}
}

// Who leaves before its turn gives its place to others.
func TestWhoLeavesGivesBack(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/1h leaky-bucket burst=2") + "&key=k",
		"limit=1/1h&key=k&max_delay=7200",
		"domain=edge&queue=k",
	} {
		synctest.Test(t, func(t *testing.T) {
			door := newDoor(t, judgeOf(t, penstock.NewMemory(nil), nil), &httpapi.Options{MaxHold: 2 * time.Hour})
			visit(context.Background(), door, query)
			ctx, leave := context.WithCancel(context.Background())
			gone := make(chan struct{})
			go func() {
				visit(ctx, door, query)
				close(gone)
			}()
			time.Sleep(time.Second)
			leave()
			<-gone
			begin := time.Now()
			w := visit(context.Background(), door, query)
			if held := time.Since(begin); w.Code != 200 || held != time.Hour-time.Second {
				t.Errorf("%s: got %d after %v, want the place of the one who left, after 59m59s", query, w.Code, held)
			}
		})
	}
}

// Nobody is held for longer than the door holds, and nobody who is turned away is
// charged.
func TestNobodyIsHeldForTooLong(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/1h leaky-bucket burst=3") + "&key=k",
		"domain=edge&queue=k",
		"limit=1/1h&key=k&max_delay=7200",
	} {
		synctest.Test(t, func(t *testing.T) {
			door := newDoor(t, judgeOf(t, penstock.NewMemory(nil), nil), &httpapi.Options{MaxHold: time.Minute})
			visit(context.Background(), door, query)
			for range 5 {
				begin := time.Now()
				w := visit(context.Background(), door, query)
				if time.Since(begin) != 0 || w.Code != 429 || w.Header().Get("Retry-After") != "3540" {
					t.Fatalf("%s: got %d %v after %v, want 429 at once, to come back in 59 minutes", query, w.Code, w.Header(), time.Since(begin))
				}
			}
			time.Sleep(59 * time.Minute)
			begin := time.Now()
			if w := visit(context.Background(), door, query); w.Code != 200 || time.Since(begin) != time.Minute {
				t.Errorf("%s: 59 minutes later: got %d after %v, want 200 after a minute", query, w.Code, time.Since(begin))
			}
		})
	}
}

// broken is a store that cannot decide.
var broken = penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.ErrUnavailable
})

func TestAStoreThatCannotDecide(t *testing.T) {
	at := serve(t, newDoor(t, judgeOf(t, broken, nil), nil))
	for _, got := range []answer{
		auth(t, at, "limit=1/s&key=a"),
		auth(t, at, "domain=edge&tenant=x"),
		post(t, at, `{"key":"a","limit":"1/s"}`),
		post(t, at, byRules("tenant=x")),
		post(t, at, `{"mode":"each","requests":[{"key":"a","limit":"1/s"}]}`),
		post(t, at, `{"mode":"all","requests":[{"key":"a","limit":"1/s"}]}`),
		post(t, at, `{"mode":"each","requests":[`+byRules("tenant=x")+`]}`),
		post(t, at, `{"mode":"all","requests":[`+byRules("tenant=x")+`]}`),
	} {
		if p := got.problem(t); got.status != 503 || p.Type != httpapi.ProblemUnavailable {
			t.Errorf("got %+v, want 503", got)
		}
	}
}

func TestNoRulesAreLoaded(t *testing.T) {
	at := serve(t, newDoor(t, engine.New(stillMemory(), nil), nil))
	for _, got := range []answer{auth(t, at, "domain=edge&tenant=x"), post(t, at, byRules("tenant=x"))} {
		if p := got.problem(t); got.status != 503 || p.Type != httpapi.ProblemNoRules {
			t.Errorf("got %+v, want 503", got)
		}
	}
	each := post(t, at, `{"mode":"each","requests":[{"key":"a","limit":"1/s"},`+byRules("tenant=x")+`]}`)
	if p := each.problem(t); each.status != 503 || p.Type != httpapi.ProblemNoRules {
		t.Errorf("a list: got %+v, want 503", each)
	}
	auth(t, at, "limit=1/s&key=a").want(t, 200, "") // which the list has not taken
}
