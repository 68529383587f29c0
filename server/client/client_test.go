package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/engine"
)

func TestClientWithLimiter(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	lim, err := penstock.New(c, penstock.PerHour(2))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		d, err := lim.Allow(t.Context(), "user:42")
		if err != nil || d.Allowed != want {
			t.Errorf("request %d: got %v, %v, want allowed: %t", i, d, err, want)
		}
	}
	if d, err := lim.AllowN(t.Context(), "user:42", 9); err != nil || d.RetryAfter != penstock.Never {
		t.Errorf("cost 9 of 2: got %v, %v, want never", d, err)
	}
}

// The response to a request by rules names the rules that decided.
func TestClientDoByRules(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "shop.yaml", Text: []byte(
		"domain: shop\ndescriptors: [{key: user, limit: 1/1h}, {key: seen, limit: 1/1h, shadow_mode: true}]\n")})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(set)
	c := newClient(t, serve(t, e))
	request := client.TakeRequest{Domain: "shop", Cost: 1}
	for _, key := range []string{"user", "seen", "unruled"} {
		request.Descriptors = append(request.Descriptors, client.Descriptor{Entries: []client.Entry{{Key: key, Value: "42"}}})
	}
	for i, allowed := range []bool{true, false} {
		got, err := c.Do(t.Context(), request)
		if err != nil || len(got.Descriptors) != 3 || !json.Valid(got.JSON) {
			t.Fatalf("request %d: got %+v, %v", i, got, err)
		}
		user, seen, unruled := got.Descriptors[0], got.Descriptors[1], got.Descriptors[2]
		if got.Allowed != allowed || user.Rule != "shop/user" || user.Limit != 1 || !user.Limited || seen.Mode != "shadow" || unruled.Limited {
			t.Errorf("request %d: got %+v", i, got)
		}
	}
	if _, err := c.Do(t.Context(), client.TakeRequest{Key: "k", Limit: "often"}); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("invalid limit: got %v, want ErrBadLimit", err)
	}
}

func TestClientSplitsLongLists(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	rs := make([]penstock.Request, 150)
	for i := range rs {
		rs[i] = penstock.Request{Key: "one", Limit: penstock.Per(1000, 24*365*time.Hour), Cost: 1}
	}
	ds := make([]penstock.Decision, len(rs))
	if err := c.TakeEach(t.Context(), rs, ds); err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		if d.Remaining != int64(999-i) {
			t.Fatalf("request %d: got %v, want %d remaining", i, d, 999-i)
		}
	}
	if err := c.TakeAll(t.Context(), rs, ds); err == nil {
		t.Error("TakeAll of 150: want an error")
	}
	if err := c.TakeAll(t.Context(), nil, nil); err != nil {
		t.Errorf("TakeAll of none: %v", err)
	}
}

// A list of long keys is sent in parts that the server reads, and one of the longest keys alone,
// with characters that are six times as long in JSON.
func TestClientSplitsListsOfLongKeys(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	for _, key := range []string{strings.Repeat("k", 4096), strings.Repeat("<", 4096), strings.Repeat("\xff", 4096)} {
		rs := make([]penstock.Request, 40)
		for i := range rs {
			rs[i] = penstock.Request{Key: key, Limit: penstock.Per(1000, 24*365*time.Hour), Cost: 1}
		}
		ds := make([]penstock.Decision, len(rs))
		if err := c.TakeEach(t.Context(), rs, ds); err != nil {
			t.Errorf("keys of %.3q: %v", key, err)
		}
		if got := ds[39].Remaining; got != 960 {
			t.Errorf("keys of %.3q: %d remain of 1000, want 960", key, got)
		}
	}
}

// Middleware lets requests pass that cannot be decided, and takes keys from headers: a remote client
// must not escape a limit, nor others beside it, with a long header.
func TestClientLimitsRequestsWithLongKeys(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	limiter := func(limit string) *penstock.Limiter {
		l, err := penstock.ParseLimit(limit)
		if err != nil {
			t.Fatal(err)
		}
		lim, err := penstock.New(c, l)
		if err != nil {
			t.Fatal(err)
		}
		return lim
	}
	byKey := httplimit.Header("X-Api-Key")
	site := httplimit.Protect(limiter("2/1h name=key"), &httplimit.Options{Key: byKey, Additional: []httplimit.Charge{
		{Limiter: limiter("5/1h name=address")}, {Limiter: limiter("9/1h name=search"), Key: byKey}, {Limiter: limiter("9/1h name=export"), Key: byKey},
	}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	send := func(key string) int {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Api-Key", key)
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		return w.Code
	}
	long := strings.Repeat("<", 4096)
	for i, step := range []struct {
		key  string
		want int
	}{
		{long, 200},
		{long, 200},
		{long, 429}, // in JSON, three such keys are more than the server reads
		{long + "a", 200},
		{long + "a", 200},
		{long + "a", 429},
		{long + "b", 200},
		{long + "b", 429},
		{long + "c", 429}, // by its address
	} {
		if got := send(step.key); got != step.want {
			t.Errorf("request %d, a key of %d bytes: got %d, want %d", i, len(step.key), got, step.want)
		}
	}
}

// A request that cannot be sent is an error before any other of a long list is charged.
func TestClientChargesNothingOfAListThatItCannotSend(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	rs := make([]penstock.Request, 100)
	for i := range rs {
		rs[i] = penstock.Request{Key: "one", Limit: penstock.Per(1000, 24*365*time.Hour), Cost: 1}
	}
	rs[99].ID = "\xff"
	var about *penstock.RequestError
	err := c.TakeEach(t.Context(), rs, make([]penstock.Decision, len(rs)))
	if !errors.Is(err, penstock.ErrBadCost) || !errors.As(err, &about) || about.Index != 99 {
		t.Errorf("got %v, want an error about the ID of request 99", err)
	}
	peek := rs[0]
	peek.Cost = 0
	if d, err := c.Take(t.Context(), peek); err != nil || d.Remaining != 1000 {
		t.Errorf("afterwards: got %v, %v, want 1000 remaining", d, err)
	}
}

func TestClientRemoteRefundNeedsTheToken(t *testing.T) {
	// Behind a proxy, every client may be on another machine.
	at := serve(t, engine.New(penstock.NewMemory(nil), &engine.Options{Token: "secret"}))
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r2, err := http.NewRequestWithContext(r.Context(), r.Method, at+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r2.Header = r.Header.Clone()
		r2.Header.Set("X-Forwarded-For", "10.0.0.1")
		response, err := http.DefaultTransport.RoundTrip(r2)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = response.Body.Close() }()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	defer proxy.Close()
	refund := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: -1}
	for token, may := range map[string]bool{"": false, "wrong": false, "secret": true} {
		c, err := client.New(proxy.URL, &client.Options{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Take(t.Context(), refund)
		c.Close()
		var refused *client.Error
		if may && err != nil || !may && (!errors.As(err, &refused) || refused.Status != http.StatusForbidden) {
			t.Errorf("with the token %q: got %v, want allowed: %t", token, err, may)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// startHTTP starts a server on a port that no other program listens on when it is closed.
func startHTTP(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t))))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	return s
}

// A response that is not a decision never becomes one.
func TestClientRejectsForeignResponses(t *testing.T) {
	one := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 1}
	for _, c := range []struct {
		status int
		body   string
	}{
		{200, `<html>`},
		{200, ``},
		{200, `null`},
		{200, `{"status":"ok"}`},
		{429, `{"message":"API rate limit exceeded"}`},
		{200, `{"allowed":"yes"}`},
		{200, `{"allowed":true,"retry_after":"soon"}`},
		{200, `{"allowed":true,"source":"elsewhere"}`},
		{500, `oops`},
		{502, ``},
		{503, `{"type":"#ProblemUnavailable","title":"x","detail":"y"}`},
	} {
		s := startHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		store := newClient(t, s.URL)
		if d, err := store.Take(t.Context(), one); !errors.Is(err, penstock.ErrUnavailable) || d.Allowed {
			t.Errorf("%d %s: got %v, %v, want ErrUnavailable", c.status, c.body, d, err)
		}
		var two [2]penstock.Decision
		if err := store.TakeEach(t.Context(), []penstock.Request{one, one}, two[:]); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%d %s, TakeEach: got %v, want ErrUnavailable", c.status, c.body, err)
		}
		store.Close()
		s.Close()
		if _, err := store.Take(t.Context(), one); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("server down: got %v, want ErrUnavailable", err)
		}
	}
	crowded := startHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		_, _ = io.WriteString(w, `{"type":"#ProblemBusy","title":"x","detail":"y"}`)
	})
	defer crowded.Close()
	if _, err := newClient(t, crowded.URL).Take(t.Context(), one); !errors.Is(err, penstock.ErrBusy) || errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a busy store: got %v, want ErrBusy", err)
	}
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	if _, err := newClient(t, s.URL).Take(t.Context(), one); err == nil || errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "404") {
		t.Errorf("another server: got %v, want an error with the status 404", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newClient(t, s.URL).Take(canceled, one); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled context: got %v, want context.Canceled", err)
	}
}

func TestNewValidatesAddress(t *testing.T) {
	for address, good := range map[string]bool{
		"http://localhost:8080": true, "https://penstock.example/behind/": true, "http://[::1]:8080": true,
		"": false, "localhost:8080": false, "redis://localhost": false, "http://": false, "http://[": false,
	} {
		if _, err := client.New(address, nil); (err == nil) != good {
			t.Errorf("%q: got %v, want valid: %t", address, err, good)
		}
	}
}

func TestClientIDMustBeUTF8(t *testing.T) {
	c := newClient(t, "http://127.0.0.1:1")
	_, err := c.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 1, ID: "\xff"})
	var field *penstock.FieldError
	if !errors.As(err, &field) || field.Field != "ID" {
		t.Errorf("got %v, want an error about ID", err)
	}
}

// FieldError says the field's name, so the problem must not begin with its name in JSON.
func TestClientErrorNamesFieldOnce(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	limit := penstock.Limit{Algorithm: penstock.Concurrent, Count: 5, Period: time.Minute}
	_, err := c.Do(t.Context(), client.TakeRequest{Key: "k", Limit: limit.String(), Cost: 1})
	want := penstock.Request{Key: "k", Limit: limit, Cost: 1}.Validate()
	if err == nil || want == nil || err.Error() != want.Error() {
		t.Errorf("got %v, want %v", err, want)
	}
}
