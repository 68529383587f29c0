package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/overload"
)

// flakyServer refuses the first requests with a status, and counts all.
type flakyServer struct {
	refuse, status int
	after          string
	sent           int
	bodies         []string
}

func (s *flakyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.sent++
	if r.Body != nil { // there is no server in between
		body, _ := io.ReadAll(r.Body)
		s.bodies = append(s.bodies, string(body))
	}
	if s.sent <= s.refuse {
		if s.after != "" {
			w.Header().Set("Retry-After", s.after)
		}
		w.WriteHeader(s.status)
	}
}

func retryClient(b *overload.RetryBudget, s *flakyServer) *http.Client {
	return &http.Client{Transport: httplimit.Retry(b, &httplimit.RetryOptions{Transport: direct{s}})}
}

func TestRetrySendsAgainAfterWhatTheServerAsksFor(t *testing.T) {
	for _, c := range []struct {
		name, method, after  string
		refuse, status, sent int
		want                 int
		atLeast, atMost      time.Duration
	}{
		{"well", "GET", "", 0, 0, 1, 200, 0, 0},
		{"once", "GET", "1", 1, 503, 2, 200, time.Second, time.Second},
		{"without a time", "GET", "", 2, 503, 3, 200, 0, 150 * time.Millisecond},
		{"too often", "GET", "", 9, 503, 3, 503, 0, 150 * time.Millisecond},
		{"too long", "GET", "60", 1, 503, 1, 503, 0, 0},
		{"not idempotent", "POST", "1", 1, 503, 1, 503, 0, 0},
		{"body again", "PUT", "1", 1, 503, 2, 200, time.Second, time.Second},
		{"the server's fault", "GET", "", 1, 500, 1, 500, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &flakyServer{refuse: c.refuse, status: c.status, after: c.after}
				r, _ := http.NewRequest(c.method, "http://service/", strings.NewReader("body"))
				begin := time.Now()
				resp, err := retryClient(nil, s).Do(r)
				if err != nil || resp.StatusCode != c.want || s.sent != c.sent {
					t.Fatalf("got %v, %v after %d requests, want %d after %d", resp, err, s.sent, c.want, c.sent)
				}
				if took := time.Since(begin); took < c.atLeast || took > c.atMost {
					t.Errorf("took %v, want %v to %v", took, c.atLeast, c.atMost)
				}
				for i, body := range s.bodies {
					if body != "body" {
						t.Errorf("body %d: %q", i, body)
					}
				}
			})
		})
	}
}

// A service that is dead gets hardly more than without retries.
func TestRetryDoesNotStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flakyServer{refuse: 1 << 30, status: 503}
		client := retryClient(overload.NewRetryBudget(nil), s)
		for range 1000 {
			resp, err := client.Get("http://service/")
			if err != nil || resp.StatusCode != 503 {
				t.Fatalf("%v, %v", resp, err)
			}
		}
		if s.sent != 1010 {
			t.Errorf("%d requests were sent for 1000, want 10 more", s.sent)
		}
	})
}

func TestRetryKeepsToDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		s := &flakyServer{refuse: 1, status: 503, after: "1"}
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://service/", http.NoBody)
		if resp, err := retryClient(nil, s).Do(r); err != nil || resp.StatusCode != 503 || s.sent != 1 || ctx.Err() != nil {
			t.Errorf("got %v, %v after %d requests, want the refusal at once", resp, err, s.sent)
		}
	})
}

// An open breaker says when to retry, and is not asked again before.
func TestRetryListensToBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flakyServer{refuse: 9, status: 500}
		group := overload.NewBreakerGroup(&overload.BreakerGroupOptions{BreakerOptions: overload.BreakerOptions{Wait: time.Second}})
		breaking := httplimit.Break(group, &httplimit.BreakOptions{Transport: direct{s}})
		client := &http.Client{Transport: httplimit.Retry(nil, &httplimit.RetryOptions{Transport: breaking})}
		for range 9 {
			_, _ = client.Get("http://service/")
		}
		begin := time.Now()
		resp, err := client.Get("http://service/")
		if err != nil || resp.StatusCode != 200 || s.sent != 10 {
			t.Fatalf("got %v, %v after %d requests", resp, err, s.sent)
		}
		if took := time.Since(begin); took < time.Second || took > 2*time.Second {
			t.Errorf("took %v, want the second that the breaker waits", took)
		}
	})
}

// countedBodies counts the bodies of responses that are open.
type countedBodies struct {
	http.RoundTripper
	open int
}

type countedBody struct {
	io.ReadCloser
	open *int
}

func (b countedBody) Close() error { *b.open--; return b.ReadCloser.Close() }

func (c *countedBodies) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		c.open++
		resp.Body = countedBody{resp.Body, &c.open}
	}
	return resp, err
}

// stale answers in place of a failed request.
func stale(_ *http.Request, resp *http.Response, _ error) (*http.Response, error) {
	if resp != nil {
		_ = resp.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusNonAuthoritativeInfo, Body: http.NoBody}, nil
}

func TestRetryAnswersInsteadOnlyInTheEnd(t *testing.T) {
	for _, c := range []struct {
		name, method         string
		refuse, status, sent int
		budget, want         int
	}{
		{"well", "GET", 0, 0, 1, 10, 200},
		{"once", "GET", 1, 503, 2, 10, 200},
		{"too often", "GET", 9, 503, 3, 10, 203},
		{"over a limit", "GET", 9, 429, 3, 10, 203},
		{"without a budget", "GET", 1, 503, 1, 0, 203},
		{"budget for one", "GET", 9, 503, 2, 1, 203},
		{"not idempotent", "POST", 1, 503, 1, 10, 203},
		{"the server's fault", "GET", 1, 500, 1, 10, 203},
		{"not found", "GET", 1, 404, 1, 10, 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := overload.NewRetryBudget(nil)
				for range 10 - c.budget {
					budget.Take()
				}
				s := &flakyServer{refuse: c.refuse, status: c.status}
				bodies := &countedBodies{RoundTripper: direct{s}}
				breaking := httplimit.Break(nil, &httplimit.BreakOptions{Transport: bodies})
				client := &http.Client{Transport: httplimit.Retry(budget, &httplimit.RetryOptions{Transport: breaking, Instead: stale})}
				r, _ := http.NewRequest(c.method, "http://service/", strings.NewReader("body"))
				resp, err := client.Do(r)
				if err != nil || resp.StatusCode != c.want || s.sent != c.sent {
					t.Fatalf("got %v, %v after %d requests, want %d after %d", resp, err, s.sent, c.want, c.sent)
				}
				if _ = resp.Body.Close(); bodies.open != 0 {
					t.Errorf("%d bodies are open", bodies.open)
				}
			})
		})
	}
}

// An open breaker and a deadline are failures. A caller who has left needs no answer.
func TestRetryAnswersInsteadOfErrorsUnlessCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flakyServer{refuse: 99, status: 500}
		breaking := httplimit.Break(nil, &httplimit.BreakOptions{Transport: direct{s}})
		transport := httplimit.Retry(nil, &httplimit.RetryOptions{Transport: breaking, MaxWait: time.Second, Instead: stale})
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://service/", http.NoBody)
		for range 20 { // the breaker opens, and asks for more than a second
			if resp, err := transport.RoundTrip(r); err != nil || resp.StatusCode != 203 {
				t.Fatalf("got %v, %v", resp, err)
			}
		}
		if s.sent == 20 {
			t.Error("the breaker did not open")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if resp, err := transport.RoundTrip(r.WithContext(ctx)); err == nil {
			t.Errorf("canceled: got %v, want an error", resp)
		}
	})
}
