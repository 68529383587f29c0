// Chi limits a service that is built with chi, which uses the middleware of the standard
// library as it is.
//
//	cd examples/frameworks && go run ./chi
//	curl -i localhost:8080/tenants/acme             # four times
//	curl -i -X POST 'localhost:8080/login?as=eve'   # three times
package main

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Send four requests: curl -i localhost:8080/tenants/acme")
}

func handler(store penstock.Store) (http.Handler, error) {
	perTenant, err := penstock.New(store, penstock.PerMinute(3).WithName("tenant"))
	if err != nil {
		return nil, err
	}
	logins, err := penstock.New(store, penstock.PerMinute(2).WithName("logins"))
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.With(httplimit.Protect(perTenant, &httplimit.Options{Key: httplimit.PathValue("tenant")})).
		Get("/tenants/{tenant}", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "hello,", chi.URLParam(r, "tenant"))
		})
	r.With(httplimit.Protect(logins, &httplimit.Options{After: httplimit.OnlyFailures})).
		Post("/login", func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("as") != "ada" {
				http.Error(w, "wrong", http.StatusUnauthorized)
			}
		})
	return r, nil
}
