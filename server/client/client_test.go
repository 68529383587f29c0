package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

func TestALimiterAsksTheServer(t *testing.T) {
	c := ask(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	lim, err := penstock.New(c, penstock.PerMinute(2))
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
		t.Errorf("nine of two: got %v, %v, want never", d, err)
	}
}

// By the rules, the answer says which of them decided.
func TestAskingByTheRules(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "shop.yaml", Text: []byte(
		"domain: shop\ndescriptors: [{key: user, limit: 1/1h}, {key: seen, limit: 1/1h, shadow_mode: true}]\n")})
	if err != nil {
		t.Fatal(err)
	}
	j := engine.New(penstock.NewMemory(nil), nil)
	j.SetRules(set)
	c := ask(t, serve(t, j))
	q := client.TakeRequest{Domain: "shop", Cost: 1}
	for _, key := range []string{"user", "seen", "nobody"} {
		q.Descriptors = append(q.Descriptors, client.Descriptor{Entries: []client.Entry{{Key: key, Value: "42"}}})
	}
	for i, allowed := range []bool{true, false} {
		a, err := c.Do(t.Context(), q)
		if err != nil || len(a.Parts) != 3 || !json.Valid(a.JSON) {
			t.Fatalf("request %d: got %+v, %v", i, a, err)
		}
		user, seen, nobody := a.Parts[0], a.Parts[1], a.Parts[2]
		if a.Allowed != allowed || user.Rule != "shop/user" || user.Limit != 1 || !user.Limited || seen.Mode != "shadow" || nobody.Limited {
			t.Errorf("request %d: got %+v", i, a)
		}
	}
	if _, err := c.Do(t.Context(), client.TakeRequest{Key: "k", Limit: "often"}); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("a limit that is none: got %v", err)
	}
}

func TestManyRequestsGoInSeveralTrips(t *testing.T) {
	c := ask(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	rs := make([]penstock.Request, 150)
	for i := range rs {
		rs[i] = penstock.Request{Key: "one", Limit: penstock.PerHour(1000), Cost: 1}
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
		t.Error("150 as one: want an error")
	}
	if err := c.TakeAll(t.Context(), nil, nil); err != nil {
		t.Errorf("none as one: %v", err)
	}
}

func TestGivingBackElsewhereNeedsTheToken(t *testing.T) {
	// A server that sees everybody come from another machine.
	at := serve(t, engine.New(penstock.NewMemory(nil), &engine.Options{Token: "secret"}))
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r2, err := http.NewRequestWithContext(r.Context(), r.Method, at+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r2.Header = r.Header.Clone()
		r2.Header.Set("X-Forwarded-For", "10.0.0.1")
		answer, err := http.DefaultTransport.RoundTrip(r2)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = answer.Body.Close() }()
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	}))
	defer proxy.Close()
	back := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: -1}
	for token, may := range map[string]bool{"": false, "wrong": false, "secret": true} {
		c, err := client.New(proxy.URL, &client.Options{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Take(t.Context(), back)
		c.Close()
		var refused *client.Error
		if may && err != nil || !may && (!errors.As(err, &refused) || refused.Status != http.StatusForbidden) {
			t.Errorf("with the token %q: got %v, want that it may: %t", token, err, may)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// Whatever else answers instead of a server, there is no decision.
func TestWhatIsNoServer(t *testing.T) {
	one := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 1}
	for _, c := range []struct {
		status int
		body   string
	}{
		{200, `<html>`},
		{200, ``},
		{200, `{"allowed":"yes"}`},
		{200, `{"allowed":true,"retry_after":"soon"}`},
		{200, `{"allowed":true,"source":"somebody"}`},
		{500, `oops`},
		{502, ``},
		{503, `{"type":"#ProblemUnavailable","title":"x","detail":"y"}`},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		store := ask(t, s.URL)
		if d, err := store.Take(t.Context(), one); !errors.Is(err, penstock.ErrUnavailable) || d.Allowed {
			t.Errorf("%d %s: got %v, %v, want that no decision was made", c.status, c.body, d, err)
		}
		var two [2]penstock.Decision
		if err := store.TakeEach(t.Context(), []penstock.Request{one, one}, two[:]); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%d %s, for two: got %v, want that no decision was made", c.status, c.body, err)
		}
		store.Close()
		s.Close()
		if _, err := store.Take(t.Context(), one); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("nobody there: got %v, want that no decision was made", err)
		}
	}
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	if _, err := ask(t, s.URL).Take(t.Context(), one); err == nil || errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "404") {
		t.Errorf("a server of something else: got %v, want to hear of the status", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ask(t, s.URL).Take(ended, one); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has given up: got %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for address, good := range map[string]bool{
		"http://localhost:8080": true, "https://penstock.example/behind/": true, "http://[::1]:8080": true,
		"": false, "localhost:8080": false, "redis://localhost": false, "http://": false, "http://[": false,
	} {
		if _, err := client.New(address, nil); (err == nil) != good {
			t.Errorf("%q: got %v, want that it is one: %t", address, err, good)
		}
	}
}

func TestAnIDMustBeText(t *testing.T) {
	c := ask(t, "http://127.0.0.1:1")
	_, err := c.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 1, ID: "\xff"})
	var field *penstock.FieldError
	if !errors.As(err, &field) || field.Field != "ID" {
		t.Errorf("got %v, want an error about ID", err)
	}
}
