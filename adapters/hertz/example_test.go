package hertzlimit_test

import (
	"net/http"

	"github.com/cloudwego/hertz/pkg/app/server"

	"github.com/penstock-io/penstock"
	hertzlimit "github.com/penstock-io/penstock/adapters/hertz"
	"github.com/penstock-io/penstock/httplimit"
)

func ExampleAdapt() { use(server.New(), &penstock.Limiter{}) }

func use(h *server.Hertz, perUser *penstock.Limiter) {
	h.Use(hertzlimit.Adapt(httplimit.Protect(perUser, &httplimit.Options{
		Key: func(r *http.Request) string { return hertzlimit.Context(r).GetString("user") },
	})))
}
