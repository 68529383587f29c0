// Plans gives each customer of an API the quota of its plan, and changes plans
// while they are in use: whoever moves up keeps what it has used, and has more left
// at once.
//
//	go run ./examples/plans
//	curl -i -H 'X-API-Key: ada' localhost:8080/          # four times: ada is on the free plan
//	curl -i -X POST localhost:8080/plans/ada/pro         # ada moves up
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
		fmt.Println("Use up ada's free plan on http://localhost:8080/: curl -i -H 'X-API-Key: ada' localhost:8080/")
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// plans are what customers can have. Their limits have one name, so a customer's
// state is the same under all of them.
var plans = map[string]penstock.Limit{
	"free": {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 3},
	"pro":  {Name: "api", Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 1000},
}

// An api knows its customers.
type api struct {
	mu        sync.RWMutex
	customers map[string]string       // their plans, by their keys
	behind    map[string]http.Handler // the API, behind the limit of each plan
}

func handler(store penstock.Store) (http.Handler, error) {
	a := &api{customers: map[string]string{"ada": "free", "bert": "pro"}, behind: map[string]http.Handler{}}
	for plan, limit := range plans {
		lim, err := penstock.New(store, limit)
		if err != nil {
			return nil, err
		}
		protect := httplimit.Protect(lim, &httplimit.Options{Key: httplimit.Header("X-API-Key")})
		a.behind[plan] = protect(http.HandlerFunc(serve))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", a)
	mux.HandleFunc("POST /plans/{customer}/{plan}", a.change)
	return mux, nil
}

// ServeHTTP lets customers in, each by the door of its plan.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.RLock()
	door := a.behind[a.customers[r.Header.Get("X-API-Key")]]
	a.mu.RUnlock()
	if door == nil {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	door.ServeHTTP(w, r)
}

// change moves a customer to another plan. In earnest, this is not for everybody.
func (a *api) change(w http.ResponseWriter, r *http.Request) {
	plan := r.PathValue("plan")
	if a.behind[plan] == nil {
		http.Error(w, "no such plan", http.StatusNotFound)
		return
	}
	a.mu.Lock()
	a.customers[r.PathValue("customer")] = plan
	a.mu.Unlock()
}

func serve(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "at your service") }
