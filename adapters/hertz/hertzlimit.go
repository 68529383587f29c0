// Package hertzlimit limits services that are built with hertz.
//
//	h.Use(hertzlimit.Adapt(httplimit.Protect(lim, nil)))
package hertzlimit

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloudwego/hertz/pkg/app"
)

// Adapt converts middleware of the standard library, such as that of package httplimit, to hertz's. The rest
// of hertz's chain runs inside it, and does not run if the request is denied. Route parameters are path values
// of the request, so that [httplimit.PathValue] finds them.
//
// The middleware gets a copy of the request's line and header. The body is that of [Context].
func Adapt(middleware func(http.Handler) http.Handler) app.HandlerFunc {
	h := middleware(http.HandlerFunc(serveNext))
	return func(ctx context.Context, c *app.RequestContext) {
		w := &call{c: c, header: http.Header{}}
		if around, ok := ctx.Value(callKey{}).(*call); ok {
			w.header = around.header // to which middleware appends
		}
		if h.ServeHTTP(w, newRequest(context.WithValue(ctx, callKey{}, w), c)); !w.served {
			c.Abort()
		}
	}
}

// Context returns hertz's context of a request in adapted middleware, for functions such as
// [httplimit.Options].Key. It panics for other requests.
func Context(r *http.Request) *app.RequestContext { return r.Context().Value(callKey{}).(*call).c }

type callKey struct{}

// A call is a request, and the [http.ResponseWriter] of its response.
type call struct {
	c      *app.RequestContext
	header http.Header
	served bool
}

// newRequest copies all strings: hertz reuses their memory after the request, and stores may keep keys for longer.
func newRequest(ctx context.Context, c *app.RequestContext) *http.Request {
	uri := c.Request.URI()
	r := &http.Request{
		Method: string(c.Method()), URL: &url.URL{Path: string(uri.Path()), RawQuery: string(uri.QueryString())},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RequestURI: string(c.Request.RequestURI()), Host: string(c.Host()),
		Header: http.Header{}, Body: http.NoBody, ContentLength: int64(c.Request.Header.ContentLength()), RemoteAddr: c.RemoteAddr().String(),
	}
	c.Request.Header.VisitAll(func(k, v []byte) { r.Header.Add(string(k), string(v)) })
	r = r.WithContext(ctx)
	for _, p := range c.Params {
		r.SetPathValue(p.Key, string([]byte(p.Value)))
	}
	return r
}

func serveNext(_ http.ResponseWriter, r *http.Request) {
	w := r.Context().Value(callKey{}).(*call)
	w.served = true
	w.writeHeader()
	w.c.Next(r.Context())
	w.c.Response.Header.VisitAll(func(k, v []byte) { w.header.Set(string(k), string(v)) }) // for After
}

// Header returns what the middleware sets.
func (w *call) Header() http.Header { return w.header }

// Status returns the status of a response that the handler wrote.
func (w *call) Status() int { return w.c.Response.StatusCode() }

// WriteHeader begins a response that the middleware writes itself.
func (w *call) WriteHeader(status int) {
	w.writeHeader()
	w.c.SetStatusCode(status)
}

func (w *call) Write(b []byte) (int, error) { return w.c.Write(b) }

func (w *call) writeHeader() {
	for name, values := range w.header {
		w.c.Response.Header.Del(name)
		for _, v := range values {
			w.c.Response.Header.Add(name, v)
		}
	}
}
