package echolimit_test

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/penstock-io/penstock"
	echolimit "github.com/penstock-io/penstock/adapters/echo"
	"github.com/penstock-io/penstock/httplimit"
)

func ExampleAdapt() { use(echo.New(), &penstock.Limiter{}) }

func use(e *echo.Echo, perUser *penstock.Limiter) {
	e.Use(echolimit.Adapt(httplimit.Protect(perUser, &httplimit.Options{
		Key: func(r *http.Request) string {
			user, _ := echolimit.Context(r).Get("user").(string)
			return user
		},
	})))
}
