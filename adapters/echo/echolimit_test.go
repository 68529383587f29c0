package echolimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"

	echolimit "github.com/penstock-io/penstock/adapters/echo"
	"github.com/penstock-io/penstock/adapters/internal/adaptertest"
	"github.com/penstock-io/penstock/httplimit"
)

func TestAdaptedMiddlewareLimits(t *testing.T) {
	m := adaptertest.New(t, func(r *http.Request) string { return echolimit.Context(r).Get("user").(string) })
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Set("user", c.Request().Header.Get("X-User"))
			return next(c)
		}
	})
	e.GET("/tenants/:tenant", func(c *echo.Context) error {
		c.Response().Header().Set("X-Served", "yes")
		return c.String(200, "hello, "+c.Param("tenant"))
	}, echolimit.Adapt(m.All), echolimit.Adapt(m.Tenant))
	e.POST("/login", func(c *echo.Context) error {
		if c.QueryParam("as") != "ada" {
			return echo.ErrUnauthorized
		}
		return nil
	}, echolimit.Adapt(m.Logins))
	e.GET("/me", func(*echo.Context) error { return nil }, echolimit.Adapt(m.User))
	e.GET("/tokens", func(c *echo.Context) error {
		httplimit.SetCost(c.Request().Context(), 3)
		return nil
	}, echolimit.Adapt(m.Tokens))
	e.GET("/slot", func(c *echo.Context) error { return c.String(200, m.Held()) }, echolimit.Adapt(m.Slots))
	e.GET("/search", func(*echo.Context) error { return nil }, echolimit.Adapt(m.Rules))
	server := httptest.NewServer(e)
	defer server.Close()
	m.Check(t, server.URL)
}
