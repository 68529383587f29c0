// Package ginlimit limits services that are built with gin.
//
//	router.Use(ginlimit.Adapt(httplimit.Protect(lim, nil)))
package ginlimit

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Adapt converts middleware of the standard library, such as that of package httplimit, to gin's. The rest of
// gin's chain runs inside it with gin's own writer, and does not run if the request is denied.
// Path parameters are path values of the request, so that [httplimit.PathValue] finds them.
func Adapt(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	h := middleware(http.HandlerFunc(serveNext))
	return func(c *gin.Context) {
		call, outer := &call{c: c}, c.Request
		defer func() { c.Request = outer }()
		r := outer.WithContext(context.WithValue(outer.Context(), callKey{}, call))
		for _, p := range c.Params {
			r.SetPathValue(p.Key, p.Value)
		}
		if h.ServeHTTP(c.Writer, r); !call.served {
			c.Abort()
		}
	}
}

// Context returns gin's context of a request in adapted middleware, for functions such as
// [httplimit.Options].Key. It panics for other requests.
func Context(r *http.Request) *gin.Context { return r.Context().Value(callKey{}).(*call).c }

type callKey struct{}

type call struct {
	c      *gin.Context
	served bool
}

func serveNext(_ http.ResponseWriter, r *http.Request) {
	call := r.Context().Value(callKey{}).(*call)
	call.served, call.c.Request = true, r
	call.c.Next()
}
