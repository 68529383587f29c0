package httplimit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// A statusRecorder passes a response on and records its status.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader records the status, unless it is informational.
func (w *statusRecorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.record(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusRecorder) Write(b []byte) (int, error) {
	w.record(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// WriteString avoids copying the string in net/http.
func (w *statusRecorder) WriteString(s string) (int, error) {
	w.record(http.StatusOK)
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom keeps net/http's sendfile path. An empty copy does not start the
// response.
func (w *statusRecorder) ReadFrom(r io.Reader) (n int64, err error) {
	if n, err = io.Copy(w.ResponseWriter, r); n > 0 {
		w.record(http.StatusOK)
	}
	return n, err
}

// Unwrap supports [http.ResponseController].
func (w *statusRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// record keeps the first status.
func (w *statusRecorder) record(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// result returns the status of a finished response. Frameworks that bypass the
// recorder may have a Status method.
func (w *statusRecorder) result() int {
	if w.status != 0 {
		return w.status
	}
	if s, ok := w.ResponseWriter.(interface{ Status() int }); ok && s.Status() != 0 {
		return s.Status()
	}
	return http.StatusOK
}

// withMethodsOf returns the recorder with the optional methods (Flush, Hijack,
// Push) that the original writer has.
func (w *statusRecorder) withMethodsOf(other http.ResponseWriter) http.ResponseWriter {
	_, flushes := other.(http.Flusher)
	hijacker, hijacks := other.(http.Hijacker)
	pusher, pushes := other.(http.Pusher)
	switch {
	case flushes && hijacks:
		return &flushHijackRecorder{flushRecorder{w}, hijacker}
	case flushes && pushes:
		return &flushPushRecorder{flushRecorder{w}, pusher}
	case flushes:
		return &flushRecorder{w}
	}
	return w
}

type flushRecorder struct{ *statusRecorder }

// Flush starts the response.
func (w *flushRecorder) Flush() { _ = w.FlushError() }

// FlushError supports [http.ResponseController].
func (w *flushRecorder) FlushError() error {
	w.record(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

type flushHijackRecorder struct {
	flushRecorder
	hijacker http.Hijacker
}

// Hijack hands the connection over to another protocol.
func (w *flushHijackRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.hijacker.Hijack()
	if err == nil {
		w.record(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// A flushPushRecorder is for HTTP/2.
type flushPushRecorder struct {
	flushRecorder
	http.Pusher
}

// A bodyRecorder passes a request body on and records whether reading it failed.
type bodyRecorder struct {
	io.ReadCloser
	failed atomic.Bool // a proxy's transport reads on another goroutine
}

// recordBody wraps the body of a request, if it has one.
func recordBody(r *http.Request) *bodyRecorder {
	b := &bodyRecorder{ReadCloser: r.Body}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = b
	}
	return b
}

// Read records errors, except those of a body that the handler closed.
func (b *bodyRecorder) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.Store(true)
	}
	return n, err
}
