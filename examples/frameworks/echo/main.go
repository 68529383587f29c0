// Echo protects a service that is built with echo, which takes the standard
// library's middleware by echo.WrapMiddleware.
//
//	cd examples/frameworks && go run ./echo
//	curl -i localhost:8080/tenants/acme             # four times
//	curl -i -X POST 'localhost:8080/login?as=eve'   # three times
package main

import (
	"fmt"
	"net/http"
	"os"

	"github.com/labstack/echo/v4"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	if err == nil {
		fmt.Println("Ask four times on http://localhost:8080/tenants/acme")
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// inside is around a handler and inside its limit. It answers a handler's error
// where the limit sees it; echo would do so after the limit was settled.
func inside(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// matched is around a limit, and tells it what the path has matched.
func matched(next echo.HandlerFunc) echo.HandlerFunc {
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
	}, matched, echo.WrapMiddleware(httplimit.Protect(perTenant, &httplimit.Options{Key: httplimit.PathValue("tenant")})), inside)
	e.POST("/login", func(c echo.Context) error {
		if c.FormValue("as") != "ada" {
			return echo.ErrUnauthorized
		}
		return c.NoContent(http.StatusOK)
	}, echo.WrapMiddleware(httplimit.Protect(logins, &httplimit.Options{After: httplimit.OnlyFailures})), inside)
	return e, nil
}
