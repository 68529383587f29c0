// Plans gives each customer of an API the daily quota of its plan. A customer can change
// the plan at any time: usage so far is kept, and the new quota applies at once. That is
// why the quotas are windows: a bucket keeps its debt as time, so a spent key that moves
// from 60/1m to 600/1m has nothing at once, and then ten times as much.
//
// That is so for windows, which count units. A token bucket keeps its debt as time: a
// customer who has used up 60/1m and moves to 600/1m under the same name gets nothing at
// once, and then refills ten times as fast. To free units at once, reset the key.
//
//	go run ./examples/plans
//	curl -i -H 'X-API-Key: ada' localhost:8080/          # four times: ada is on the free plan
//	curl -i -X POST localhost:8080/plans/ada/pro         # upgrade ada
//	curl -i -H 'X-API-Key: ada' localhost:8080/
package main

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Use up the free plan of ada: curl -i -H 'X-API-Key: ada' localhost:8080/")
}

// plans are the limits of the plans. They have the same name, so that a customer's count
// is kept when the plan changes.
var plans = map[string]penstock.Limit{
	"free": {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 3},
	"pro":  {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 1000},
}

// An api is the API with its customers.
type api struct {
	limiters map[string]*penstock.Limiter // by plan

	mu    sync.RWMutex
	plans map[string]string // of customers, by API key
}

func handler(store penstock.Store) (http.Handler, error) {
	a := &api{plans: map[string]string{"ada": "free", "bert": "pro"}, limiters: map[string]*penstock.Limiter{}}
	for plan, limit := range plans {
		lim, err := penstock.New(store, limit)
		if err != nil {
			return nil, err
		}
		a.limiters[plan] = lim
	}
	limit := httplimit.Protect(nil, &httplimit.Options{Key: httplimit.Header(keyHeader), LimiterFor: a.limiterFor})
	mux := http.NewServeMux()
	mux.Handle("GET /", a.authenticate(limit(http.HandlerFunc(serve))))
	mux.HandleFunc("POST /plans/{customer}/{plan}", a.changePlan)
	return mux, nil
}

const keyHeader = "X-API-Key"

// limiterFor returns the limiter of the customer's plan, or nil for an unknown key.
func (a *api) limiterFor(r *http.Request) *penstock.Limiter {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.limiters[a.plans[r.Header.Get(keyHeader)]]
}

// authenticate rejects unknown keys, for which there is no limiter.
func (a *api) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.limiterFor(r) == nil {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// changePlan moves a customer to another plan. A real service would authorize this.
func (a *api) changePlan(w http.ResponseWriter, r *http.Request) {
	plan := r.PathValue("plan")
	if a.limiters[plan] == nil {
		http.Error(w, "no such plan", http.StatusNotFound)
		return
	}
	a.mu.Lock()
	a.plans[r.PathValue("customer")] = plan
	a.mu.Unlock()
}

func serve(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
