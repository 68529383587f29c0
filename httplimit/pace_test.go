package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// direct is a transport without a network, which a bubble has no use for.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

func pacedClient(lim *penstock.Limiter, o httplimit.PaceOptions, h http.Handler) *http.Client {
	o.Transport = direct{h}
	return &http.Client{Transport: httplimit.Pace(lim, &o)}
}

func fetch(ctx context.Context, c *http.Client, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestPaceWaitsForTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pacedClient(inMemory(t, "2/1s burst=1"), httplimit.PaceOptions{}, hello)
		start := time.Now()
		for i := range 5 {
			if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil {
				t.Fatal(err)
			}
			if got, want := time.Since(start), time.Duration(i)*500*time.Millisecond; got != want {
				t.Errorf("request %d went after %v, want %v", i, got, want)
			}
		}
		start = time.Now()
		if _, err := fetch(t.Context(), c, "http://other.example/"); err != nil || time.Since(start) != 0 {
			t.Errorf("another host waited %v, %v", time.Since(start), err)
		}
	})
}

// One host has many names to write, and one quota.
func TestPaceNormalizesHosts(t *testing.T) {
	for _, test := range []struct {
		key  string
		urls []string
	}{
		{"api.example", []string{"http://api.example/", "http://API.Example/", "http://api.example:80/", "https://api.example:443/", "http://api.example./", "http://api.example.:80/", "http://api.example:/"}},
		{"api.example:443", []string{"http://api.example:443/", "http://API.example.:443/"}},
		{"api.example:8080", []string{"http://api.example:8080/", "https://api.example.:8080/"}},
		{"2001:db8::1", []string{"http://[2001:db8::1]/", "http://[2001:DB8::1]:80/"}},
		{"[2001:db8::1]:8080", []string{"http://[2001:db8::1]:8080/"}},
	} {
		lim := limiter(t, standingStill(), "100/1h")
		c := pacedClient(lim, httplimit.PaceOptions{}, hello)
		for _, url := range test.urls {
			if _, err := fetch(t.Context(), c, url); err != nil {
				t.Error(err)
			}
		}
		if d, err := lim.Peek(t.Context(), test.key); err != nil || d.Remaining != 100-int64(len(test.urls)) {
			t.Errorf("%s: %v, %v, want %q to have %d less", test.urls, d, err, test.key, len(test.urls))
		}
	}
}

// A cost below zero gives nothing back.
func TestPaceRejectsNegativeCosts(t *testing.T) {
	lim := limiter(t, standingStill(), "100/1h")
	if _, err := lim.AllowN(t.Context(), "api.example", 10); err != nil {
		t.Fatal(err)
	}
	c := pacedClient(lim, httplimit.PaceOptions{Cost: func(*http.Request) int64 { return -5 }}, hello)
	if _, err := fetch(t.Context(), c, "http://api.example/"); !errors.Is(err, penstock.ErrBadCost) {
		t.Errorf("got %v, want %v", err, penstock.ErrBadCost)
	}
	if d, err := lim.Peek(t.Context(), "api.example"); err != nil || d.Remaining != 90 {
		t.Errorf("%v, %v, want 90 to remain", d, err)
	}
}

func TestPaceUsesKeyAndCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pacedClient(inMemory(t, "10/1s"), httplimit.PaceOptions{
			Key:  func(r *http.Request) string { return r.Header.Get("X-Account") + r.URL.Query().Get("account") },
			Cost: func(r *http.Request) int64 { return int64(len(r.URL.Path)) },
		}, hello)
		start := time.Now()
		for _, url := range []string{"http://a.example/23456789?account=1", "http://b.example/2345?account=1", "http://b.example/?account=2"} {
			if _, err := fetch(t.Context(), c, url); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := time.Since(start), 400*time.Millisecond; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
	})
}

// A server that is protected by this package, and a client that goes by what it
// is told and nothing else: whatever the form, it is refused at most once.
func TestPaceUnderstandsEveryForm(t *testing.T) {
	for _, form := range forms[:len(forms)-1] {
		for _, limit := range []string{"3/10s", "3/10s fixed-window", "3/10s sliding-log", "3/10s burst=1"} {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(1234567891)
				server := httplimit.Protect(inMemory(t, limit), &httplimit.Options{Headers: form})(hello)
				c := pacedClient(inMemory(t, "1000000/1s"), httplimit.PaceOptions{}, server)
				start, refused := time.Now(), 0
				for range 20 {
					status, err := fetch(t.Context(), c, "http://api.example/")
					if err != nil {
						t.Fatal(err)
					}
					if status != http.StatusOK {
						refused++
					}
				}
				if refused > 1 || time.Since(start) > 4*time.Minute {
					t.Errorf("%v, %s: %d of 20 refused, in %v", form, limit, refused, time.Since(start))
				}
			})
		}
	}
}

func TestPaceHonoursServerPauses(t *testing.T) {
	for _, test := range []struct {
		status int
		header string
		waits  time.Duration
	}{
		{429, "Retry-After: 7", 7 * time.Second},
		{503, "Retry-After: Sat, 01 Jan 2000 00:00:09 GMT", 9 * time.Second},
		{503, "Retry-After: Sat, 01 Jan 2000 01:00:09 GMT; Date: Sat, 01 Jan 2000 01:00:05 GMT", 4 * time.Second},
		{403, "Retry-After: 60; RateLimit: \"a\"|r=0|t=3", time.Minute},
		{429, "Retry-After: Fri, 31 Dec 1999 00:00:00 GMT", 0},
		{429, "Retry-After: soon", 0},
		{429, "Retry-After: -1", 0},
		{429, "Retry-After: 99999999999999999999", 10 * time.Minute},
		{200, "Retry-After: 7", 0},
		{200, `RateLimit: "a"|r=0|t=3`, 3 * time.Second},
		{200, `RateLimit: "a"|r=5|t=30, "b"|r=0|t=4`, 4 * time.Second},
		{200, `RateLimit: "a"|r=0|t=4, "b"|r=0|t=9, "c"|r=0`, 9 * time.Second},
		{200, `RateLimit: "a"|r=1|t=30`, 0},
		{200, `RateLimit: "a"|r=0`, 0},
		{200, `RateLimit: "a"|r=0|t=3; Age: 5`, 0},
		{200, `RateLimit: "a"|r=0|t=3, malformed`, 0},
		{200, "RateLimit: limit=100, remaining=0, reset=8", 8 * time.Second},
		{200, "RateLimit: limit=100, remaining=1, reset=8", 0},
		{200, "RateLimit: remaining=0, reset=?", 0},
		{200, "RateLimit: remaining=0, reset=8,", 0},
		{200, "RateLimit: remaining=0, reset=-8", 0},
		{200, "RateLimit-Remaining: 0; RateLimit-Reset: 5", 5 * time.Second},
		{200, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: 946684811", 11 * time.Second},
		{200, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: 946684700", 0},
		{200, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 5", 0},
		{200, "X-RateLimit-Remaining: 0", 0},
		{200, "X-Rate-Limit-Remaining: 0; X-Rate-Limit-Reset: 6", 6 * time.Second},
		{200, "X-RateLimit-Remaining: 0.5; X-RateLimit-Reset: 5", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := pacedClient(inMemory(t, "100/1s"), httplimit.PaceOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for field := range strings.SplitSeq(test.header, "; ") {
					name, value, _ := strings.Cut(field, ": ")
					w.Header().Set(name, strings.ReplaceAll(value, "|", ";"))
				}
				w.WriteHeader(test.status)
			}))
			start := time.Now()
			for range 2 {
				if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil {
					t.Fatal(err)
				}
			}
			if got := time.Since(start); got != test.waits {
				t.Errorf("%d %s: waited %v, want %v", test.status, test.header, got, test.waits)
			}
		})
	}
}

// An answer that comes in late does not open a server that has closed meanwhile.
func TestPaceLateResponsesDoNotShortenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pacedClient(inMemory(t, "100/1s"), httplimit.PaceOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "60")
			if r.URL.Path == "/slow" {
				time.Sleep(time.Second)
				w.Header().Set("Retry-After", "1")
			}
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		start := time.Now()
		var wg sync.WaitGroup
		for _, path := range []string{"slow", "fast"} {
			wg.Go(func() {
				if _, err := fetch(t.Context(), c, "http://api.example/"+path); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil || time.Since(start) != time.Minute {
			t.Errorf("went after %v, %v, want a minute", time.Since(start), err)
		}
	})
}

// A call that gets its turn during a pause returns it.
func TestPaceReturnsUnusedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/10s fixed-window")
		c := pacedClient(lim, httplimit.PaceOptions{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(5 * time.Second)
			w.Header().Set("Retry-After", "100")
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(11 * time.Second)
		if d, err := lim.Peek(t.Context(), "api.example"); err != nil || d.Remaining != 1 {
			t.Errorf("%v, %v, want one to remain for others", d, err)
		}
		wg.Wait()
	})
}

// After a pause, waiting calls go on at the limiter's pace.
func TestPaceSpreadsRequestsAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var arrivals []time.Duration
		start, first := time.Now(), true
		c := pacedClient(inMemory(t, "10/1s burst=1"), httplimit.PaceOptions{MaxPause: time.Minute}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			arrivals = append(arrivals, time.Since(start))
			if first {
				first = false
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if arrivals[1] < time.Minute {
			t.Errorf("went after %v, although the server was closed for a minute", arrivals[1])
		}
		for i := 2; i < len(arrivals); i++ {
			if gap := arrivals[i] - arrivals[i-1]; gap < 100*time.Millisecond {
				t.Errorf("request %d came %v after the one before it", i, gap)
			}
		}
	})
}

// Reservations after the pause keep their moments.
func TestPaceKeepsSpacingAfterCancel(t *testing.T) {
	for _, limit := range []string{"1/1s burst=1", "1/1s leaky-bucket burst=100"} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var arrivals []time.Duration
			start := time.Now()
			c := pacedClient(inMemory(t, limit), httplimit.PaceOptions{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				arrivals = append(arrivals, time.Since(start))
				if len(arrivals) == 1 {
					time.Sleep(500 * time.Millisecond) // until all the others are in line
					w.Header().Set("Retry-After", "10")
					w.WriteHeader(http.StatusTooManyRequests)
				}
			}))
			var wg sync.WaitGroup
			for range 21 {
				wg.Go(func() {
					if _, err := fetch(t.Context(), c, "http://api.example/"); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for i := 1; i < len(arrivals); i++ {
				if gap := arrivals[i] - arrivals[i-1]; gap < time.Second {
					t.Errorf("%s: request %d came %v after the one before it", limit, i, gap)
				}
			}
		})
	}
}

func TestPaceBoundsWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/1m")
		c := pacedClient(lim, httplimit.PaceOptions{MaxWaiting: 3}, hello)
		errs := make(chan error, 10)
		for range 10 {
			go func() {
				_, err := fetch(t.Context(), c, "http://api.example/")
				errs <- err
			}()
		}
		synctest.Wait()
		var full, others int
		for range 10 {
			switch err := <-errs; {
			case errors.Is(err, httplimit.ErrTooManyWaiting):
				full++
			case err != nil:
				t.Error(err)
			default:
				others++
			}
		}
		if others < 3 || others+full != 10 || full == 0 {
			t.Errorf("%d went, %d found too many waiting", others, full)
		}
	})
}

func TestPaceFailsBeforeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/1m")
		c := pacedClient(lim, httplimit.PaceOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Host == "busy.example" {
				w.Header().Set("Retry-After", "30")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		for _, host := range []string{"http://api.example/", "http://busy.example/"} {
			if _, err := fetch(t.Context(), c, host); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := fetch(ctx, c, host)
			if !errors.Is(err, penstock.ErrDeadline) || time.Since(start) != 0 {
				t.Errorf("%s: %v after %v, want %v at once", host, err, time.Since(start), penstock.ErrDeadline)
			}
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err := fetch(ctx, c, host); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v, want %v after a second", host, err, time.Since(start), context.Canceled)
			}
		}
		if d, err := lim.Peek(t.Context(), "busy.example"); err != nil || d.ResetAfter > 59*time.Second {
			t.Errorf("what did not go was charged: %v, %v", d, err)
		}
	})
}

// A transport closes the body of a request, whether it sends it or not.
func TestPaceClosesBodiesOfUnsentRequests(t *testing.T) {
	body := &closing{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example/", body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httplimit.Pace(inMemory(t, "0/1s"), nil).RoundTrip(r)
	if !errors.Is(err, penstock.ErrNever) || resp != nil || !body.closed {
		t.Errorf("%v, %v, body closed: %v", resp, err, body.closed)
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// Two processes that call the same API share its quota through Redis.
func TestPaceSharesStoreAcrossProcesses(t *testing.T) {
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Stop()
	const n, interval = 12, 50 * time.Millisecond
	server := httptest.NewServer(hello)
	defer server.Close()
	limit := penstock.Per(1, interval)
	start := time.Now()
	var wg sync.WaitGroup
	for range 2 {
		store, err := redisstore.Open(t.Context(), "redis://"+redis.Addr, &redisstore.Options{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		lim, err := penstock.New(store, limit)
		if err != nil {
			t.Fatal(err)
		}
		c := &http.Client{Transport: httplimit.Pace(lim, nil)}
		for range n / 2 {
			wg.Go(func() {
				if _, err := fetch(t.Context(), c, server.URL); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if got, want := time.Since(start), (n-1)*interval; got < want {
		t.Errorf("%d requests of two clients took %v, less than %v", n, got, want)
	}
}

// idle is a transport with connections to close.
type idle struct {
	direct
	closed *bool
}

func (i idle) CloseIdleConnections() { *i.closed = true }

func TestPaceClosesIdleConnections(t *testing.T) {
	closed := false
	c := &http.Client{Transport: httplimit.Pace(inMemory(t, "1/1s"), &httplimit.PaceOptions{Transport: idle{closed: &closed}})}
	if c.CloseIdleConnections(); !closed {
		t.Error("connections are left open")
	}
}
