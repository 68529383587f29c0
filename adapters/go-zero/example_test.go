package zerolimit_test

import (
	"github.com/zeromicro/go-zero/rest"

	"github.com/penstock-io/penstock"
	zerolimit "github.com/penstock-io/penstock/adapters/go-zero"
	"github.com/penstock-io/penstock/httplimit"
)

func ExampleAdapt() { use(&rest.Server{}, &penstock.Limiter{}) }

func use(server *rest.Server, perUser *penstock.Limiter) {
	server.Use(zerolimit.Adapt(httplimit.Protect(perUser, &httplimit.Options{Key: httplimit.Header("X-User")})))
}
