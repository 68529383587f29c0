// Echo limits a service that is built with echo, which accepts middleware of the
// standard library through echo.WrapMiddleware.
//
//	cd examples/frameworks && go run ./echo
//	curl -i localhost:8080/tenants/acme             # four times
//	curl -i -X POST 'localhost:8080/login?as=eve'   # three times
package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Send four requests: curl -i localhost:8080/tenants/acme")
}

// writeError writes the response for a handler's error inside the limit, which sees its
// status. Echo itself would write it after the limit was settled.
func writeError(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// setPathValues copies echo's path parameters to the request, for httplimit.PathValue.
func setPathValues(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		for i, name := range c.ParamNames() {
			c.Request().SetPathValue(name, c.ParamValues()[i])
		}
		return next(c)
	}
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
	e := echo.New()
	e.GET("/tenants/:tenant", func(c echo.Context) error {
		return c.String(http.StatusOK, "hello, "+c.Param("tenant")+"\n")
	}, setPathValues, echo.WrapMiddleware(httplimit.Protect(perTenant, &httplimit.Options{Key: httplimit.PathValue("tenant")})), writeError)
	e.POST("/login", func(c echo.Context) error {
		if c.FormValue("as") != "ada" {
			return echo.ErrUnauthorized
		}
		return c.NoContent(http.StatusOK)
	}, echo.WrapMiddleware(httplimit.Protect(logins, &httplimit.Options{After: httplimit.OnlyFailures})), writeError)
	return e, nil
}
