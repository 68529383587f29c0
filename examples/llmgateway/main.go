// Llmgateway is a gateway to a language model that gives each customer a budget of 2000
// tokens, which refills by 2000 a minute, evenly. The cost of a completion is known only when it is done. So a request is
// charged its maximum cost first, and the unused rest is refunded: concurrent requests
// cannot exceed the budget together. API keys are checked before anything is charged,
// because otherwise each invented key would have a budget of its own; requests without a
// valid key are limited by address.
//
//	go run ./examples/llmgateway
//	curl -i -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8080/complete
//	curl -i -H 'X-API-Key: ada' -d '{"prompt": "And at night?", "max_tokens": 2000}' localhost:8080/complete
//	curl -i -H 'X-API-Key: guess' -d '{"prompt": "Hello?"}' localhost:8080/complete
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil), fakeModel)
	demo.Main(h, err, `Send a prompt: curl -i -H 'X-API-Key: ada' -d '{"prompt": "Why is the sky blue?", "max_tokens": 400}' localhost:8080/complete`)
}

// customers are the customers by API key. A real gateway looks up a hash of the key in a
// database.
var customers = map[string]string{"ada": "Ada", "bert": "Bert"}

// A completion is the body of a request.
type completion struct {
	Prompt    string `json:"prompt"`
	MaxTokens int64  `json:"max_tokens"`
}

const (
	defaultMaxTokens = 1000
	maxMaxTokens     = 1 << 20
)

// maxCost returns the most tokens that a completion can cost.
func (c completion) maxCost() int64 { return c.promptTokens() + c.MaxTokens }

// promptTokens estimates the tokens of the prompt: about one for four bytes.
func (c completion) promptTokens() int64 { return int64(len(c.Prompt)/4) + 1 }

// A model calls emit for each token of its output.
type model func(ctx context.Context, c completion, emit func(token string))

// handler returns the model behind its limits: requests and tokens per customer, and
// unauthorized requests per address.
func handler(store penstock.Store, m model) (http.Handler, error) {
	requests, err := penstock.New(store, penstock.PerMinute(60).WithName("requests"))
	if err != nil {
		return nil, err
	}
	tokens, err := penstock.New(store, penstock.PerMinute(2000).WithName("tokens"))
	if err != nil {
		return nil, err
	}
	unauthorized, err := penstock.New(store, penstock.PerMinute(10).WithName("unauthorized"))
	if err != nil {
		return nil, err
	}
	protect := httplimit.Protect(requests, &httplimit.Options{
		Key:        customer,
		Additional: []httplimit.Charge{{Limiter: tokens, Key: customer, Cost: maxCost, After: httplimit.ReportedCost}},
	})
	reject := httplimit.Protect(unauthorized, nil)(http.HandlerFunc(rejectUnauthorized))
	mux := http.NewServeMux()
	mux.Handle("POST /complete", authenticate(parseBody(protect(m)), reject))
	return mux, nil
}

func customer(r *http.Request) string { return customers[r.Header.Get("X-API-Key")] }

// authenticate passes requests of customers to next, and others to reject.
func authenticate(next, reject http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if customer(r) == "" {
			reject.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func rejectUnauthorized(w http.ResponseWriter, _ *http.Request) {
	httplimit.WriteProblem(w, httplimit.Problem{Status: http.StatusUnauthorized, Detail: "X-API-Key is missing or unknown"})
}

// parseBody reads the body before anything is charged, because the cost depends on it.
func parseBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		c := completion{MaxTokens: defaultMaxTokens}
		if err == nil {
			err = json.Unmarshal(body, &c)
		}
		if err != nil || c.MaxTokens < 0 || c.MaxTokens > maxMaxTokens {
			httplimit.WriteProblem(w, httplimit.Problem{Status: http.StatusBadRequest, Detail: "want a prompt and max_tokens"})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), completionKey{}, c)))
	})
}

type completionKey struct{}

func completionOf(r *http.Request) completion {
	return r.Context().Value(completionKey{}).(completion)
}

func maxCost(r *http.Request) int64 { return completionOf(r).maxCost() }

// ServeHTTP streams the output and reports its cost, also if the client disconnects
// before the end.
func (m model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := completionOf(r)
	used := c.promptTokens()
	defer func() { httplimit.SetCost(r.Context(), used) }()
	m(r.Context(), c, func(token string) {
		used++
		fmt.Fprint(w, token, " ")
		_ = http.NewResponseController(w).Flush() // without a flush the output only arrives later
	})
}

// fakeModel has the same output for every prompt.
func fakeModel(ctx context.Context, c completion, emit func(string)) {
	for i, token := range strings.Fields("This is the output of a model that has eleven tokens") {
		if int64(i) >= c.MaxTokens || ctx.Err() != nil {
			return
		}
		emit(token)
	}
}
