// Plans gives each customer of an API the daily quota of its plan. Plans are in a database,
// which is asked once in a while and not for each request. A customer can change the plan at
// any time: usage so far is kept, and the new quota applies at once, or within seconds if
// another process has changed it.
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
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/limitercache"
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
	limiters *limitercache.Cache
	database database
}

func handler(store penstock.Store) (http.Handler, error) {
	a := &api{database: database{plans: map[string]string{"ada": "free", "bert": "pro"}}}
	var err error
	if a.limiters, err = limitercache.New(store, a.limitOf, nil); err != nil {
		return nil, err
	}
	limit := httplimit.Protect(nil, &httplimit.Options{Key: httplimit.Header(keyHeader), LimiterFor: a.limiterFor})
	mux := http.NewServeMux()
	mux.Handle("GET /", a.authenticate(limit(http.HandlerFunc(serve))))
	mux.HandleFunc("POST /plans/{customer}/{plan}", a.changePlan)
	return mux, nil
}

const keyHeader = "X-API-Key"

// limitOf returns the limit of a customer's plan, or none for an unknown key.
func (a *api) limitOf(_ context.Context, key string) (penstock.Limit, error) {
	return plans[a.database.plan(key)], nil
}

// limiterFor returns the limiter of the customer's plan, or nil for an unknown key.
func (a *api) limiterFor(r *http.Request) *penstock.Limiter {
	return a.limiters.For(r.Context(), r.Header.Get(keyHeader))
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
	customer, plan := r.PathValue("customer"), r.PathValue("plan")
	if _, ok := plans[plan]; !ok {
		http.Error(w, "no such plan", http.StatusNotFound)
		return
	}
	a.database.setPlan(customer, plan)
	a.limiters.Invalidate(customer)
}

// A database stands for the one of a real service.
type database struct {
	mu    sync.RWMutex
	plans map[string]string // of customers, by API key
}

func (d *database) plan(key string) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.plans[key]
}

func (d *database) setPlan(key, plan string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plans[key] = plan
}

func serve(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
