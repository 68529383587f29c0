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

func ask(url, body string) (status int, remaining string, err error) { return askAs("ada", url, body) }

func askAs(key, url, body string) (status int, remaining string, err error) {
	r, err := http.NewRequest(http.MethodPost, url+"/complete", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("X-API-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // to leave earlier would cost less
		return 0, "", err
	}
	return resp.StatusCode, resp.Header.Get("RateLimit"), resp.Body.Close()
}

func left(t *testing.T, store penstock.Store) int64 {
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

// newStore returns a store whose clock stands still.
func newStore() penstock.Store {
	now := time.Now()
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
}

func TestAnswersCostWhatTheyCost(t *testing.T) {
	store := newStore()
	h, err := handler(store, babble)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	status, told, err := ask(server.URL, `{"prompt": "Why?", "max_tokens": 400}`)
	server.Close() // which waits until the request is settled
	if err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	if want := `"tokens";r=1598`; !strings.Contains(told, want) {
		t.Errorf("told %s, want %s: what the answer may cost at most", told, want)
	}
	if got := left(t, store); got != 2000-2-11 {
		t.Errorf("%d tokens are left, want the prompt's two and the answer's eleven to be gone", got)
	}
}

// However many ask at once, the model is never asked for more than the budget.
func TestParallelQuestions(t *testing.T) {
	store := newStore()
	var promised, answered atomic.Int64
	release := make(chan struct{})
	h, err := handler(store, func(_ context.Context, q question, say func(string)) {
		promised.Add(q.cost())
		<-release
		for range q.MaxTokens {
			say("word")
		}
		answered.Add(1)
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	var wg sync.WaitGroup
	var denied atomic.Int64
	for range 20 {
		wg.Go(func() {
			status, _, err := ask(server.URL, `{"prompt": "Why?", "max_tokens": 498}`)
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
	if promised.Load() != 2000 || answered.Load() != 4 || left(t, store) != 0 {
		t.Errorf("%d tokens promised in %d answers, %d left", promised.Load(), answered.Load(), left(t, store))
	}
}

func TestBadQuestions(t *testing.T) {
	store := newStore()
	h, err := handler(store, babble)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	for body, want := range map[string]int{
		"": 400, "{": 400, `{"max_tokens": -1}`: 400, `{"max_tokens": 9223372036854775807}`: 400, fmt.Sprintf(`{"prompt": %q}`, strings.Repeat("x", 70<<10)): 400,
		`{"max_tokens": 1000000}`: 429,
	} {
		if got, _, err := ask(server.URL, body); got != want || err != nil {
			t.Errorf("%.30q: %d, %v, want %d", body, got, err, want)
		}
	}
	if got := left(t, store); got != 2000 {
		t.Errorf("%d tokens are left", got)
	}
}

// Whoever makes up keys makes up no budgets, and is no burden on customers.
func TestStrangers(t *testing.T) {
	var asked atomic.Int64
	h, err := handler(newStore(), func(context.Context, question, func(string)) { asked.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	seen := map[int]int{}
	for i := range 30 {
		status, _, err := askAs(fmt.Sprintf("made-up-%d", i), server.URL, `{"prompt": "Why?"}`)
		if err != nil {
			t.Fatal(err)
		}
		seen[status]++
	}
	if status, _, err := askAs("", server.URL, `{"prompt": "Why?"}`); status != http.StatusTooManyRequests || err != nil {
		t.Errorf("without a key: %d, %v", status, err)
	}
	if seen[http.StatusUnauthorized] != 10 || seen[http.StatusTooManyRequests] != 20 || asked.Load() != 0 {
		t.Errorf("strangers were answered %v, and asked %d questions", seen, asked.Load())
	}
	for _, key := range []string{"ada", "bert"} {
		if status, _, err := askAs(key, server.URL, `{"prompt": "Why?", "max_tokens": 1998}`); status != http.StatusOK || err != nil {
			t.Errorf("%s, from the same address: %d, %v", key, status, err)
		}
	}
}
