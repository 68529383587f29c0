// Package fiberlimit limits services that are built with fiber.
//
//	app.Use(fiberlimit.Adapt(httplimit.Protect(lim, nil)))
package fiberlimit

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v3"
)

// Adapt converts middleware of the standard library, such as that of package httplimit, to fiber's. The rest
// of fiber's chain runs inside it, also the error handler, so that After of [httplimit.Options] sees the status.
// Route parameters are path values of the request, so that [httplimit.PathValue] finds them.
//
// The middleware gets a copy of the request's line and header. The body is that of [Context].
func Adapt(middleware func(http.Handler) http.Handler) fiber.Handler {
	h := middleware(http.HandlerFunc(serveNext))
	return func(c fiber.Ctx) error {
		outer := c.Context()
		defer c.SetContext(outer)
		w := &call{c: c, header: http.Header{}}
		if around, ok := outer.Value(callKey{}).(*call); ok {
			w.header = around.header // to which middleware appends
		}
		h.ServeHTTP(w, newRequest(context.WithValue(outer, callKey{}, w), c))
		return w.err
	}
}

// Context returns fiber's context of a request in adapted middleware, for functions such as
// [httplimit.Options].Key. It panics for other requests.
func Context(r *http.Request) fiber.Ctx { return r.Context().Value(callKey{}).(*call).c }

type callKey struct{}

// A call is a request, and the [http.ResponseWriter] of its response.
type call struct {
	c      fiber.Ctx
	header http.Header
	err    error
}

// newRequest copies all strings: fiber reuses their memory after the request, and stores may keep keys for longer.
func newRequest(ctx context.Context, c fiber.Ctx) *http.Request {
	f := c.RequestCtx()
	r := &http.Request{
		Method: string(f.Method()), URL: &url.URL{Path: string(f.Path()), RawQuery: string(f.QueryArgs().QueryString())},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RequestURI: string(f.RequestURI()), Host: string(f.Host()),
		Header: http.Header{}, Body: http.NoBody, ContentLength: int64(f.Request.Header.ContentLength()), RemoteAddr: f.RemoteAddr().String(),
	}
	for k, v := range f.Request.Header.All() {
		r.Header.Add(string(k), string(v))
	}
	r = r.WithContext(ctx)
	for _, name := range c.Route().Params {
		r.SetPathValue(name, string([]byte(c.Params(name))))
	}
	return r
}

func serveNext(_ http.ResponseWriter, r *http.Request) {
	w := r.Context().Value(callKey{}).(*call)
	w.writeHeader()
	w.c.SetContext(r.Context())
	if err := w.c.Next(); err != nil {
		w.err = w.c.App().ErrorHandler(w.c, err)
	}
	for k, v := range w.c.Response().Header.All() {
		w.header.Set(string(k), string(v)) // for After
	}
}

// Header returns what the middleware sets.
func (w *call) Header() http.Header { return w.header }

// Status returns the status of a response that the handler wrote.
func (w *call) Status() int { return w.c.Response().StatusCode() }

// WriteHeader begins a response that the middleware writes itself.
func (w *call) WriteHeader(status int) {
	w.writeHeader()
	w.c.Status(status)
}

func (w *call) Write(b []byte) (int, error) { return w.c.Write(b) }

func (w *call) writeHeader() {
	for name, values := range w.header {
		w.c.Response().Header.Del(name)
		for _, v := range values {
			w.c.Response().Header.Add(name, v)
		}
	}
}
