// Package zerolimit limits services that are built with go-zero.
//
//	server.Use(zerolimit.Adapt(httplimit.Protect(lim, nil)))
//
// Services of zrpc take the interceptors of package grpclimit as they are:
//
//	server.AddUnaryInterceptors(grpclimit.UnaryServer(lim, nil))
package zerolimit

import (
	"net/http"

	"github.com/zeromicro/go-zero/rest"
	"github.com/zeromicro/go-zero/rest/pathvar"
)

// Adapt converts middleware of the standard library, such as that of package httplimit, to go-zero's. Unlike
// [rest.ToMiddleware] it makes path variables path values of the request, so that [httplimit.PathValue] finds them.
func Adapt(middleware func(http.Handler) http.Handler) rest.Middleware {
	return func(next http.HandlerFunc) http.HandlerFunc {
		h := middleware(next)
		return func(w http.ResponseWriter, r *http.Request) {
			for name, value := range pathvar.Vars(r) {
				r.SetPathValue(name, value)
			}
			h.ServeHTTP(w, r)
		}
	}
}
