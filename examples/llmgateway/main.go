// Llmgateway stands before a language model, and gives each customer so many tokens
// a minute. What an answer costs is known when it has been given, so a request is
// charged what it may cost at most, and what was not used is given back: requests
// that come at the same time cannot overrun the budget together. Keys are checked
// before anything is charged to them, or else whoever makes up keys makes up budgets;
// strangers are counted by their addresses.
//
//	go run ./examples/llmgateway
//	curl -i -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8080/complete
//	curl -i -H 'X-API-Key: ada' -d '{"prompt": "And at night?", "max_tokens": 2000}' localhost:8080/complete
//	curl -i -H 'X-API-Key: guess' -d '{"prompt": "Who are you?"}' localhost:8080/complete
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil), babble)
	if err == nil {
		fmt.Println(`Ask something on http://localhost:8080/complete: curl -i -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8080/complete`)
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// customers are those who may ask, by their keys. In earnest there is a database of
// the keys' hashes.
var customers = map[string]string{"ada": "Ada", "bert": "Bert"}

// A question is what clients ask.
type question struct {
	Prompt    string `json:"prompt"`
	MaxTokens int64  `json:"max_tokens"`
}

// What an answer may have if the question does not say, and at all.
const (
	usual = 1000
	most  = 1 << 20
)

// cost returns the most that a question can cost, by a rule of thumb for prompts.
func (q question) cost() int64 { return q.promptTokens() + q.MaxTokens }

func (q question) promptTokens() int64 { return int64(len(q.Prompt)/4) + 1 }

// A model answers word by word.
type model func(ctx context.Context, q question, say func(word string))

// handler returns the model behind its limits: requests are counted, tokens, and strangers.
func handler(store penstock.Store, m model) (http.Handler, error) {
	requests, err := penstock.New(store, penstock.PerMinute(60).WithName("requests"))
	if err != nil {
		return nil, err
	}
	tokens, err := penstock.New(store, penstock.PerMinute(2000).WithName("tokens"))
	if err != nil {
		return nil, err
	}
	strangers, err := penstock.New(store, penstock.PerMinute(10).WithName("strangers"))
	if err != nil {
		return nil, err
	}
	protect := httplimit.Protect(requests, &httplimit.Options{
		Key:        customer,
		Additional: []httplimit.Charge{{Limiter: tokens, Key: customer, Cost: estimate, After: httplimit.ReportedCost}},
	})
	refuse := httplimit.Protect(strangers, nil)(http.HandlerFunc(refuseStranger))
	mux := http.NewServeMux()
	mux.Handle("POST /complete", known(reading(protect(m)), refuse))
	return mux, nil
}

func customer(r *http.Request) string { return customers[r.Header.Get("X-API-Key")] }

// known lets customers in, and others talk to somebody else.
func known(next, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if customer(r) == "" {
			others.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func refuseStranger(w http.ResponseWriter, _ *http.Request) {
	httplimit.WriteProblem(w, httplimit.Problem{Status: http.StatusUnauthorized, Detail: "want a customer's X-API-Key"})
}

// reading reads the question before anything is charged, for it says how much.
func reading(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		q := question{MaxTokens: usual}
		if err == nil {
			err = json.Unmarshal(body, &q)
		}
		if err != nil || q.MaxTokens < 0 || q.MaxTokens > most {
			httplimit.WriteProblem(w, httplimit.Problem{Status: http.StatusBadRequest, Detail: "want a prompt and max_tokens"})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), questionKey{}, q)))
	})
}

type questionKey struct{}

func questionOf(r *http.Request) question { return r.Context().Value(questionKey{}).(question) }

func estimate(r *http.Request) int64 { return questionOf(r).cost() }

// ServeHTTP streams the answer, and says what it cost, also if the client left in
// the middle of it.
func (m model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := questionOf(r)
	used := q.promptTokens()
	defer func() { httplimit.SetCost(r.Context(), used) }()
	m(r.Context(), q, func(word string) {
		used++
		fmt.Fprint(w, word, " ")
		_ = http.NewResponseController(w).Flush() // what cannot be flushed comes at the end
	})
}

// babble is a model that knows few words.
func babble(ctx context.Context, q question, say func(string)) {
	for i, word := range strings.Fields("I was made to be measured and not to be asked") {
		if int64(i) >= q.MaxTokens || ctx.Err() != nil {
			return
		}
		say(word)
	}
}
