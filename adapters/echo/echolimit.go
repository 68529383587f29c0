// Package echolimit limits services that are built with echo.
//
//	e.Use(echolimit.Adapt(httplimit.Protect(lim, nil)))
package echolimit

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v5"
)

// Adapt converts middleware of the standard library, such as that of package httplimit, to echo's. Unlike
// [echo.WrapMiddleware] it writes the response for a handler's error inside, so that After of
// [httplimit.Options] sees its status.
func Adapt(middleware func(http.Handler) http.Handler) echo.MiddlewareFunc {
	wrap := echo.WrapMiddleware(middleware)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		h := wrap(func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return nil
		})
		return func(c *echo.Context) error {
			outer := c.Request()
			defer c.SetRequest(outer)
			c.SetRequest(outer.WithContext(context.WithValue(outer.Context(), contextKey{}, c)))
			return h(c)
		}
	}
}

// Context returns echo's context of a request in adapted middleware, for functions such as
// [httplimit.Options].Key. It panics for other requests.
func Context(r *http.Request) *echo.Context { return r.Context().Value(contextKey{}).(*echo.Context) }

type contextKey struct{}
