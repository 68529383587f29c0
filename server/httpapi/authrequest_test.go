package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// auth sends a request to /v1/auth. The headers are names and values in turn.
func auth(t testing.TB, base, query string, header ...string) response {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return do(t, http.MethodGet, base+"/v1/auth?"+query, "", h)
}

func TestAuthRequestDeniesWhenExhausted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		for _, query := range []string{
			"limit=2/1m&key=10.0.0.1",
			"domain=edge&remote_address=10.0.0.1&cost=1",
		} {
			first := auth(t, base, query)
			first.want(t, 200, "")
			if first.header.Get("Ratelimit") == "" || first.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: got %v, want RateLimit and Cache-Control: no-store", query, first.header)
			}
			auth(t, base, query)
			if strings.HasPrefix(query, "domain") {
				auth(t, base, query)
			}
			denied := auth(t, base, query)
			if p := denied.problem(t); denied.status != 429 || denied.header.Get("Retry-After") == "" ||
				p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" {
				t.Errorf("%s: got %+v, want 429 with Retry-After", query, denied)
			}
			if got := auth(t, base, query+"&deny=403"); got.status != 403 || got.header.Get("Retry-After") == "" {
				t.Errorf("%s, denied with 403: got %+v", query, got)
			}
		}
	})
}

func TestAuthRequestAcceptsAnyMethod(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"} {
		if got := do(t, method, base+"/v1/auth?limit=100/1m&key=k", "", nil); got.status != 200 {
			t.Errorf("%s: got %+v, want 200", method, got)
		}
	}
	if got := auth(t, base, "limit=100/1m&key=k&cost=0"); got.header.Get("Ratelimit") != `"default";r=92;t=56` {
		t.Errorf("after 8 requests of 100: got %v", got.header)
	}
}

func TestAuthRequestKeyFromHeader(t *testing.T) {
	base := serveStore(t, frozenMemory())
	key := "limit=1/1m&key=header:X-Api-Key"
	auth(t, base, key, "X-Api-Key", "ada").want(t, 200, "")
	auth(t, base, key, "X-Api-Key", "bob").want(t, 200, "")
	auth(t, base, key, "X-Api-Key", "bob&cost=0&limit=9/s").want(t, 200, "") // an ordinary key, not parameters
	for _, again := range []string{"ada", "bob", "bob&cost=0&limit=9/s"} {
		if got := auth(t, base, key, "X-Api-Key", again); got.status != 429 {
			t.Errorf("second request with X-Api-Key: %s: got %+v, want 429", again, got)
		}
	}
	auth(t, base, key).want(t, 200, "")
	if got := auth(t, base, key, "X-Other", "x"); got.status != 429 {
		t.Errorf("second request without the header: got %+v, want 429: they share a key", got)
	}
	auth(t, base, "limit=1/1m&key=X-Api-Key", "X-Api-Key", "ada").want(t, 200, "") // without header: the text is the key
}

// Applications differ in which line of a repeated header they use, so a client that
// repeats it must not get a second key.
func TestAuthRequestRejectsRepeatedHeader(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, c := range []struct{ query, parameter string }{
		{"limit=3/1h&key=header:X-Api-Key", "key"},
		{"domain=edge&tenant=header:x-api-key", "tenant"},
	} {
		for i, lines := range [][]string{{"alice", "0"}, {"1", "alice"}, {"alice", "alice"}, {"", "alice"}, {"alice", ""}, {"2", "alice", "3"}} {
			var header []string
			for _, line := range lines {
				header = append(header, "X-Api-Key", line)
			}
			got := auth(t, base, c.query, header...)
			if denied := auth(t, base, "deny=403&"+c.query, header...); denied.status != 403 {
				t.Errorf("%s with deny=403: got %+v, want 403", c.query, denied)
			}
			if p := got.problem(t); got.status != 429 || p.Type != httpapi.ProblemBadKey || p.Parameter != c.parameter || !strings.Contains(p.Detail, "lines, want one") {
				t.Errorf("%s: %d: lines %q: got %+v, want 429", c.query, i, lines, got)
			}
		}
		peek := auth(t, base, c.query+"&cost=0", "X-Api-Key", "alice")
		if peek.want(t, 200, ""); !strings.Contains(peek.header.Get("Ratelimit"), "r=3;") && !strings.Contains(peek.header.Get("Ratelimit"), "r=5;") {
			t.Errorf("%s: after the rejected requests: got %v, want all units", c.query, peek.header)
		}
	}
}

// Applications behind CGI or WSGI take X_Api_Key for X-Api-Key, so a client that sends it
// must not get the key of the other, or of none.
func TestAuthRequestRejectsHeaderWithUnderscores(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, c := range []struct {
		name, other string
		want        int
	}{
		{"X-Api-Key", "X_Api_Key", 429},
		{"X-Api-Key", "x_api-key", 429},
		{"X_Api_Key", "X-Api-Key", 429},
		{"X-Api-Key", "X-Api-Keys", 200},
		{"X-Api-Key", "X-Api_Kez", 200},
		{"X_Api_Key", "x_api_other", 200},
	} {
		query := "limit=1/1h&key=header:" + c.name
		for _, header := range [][]string{{c.name, c.other + " beside", c.other, "alice"}, {c.other, "alice"}} {
			got := auth(t, base, query, header...)
			if got.status != c.want || c.want == 429 && !strings.Contains(got.problem(t).Detail, "some applications") {
				t.Errorf("%s with %q: got %+v, want %d", query, header, got, c.want)
			}
			auth(t, base, query+"&cost=0", c.name, "alice").want(t, 200, "")
		}
		base = serveStore(t, frozenMemory())
	}
}

// A client can forge all of X-Forwarded-For but the last address.
func TestAuthRequestUsesLastForwardedAddress(t *testing.T) {
	for _, query := range []string{
		"limit=1/1m&key=address:x-forwarded-for", "domain=edge&remote_address=address:X-Forwarded-For&cost=3",
		"limit=1/1m&key=header:x-forwarded-for", "domain=edge&remote_address=header:X-Forwarded-For&cost=3",
	} {
		base := serveStore(t, frozenMemory())
		auth(t, base, query, "X-Forwarded-For", "1.1.1.1, 10.0.0.9").want(t, 200, "")
		for _, spoofed := range []string{"10.0.0.9", "2.2.2.2,10.0.0.9", "3.3.3.3 ,  10.0.0.9 "} {
			if got := auth(t, base, query, "X-Forwarded-For", spoofed); got.status != 429 {
				t.Errorf("%s: X-Forwarded-For: %s: got %+v, want 429", query, spoofed, got)
			}
		}
		if got := auth(t, base, query, "X-Forwarded-For", "2.2.2.2", "X-Forwarded-For", "10.0.0.9"); got.status != 429 {
			t.Errorf("%s: in two lines: got %+v, want 429", query, got)
		}
		auth(t, base, query, "X-Forwarded-For", "10.0.0.9, 10.0.0.8").want(t, 200, "")
	}
}

// A client is one key, however its address is written. It has a whole IPv6 /64.
func TestAuthRequestNormalizesAddresses(t *testing.T) {
	trusted := &httpapi.Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, c := range []struct{ first, again, other string }{
		{"9.9.9.1", "9.9.9.1:1234", "9.9.9.2"},
		{"9.9.9.1:99", "::ffff:9.9.9.1", "::ffff:9.9.9.2"},
		{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"},
		{"2001:db8::1", "2001:0DB8::ffff:1", "2001:db8:1::1"},
		{"2001:db8::1", "[2001:db8::3]:443", "[2001:db8:0:1::3]:443"},
		{"2001:db8::1", "2001:db8::1%eth0", "fe80::1"},
	} {
		for _, query := range []string{"limit=1/1m&key=", "domain=edge&cost=3&remote_address="} {
			base := serve(t, newServer(t, newEngine(t, frozenMemory(), nil), trusted))
			byHeader := func(value string) response {
				return auth(t, base, query+"address:X-Forwarded-For", "X-Forwarded-For", value)
			}
			byHeader(c.first).want(t, 200, "")
			for _, again := range []string{c.again, "5.5.5.5, " + c.again, c.again + ", 10.0.0.2", "5.5.5.5,\t" + c.again + ",10.0.0.3 , ::ffff:10.0.0.2"} {
				if got := byHeader(again); got.status != 429 {
					t.Errorf("%s: %s and then %s: got %+v, want 429", query, c.first, again, got)
				}
			}
			if got := auth(t, base, query+"address:X-Real-IP", "X-Real-Ip", c.again); got.status != 429 {
				t.Errorf("%s: %s and then X-Real-IP: %s: got %+v, want 429", query, c.first, c.again, got)
			}
			if got := auth(t, base, query+"address:"+url.QueryEscape(c.again)); got.status != 429 {
				t.Errorf("%s: %s and then %s in the URL: got %+v, want 429", query, c.first, c.again, got)
			}
			byHeader(c.other).want(t, 200, "")
		}
	}
}

// Without the client's address there is no key: that of the proxy would be shared by all
// its clients.
func TestAuthRequestRejectsHeaderWithoutAddress(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, c := range []struct {
		query, parameter string
	}{
		{"limit=1/1m&key=address:X-Forwarded-For", "key"},
		{"limit=1/1m&key=header:X-Forwarded-For", "key"},
		{"domain=edge&remote_address=address:X-Forwarded-For", "remote_address"},
	} {
		for _, value := range []string{"", "unknown", "9.9.9.1, unknown", `"9.9.9.1"`, "for=9.9.9.1", "localhost", "9.9.9.01", strings.Repeat("9", 5000)} {
			got := auth(t, base, c.query, "X-Forwarded-For", value)
			if p := got.problem(t); got.status != 429 || p.Type != httpapi.ProblemBadKey || p.Parameter != c.parameter || len(p.Detail) > 300 {
				t.Errorf("%s: X-Forwarded-For: %.80s: got %+v, want 429", c.query, value, got)
			}
		}
		if got := auth(t, base, c.query); got.status != 429 || !strings.Contains(got.problem(t).Detail, "missing") {
			t.Errorf("%s without the header: got %+v, want 429", c.query, got)
		}
	}
	for _, text := range []string{"", "unix:", "9.9.9", "[", "not a header"} {
		if got := auth(t, base, "limit=1/1m&key=address:"+url.QueryEscape(text)); got.status != 429 {
			t.Errorf("address:%s: got %+v, want 429", text, got)
		}
	}
}

// A header of any length is counted, and the store never sees a key of more than
// 4 KiB.
func TestAuthRequestShortensLongKeys(t *testing.T) {
	memory := frozenMemory()
	base := serveStore(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if len(r.Key) > 4<<10 {
			t.Errorf("the store got a key of %d bytes, want at most 4096", len(r.Key))
		}
		return memory.Take(ctx, r)
	}))
	long := strings.Repeat("k", 9000)
	for _, query := range []string{"limit=1/1m&key=header:X-Api-Key", "domain=edge&tenant=header:X-Api-Key&cost=5"} {
		auth(t, base, query, "X-Api-Key", long).want(t, 200, "")
		if got := auth(t, base, query, "X-Api-Key", long); got.status != 429 {
			t.Errorf("%s: second request with a header of 9000 bytes: got %+v, want 429", query, got)
		}
		auth(t, base, query, "X-Api-Key", long+"k").want(t, 200, "")
	}
}

func TestAuthRequestRejectsMalformedURLs(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, c := range []struct{ query, kind, parameter, detail string }{
		{"", httpapi.ProblemMalformed, "key", "want key and limit, or domain and entries"},
		{"limit=1/s", httpapi.ProblemMalformed, "key", "want key and limit, or domain and entries"},
		{"key=a", httpapi.ProblemMalformed, "limit", "want a limit"},
		{"limit=1/s&key=", httpapi.ProblemBadKey, "key", "must not be empty"},
		{"limit=nine&key=a", httpapi.ProblemBadLimit, "limit", "want a count"},
		{"limit=1/s&key=a&key=b", httpapi.ProblemMalformed, "key", "duplicate"},
		{"limit=1/s&limit=9/s&key=a", httpapi.ProblemMalformed, "limit", "duplicate"},
		{"limit=5/30s+concurrent&key=a", httpapi.ProblemMalformed, "limit", "a concurrent limit needs to know when a request has ended"},
		{"domain=edge&report=a&request_id=x", httpapi.ProblemMalformed, "domain", "rule edge/report: a concurrent limit needs to know"},
		{"limit=1/s&key=a&burst=2", httpapi.ProblemMalformed, "burst", "unknown parameter"},
		{"limit=1/s&key=a&cost=-1", httpapi.ProblemBadCost, "cost", "0 or more"},
		{"limit=1/s&key=a&cost=one", httpapi.ProblemBadCost, "cost", "whole number"},
		{"limit=1/s&key=a&deny=200", httpapi.ProblemMalformed, "deny", "from 400 to 599"},
		{"limit=1/s&key=a&deny=999", httpapi.ProblemMalformed, "deny", "from 400 to 599"},
		{"limit=1/s&key=a&max_delay=1m", httpapi.ProblemMalformed, "max_delay", "want the end"},
		{"limit=1/s&key=a&max_delay=Inf", httpapi.ProblemMalformed, "max_delay", "want a number"},
		{"limit=1/s&key=a&max_delay=-1", httpapi.ProblemBadCost, "max_delay", "must not be negative"},
		{"domain=edge&key=a", httpapi.ProblemMalformed, "key", "cannot be combined"},
		{"domain=edge", httpapi.ProblemMalformed, "domain", "want an entry beside the domain"},
		{"domain=&a=b", httpapi.ProblemMalformed, "domain", "want a domain"},
		{"domain=edge&=b", httpapi.ProblemMalformed, "", "has no name"},
		{"domain=edge&a=%zz", httpapi.ProblemMalformed, "", "invalid URL escape"},
		{"domain=edge" + strings.Repeat("&a=b", 17), httpapi.ProblemMalformed, "", "at most 16"},
		{"domain=edge" + strings.Repeat("&a=b", 2000), httpapi.ProblemMalformed, "", "more than 64 parameters"},
	} {
		got := auth(t, base, c.query)
		if p := got.problem(t); got.status != 400 || p.Type != c.kind || p.Parameter != c.parameter || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("?%.80s\ngot  %d %+v\nwant 400 %s at %q: %q", c.query, got.status, p, c.kind, c.parameter, c.detail)
		}
	}
}

// authDirectly calls the handler without a network, for tests with a fake clock.
func authDirectly(ctx context.Context, server http.Handler, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/auth?"+query, strings.NewReader("a body")))
	return w
}

// A request that a leaky bucket admits with a delay is held for exactly that long.
func TestAuthRequestHoldsForDelay(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/100ms leaky-bucket burst=3") + "&key=k",
		"domain=edge&line=k",
	} {
		synctest.Test(t, func(t *testing.T) {
			server := newServer(t, newEngine(t, penstock.NewMemory(nil), nil), nil)
			begin := time.Now()
			for i := range 3 {
				go func() {
					// One millisecond apart, for a fixed order.
					time.Sleep(time.Duration(i) * time.Millisecond)
					w := authDirectly(context.Background(), server, query)
					held := time.Since(begin)
					if want := time.Duration(i) * 100 * time.Millisecond; w.Code != 200 || held != want {
						t.Errorf("%s: request %d: got %d after %v, want 200 after %v", query, i, w.Code, held, want)
					}
				}()
			}
			time.Sleep(10 * time.Millisecond)
			if w := authDirectly(context.Background(), server, query); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: fourth request: got %d %v, want 429", query, w.Code, w.Header())
			}
			time.Sleep(time.Second)
		})
	}
}

func TestAuthRequestRefundsOnDisconnect(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/1h leaky-bucket burst=2") + "&key=k",
		"limit=1/1h&key=k&max_delay=7200",
		"domain=edge&queue=k",
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			requests, err := requestlog.New(requestlog.Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Denials: penstock.PerSecond(9)})
			if err != nil {
				t.Fatal(err)
			}
			server := newServer(t, newEngine(t, penstock.NewMemory(nil), nil), &httpapi.Options{MaxHold: 2 * time.Hour, Requests: requests})
			authDirectly(context.Background(), server, query)
			ctx, disconnect := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				authDirectly(ctx, server, query)
				close(done)
			}()
			time.Sleep(time.Second)
			disconnect()
			<-done
			begin := time.Now()
			w := authDirectly(context.Background(), server, query)
			if held := time.Since(begin); w.Code != 200 || held != time.Hour-time.Second {
				t.Errorf("%s: got %d after %v, want 200 after 59m59s, in place of the disconnected request", query, w.Code, held)
			}
			if log.Len() > 0 {
				t.Errorf("%s: no request was denied or invalid, and the log has %s", query, &log)
			}
		})
	}
}

// A held request that is given up refunds neither what its limits have refilled meanwhile, which others may have
// taken, nor what a quota has not granted.
func TestAuthRequestRefundsOnDisconnectWhatIsCharged(t *testing.T) {
	for _, other := range []struct {
		query string
		takes int // that pass after the other limit has refilled
	}{{"tenant=a", 5}, {"plan=gold&and&team=a", 1}} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine(t, penstock.NewMemory(nil), nil)
			server := newServer(t, e, &httpapi.Options{MaxHold: 2 * time.Hour})
			query := "domain=edge&queue=k&and&" + other.query
			authDirectly(context.Background(), server, query)
			ctx, disconnect := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				authDirectly(ctx, server, query)
				close(done)
			}()
			time.Sleep(2 * time.Minute)
			first, _, _ := strings.Cut(other.query, "&")
			for i := range other.takes {
				if w := authDirectly(context.Background(), server, "domain=edge&"+first); w.Code != 200 {
					t.Errorf("%s: request %d: got %d, want 200", first, i, w.Code)
				}
			}
			disconnect()
			<-done
			if w := authDirectly(context.Background(), server, "domain=edge&"+first); w.Code != 429 {
				t.Errorf("%s: got %d after another request was given up, want 429", first, w.Code)
			}
		})
	}
}

// A request with a delay above MaxHold is denied at once, and not charged.
func TestAuthRequestDeniesLongDelay(t *testing.T) {
	for _, query := range []string{
		"limit=" + url.QueryEscape("1/1h leaky-bucket burst=3") + "&key=k",
		"domain=edge&queue=k",
		"limit=1/1h&key=k&max_delay=7200",
	} {
		synctest.Test(t, func(t *testing.T) {
			server := newServer(t, newEngine(t, penstock.NewMemory(nil), nil), &httpapi.Options{MaxHold: time.Minute})
			authDirectly(context.Background(), server, query)
			for range 5 {
				begin := time.Now()
				w := authDirectly(context.Background(), server, query)
				if time.Since(begin) != 0 || w.Code != 429 || w.Header().Get("Retry-After") != "3540" {
					t.Fatalf("%s: got %d %v after %v, want 429 at once with Retry-After: 3540", query, w.Code, w.Header(), time.Since(begin))
				}
			}
			time.Sleep(59 * time.Minute)
			begin := time.Now()
			if w := authDirectly(context.Background(), server, query); w.Code != 200 || time.Since(begin) != time.Minute {
				t.Errorf("%s: 59 minutes later: got %d after %v, want 200 after a minute", query, w.Code, time.Since(begin))
			}
		})
	}
}

// unavailableStore is a store that never decides.
var unavailableStore = penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.ErrUnavailable
})

// busyStore is a store that answers others.
var busyStore = penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
	return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrBusy, context.DeadlineExceeded)
})

func TestServerStoreUnavailableIs503(t *testing.T) {
	checkUndecided(t, unavailableStore, httpapi.ProblemUnavailable)
}

func TestServerStoreBusyIs503(t *testing.T) { checkUndecided(t, busyStore, httpapi.ProblemBusy) }

// checkUndecided checks the answers of a server whose store decides nothing.
func checkUndecided(t *testing.T, store penstock.Store, kind string) {
	t.Helper()
	base := serve(t, newServer(t, newEngine(t, store, nil), nil))
	for _, got := range []response{
		auth(t, base, "limit=1/s&key=a"),
		auth(t, base, "domain=edge&tenant=x"),
		post(t, base, `{"key":"a","limit":"1/s"}`),
		post(t, base, byRules("tenant=x")),
		post(t, base, `{"mode":"each","requests":[{"key":"a","limit":"1/s"}]}`),
		post(t, base, `{"mode":"all","requests":[{"key":"a","limit":"1/s"}]}`),
		post(t, base, `{"mode":"each","requests":[`+byRules("tenant=x")+`]}`),
		post(t, base, `{"mode":"all","requests":[`+byRules("tenant=x")+`]}`),
	} {
		if p := got.problem(t); got.status != 503 || p.Type != kind {
			t.Errorf("got %+v, want 503 and %s", got, kind)
		}
	}
}

func TestServerWithoutRules(t *testing.T) {
	base := serve(t, newServer(t, engine.New(frozenMemory(), nil), nil))
	for _, got := range []response{auth(t, base, "domain=edge&tenant=x"), post(t, base, byRules("tenant=x"))} {
		if p := got.problem(t); got.status != 503 || p.Type != httpapi.ProblemNoRules {
			t.Errorf("got %+v, want 503", got)
		}
	}
	each := post(t, base, `{"mode":"each","requests":[{"key":"a","limit":"1/s"},`+byRules("tenant=x")+`]}`)
	if p := each.problem(t); each.status != 503 || p.Type != httpapi.ProblemNoRules {
		t.Errorf("a list: got %+v, want 503", each)
	}
	auth(t, base, "limit=1/s&key=a").want(t, 200, "") // not charged by the list
}

// Several descriptors of one question are granted all or none.
func TestAuthRequestSeveralDescriptors(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		const both = "domain=edge&tenant=header:X-User&and&remote_address=address"
		for range 3 {
			auth(t, base, both, "X-User", "ada", "X-Forwarded-For", "10.0.0.1").want(t, 200, "")
		}
		if got := auth(t, base, both, "X-User", "ada", "X-Forwarded-For", "10.0.0.1"); got.status != 429 || got.problem(t).ViolatedPolicies[0] != "edge/remote_address" {
			t.Errorf("got %+v, want a denial by the address", got)
		}
		for range 2 { // the denied request has not taken from the tenant
			auth(t, base, both, "X-User", "ada", "X-Forwarded-For", "10.0.0.2").want(t, 200, "")
		}
		if got := auth(t, base, both, "X-User", "ada", "X-Forwarded-For", "10.0.0.2"); got.status != 429 || got.problem(t).ViolatedPolicies[0] != "edge/tenant" {
			t.Errorf("got %+v, want a denial by the tenant", got)
		}
	})
}

// A list of the rule file stands for its descriptors, whose values come from the client's request.
func TestAuthRequestList(t *testing.T) {
	base := serveStore(t, frozenMemory())
	left := func(tenant, address, page string) {
		t.Helper()
		for query, want := range map[string]string{"tenant=ada": tenant, "remote_address=10.0.0.1": address, "page=/login&kind=web": page} {
			if got := auth(t, base, "cost=0&domain=edge&"+query); !strings.Contains(got.header.Get("Ratelimit"), "r="+want+";") && want != "all" {
				t.Errorf("%s: got %v, want %s left", query, got.header, want)
			}
		}
	}
	for _, uri := range []string{"/login?a=b", "//x/../%6cogin"} {
		auth(t, base, "domain=edge&list=gate", "Cookie", "a=b; sid=ada", "X-Forwarded-For", "10.0.0.1", "X-Forwarded-Uri", uri).want(t, 200, "")
	}
	left("3", "1", "2")
	auth(t, base, "domain=edge&tenant=query:t&and&page=path&kind=web", "X-Forwarded-Uri", "/login?x=1&t=ad%61").want(t, 200, "")
	left("2", "1", "1")
	auth(t, base, "domain=edge&tenant=query:t").want(t, 429, auth(t, base, "domain=edge&tenant=query:t").body) // the proxy sends no URL
	auth(t, base, "domain=edge&tenant=query:none", "X-Forwarded-Uri", "/").want(t, 200, "")
	left("2", "1", "1")
}

// Values that applications may read in two ways are denials, mistakes in the URL errors, and none is charged.
func TestAuthRequestRejectsHostileDescriptors(t *testing.T) {
	base := serveStore(t, frozenMemory())
	const sid, uri, address = "domain=edge&tenant=cookie:sid", "domain=edge&tenant=query:t", "remote_address=10.0.0.1"
	for _, c := range []struct {
		query            string
		header           []string
		status           int
		parameter, words string
	}{
		{sid + "&and&" + address, []string{"Cookie", "sid=a; sid=b"}, 429, "tenant", "2 of them, want one"},
		{sid + "&and&" + address, []string{"Cookie", "sid=a", "Cookie", "sid=a"}, 429, "tenant", "2 of them, want one"},
		{address + "&and&" + uri, []string{"X-Forwarded-Uri", "/?t=1&t=2"}, 429, "tenant", "2 of them, want one"},
		{address + "&and&" + uri, []string{"X-Forwarded-Uri", "/?t=%zz"}, 429, "tenant", "bad query"},
		{address + "&and&" + uri, []string{"X-Forwarded-Uri", "/?" + strings.Repeat("&a", 1001)}, 429, "tenant", "more than 1000"},
		{address + "&and&" + uri, []string{"X-Forwarded-Uri", "t=1"}, 429, "tenant", "want the client's URL"},
		{address + "&and&" + uri, []string{"X-Forwarded-Uri", "/", "X-Forwarded-Uri", "/"}, 429, "tenant", "2 lines"},
		{address + "&and&domain=edge&page=path", nil, 429, "page", "want the client's URL"},
		{"domain=edge&" + address + strings.Repeat("&and&"+address, 16), nil, 400, "and", "17 descriptors, want at most 16"},
		{"domain=edge&" + address + strings.Repeat("&and&"+address, 100), nil, 400, "", "more than 64 parameters"},
		{"domain=edge&" + address + "&and", nil, 400, "and", "before and after it"},
		{"domain=edge&and", nil, 400, "and", "before and after it"},
		{"domain=edge&list=gone&deny=403", nil, 400, "list", "have no list"},
		{"domain=gone&list=gate", nil, 400, "list", "have no list"},
		{"list=gate", nil, 400, "list", "have no list"},
		{"domain=edge&list=gate&" + address, nil, 400, "list", "cannot be combined"},
		{"domain=edge&list=gate&key=k&limit=1/s", []string{"X-Forwarded-For", "10.0.0.1", "X-Forwarded-Uri", "/"}, 400, "key", "cannot be combined"},
		{"key=k&limit=1/s&and&" + address, nil, 400, "remote_address", "need a domain"},
	} {
		got := auth(t, base, c.query, c.header...)
		if p := got.problem(t); got.status != c.status || p.Parameter != c.parameter || !strings.Contains(p.Detail, c.words) {
			t.Errorf("%.200s with %.100q: got %+v, want %d about %s: %s", c.query, c.header, got, c.status, c.parameter, c.words)
		}
	}
	huge, err := http.NewRequestWithContext(t.Context(), "GET", base+"/v1/auth?"+sid+"&and&"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	huge.Header.Set("Cookie", "sid="+strings.Repeat("x", 64<<10))
	if got, err := http.DefaultClient.Do(huge); err != nil || got.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a cookie of 64 KiB: got %v, %v, want 431", got, err)
	} else {
		_ = got.Body.Close()
	}
	auth(t, base, sid, "Cookie", "sid="+strings.Repeat("x", 10<<10)).want(t, 200, "") // its hash is counted
	if got := auth(t, base, "domain=edge&cost=0&"+address); !strings.Contains(got.header.Get("Ratelimit"), "r=3;") {
		t.Errorf("afterwards: got %v, want all units of the address", got.header)
	}
}
