// Plans gives each customer of an API the daily quota of its plan. A customer can change
// the plan at any time: usage so far is kept, and the new quota applies at once.
//
//	go run ./examples/plans
//	curl -i -H 'X-API-Key: ada' localhost:8080/          # four times: ada is on the free plan
//	curl -i -X POST localhost:8080/plans/ada/pro         # upgrade ada
//	curl -i -H 'X-API-Key: ada' localhost:8080/
package main

import (
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	if err == nil {
		fmt.Println("Use up the free plan of ada: curl -i -H 'X-API-Key: ada' localhost:8080/")
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// plans are the limits of the plans. They have the same name, so that a customer's count
// is kept when the plan changes.
var plans = map[string]penstock.Limit{
	"free": {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 3},
	"pro":  {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 1000},
}

// An api is the API with its customers.
type api struct {
	handlers map[string]http.Handler // the API behind the limit of each plan, by plan

	mu    sync.RWMutex
	plans map[string]string // of customers, by API key
}

func handler(store penstock.Store) (http.Handler, error) {
	a := &api{plans: map[string]string{"ada": "free", "bert": "pro"}, handlers: map[string]http.Handler{}}
	for plan, limit := range plans {
		lim, err := penstock.New(store, limit)
		if err != nil {
			return nil, err
		}
		protect := httplimit.Protect(lim, &httplimit.Options{Key: httplimit.Header("X-API-Key")})
		a.handlers[plan] = protect(http.HandlerFunc(serve))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", a)
	mux.HandleFunc("POST /plans/{customer}/{plan}", a.changePlan)
	return mux, nil
}

// ServeHTTP passes a request to the handler of the customer's plan.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.RLock()
	handler := a.handlers[a.plans[r.Header.Get("X-API-Key")]]
	a.mu.RUnlock()
	if handler == nil {
		http.Error(w, "unknown API key", http.StatusUnauthorized)
		return
	}
	handler.ServeHTTP(w, r)
}

// changePlan moves a customer to another plan. A real service would authorize this.
func (a *api) changePlan(w http.ResponseWriter, r *http.Request) {
	plan := r.PathValue("plan")
	if a.handlers[plan] == nil {
		http.Error(w, "no such plan", http.StatusNotFound)
		return
	}
	a.mu.Lock()
	a.plans[r.PathValue("customer")] = plan
	a.mu.Unlock()
}

func serve(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
