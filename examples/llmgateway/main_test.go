package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func complete(url, body string) (status int, rateLimit string, err error) {
	return completeAs("ada", url, body)
}

func completeAs(key, url, body string) (status int, rateLimit string, err error) {
	r, err := http.NewRequest(http.MethodPost, url+"/complete", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("X-API-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // disconnecting earlier would cost less
		return 0, "", err
	}
	return resp.StatusCode, resp.Header.Get("RateLimit"), resp.Body.Close()
}

func remaining(t *testing.T, store penstock.Store) int64 {
	t.Helper()
	lim, err := penstock.New(store, penstock.PerMinute(2000).WithName("tokens"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := lim.Peek(t.Context(), "Ada")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// newStore returns a store with a stopped clock.
func newStore() penstock.Store {
	now := time.Now()
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
}

func TestUnusedTokensAreRefunded(t *testing.T) {
	store := newStore()
	h, err := handler(store, fakeModel)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	status, rateLimit, err := complete(server.URL, `{"prompt": "Why?", "max_tokens": 400}`)
	server.Close() // which waits until the request is settled
	if err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	if want := `"tokens";r=1598`; !strings.Contains(rateLimit, want) {
		t.Errorf("RateLimit is %s, want %s: the maximum cost is charged first", rateLimit, want)
	}
	if got := remaining(t, store); got != 2000-2-11 {
		t.Errorf("%d tokens remain, want 2000 less two of the prompt and eleven of the output", got)
	}
}

// Concurrent requests never cost more than the budget.
func TestConcurrentRequestsStayWithinBudget(t *testing.T) {
	store := newStore()
	var promised, completed atomic.Int64
	release := make(chan struct{})
	h, err := handler(store, func(_ context.Context, c completion, emit func(string)) {
		promised.Add(c.maxCost())
		<-release
		for range c.MaxTokens {
			emit("token")
		}
		completed.Add(1)
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	var wg sync.WaitGroup
	var denied atomic.Int64
	for range 20 {
		wg.Go(func() {
			status, _, err := complete(server.URL, `{"prompt": "Why?", "max_tokens": 498}`)
			if err != nil {
				t.Error(err)
			}
			if status == http.StatusTooManyRequests && denied.Add(1) == 16 {
				close(release)
			}
		})
	}
	wg.Wait()
	server.Close()
	if promised.Load() != 2000 || completed.Load() != 4 || remaining(t, store) != 0 {
		t.Errorf("%d tokens charged for %d completions, %d remain", promised.Load(), completed.Load(), remaining(t, store))
	}
}

func TestInvalidBodyIsNotCharged(t *testing.T) {
	store := newStore()
	h, err := handler(store, fakeModel)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	for body, want := range map[string]int{
		"": 400, "{": 400, `{"max_tokens": -1}`: 400, `{"max_tokens": 9223372036854775807}`: 400, fmt.Sprintf(`{"prompt": %q}`, strings.Repeat("x", 70<<10)): 400,
		`{"max_tokens": 1000000}`: 429,
	} {
		if got, _, err := complete(server.URL, body); got != want || err != nil {
			t.Errorf("%.30q: %d, %v, want %d", body, got, err, want)
		}
	}
	if got := remaining(t, store); got != 2000 {
		t.Errorf("%d tokens remain", got)
	}
}

// Invented keys have no budget of their own, and do not affect customers.
func TestUnknownKeysAreLimitedByAddress(t *testing.T) {
	var calls atomic.Int64
	h, err := handler(newStore(), func(context.Context, completion, func(string)) { calls.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	seen := map[int]int{}
	for i := range 30 {
		status, _, err := completeAs(fmt.Sprintf("made-up-%d", i), server.URL, `{"prompt": "Why?"}`)
		if err != nil {
			t.Fatal(err)
		}
		seen[status]++
	}
	if status, _, err := completeAs("", server.URL, `{"prompt": "Why?"}`); status != http.StatusTooManyRequests || err != nil {
		t.Errorf("without a key: %d, %v", status, err)
	}
	if seen[http.StatusUnauthorized] != 10 || seen[http.StatusTooManyRequests] != 20 || calls.Load() != 0 {
		t.Errorf("statuses are %v, and the model was called %d times", seen, calls.Load())
	}
	for _, key := range []string{"ada", "bert"} {
		if status, _, err := completeAs(key, server.URL, `{"prompt": "Why?", "max_tokens": 1998}`); status != http.StatusOK || err != nil {
			t.Errorf("%s, from the same address: %d, %v", key, status, err)
		}
	}
}
