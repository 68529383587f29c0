package httplimit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// A watcher lets a response through, and remembers its status.
type watcher struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status, unless it is one of those that only announce
// another.
func (w *watcher) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.see(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watcher) Write(b []byte) (int, error) {
	w.see(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// WriteString keeps net/http from copying the string.
func (w *watcher) WriteString(s string) (int, error) {
	w.see(http.StatusOK)
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom keeps what net/http can do about files. A copy of nothing does not begin
// the response.
func (w *watcher) ReadFrom(r io.Reader) (n int64, err error) {
	if n, err = io.Copy(w.ResponseWriter, r); n > 0 {
		w.see(http.StatusOK)
	}
	return n, err
}

// Unwrap is what [http.ResponseController] asks for.
func (w *watcher) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// see remembers the first status.
func (w *watcher) see(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// result returns the status of a response that is finished. Frameworks that pass
// by the watcher may know better.
func (w *watcher) result() int {
	if w.status != 0 {
		return w.status
	}
	if s, ok := w.ResponseWriter.(interface{ Status() int }); ok && s.Status() != 0 {
		return s.Status()
	}
	return http.StatusOK
}

// asCapableAs returns the watcher with those methods that handlers look for in a
// writer, if the other one has them.
func (w *watcher) asCapableAs(other http.ResponseWriter) http.ResponseWriter {
	flusher, flushes := other.(http.Flusher)
	hijacker, hijacks := other.(http.Hijacker)
	pusher, pushes := other.(http.Pusher)
	switch {
	case flushes && hijacks:
		return &flushHijackWatcher{flushWatcher{w, flusher}, hijacker}
	case flushes && pushes:
		return &flushPushWatcher{flushWatcher{w, flusher}, pusher}
	case flushes:
		return &flushWatcher{w, flusher}
	}
	return w
}

type flushWatcher struct {
	*watcher
	flusher http.Flusher
}

// Flush sends what there is, which begins the response.
func (w *flushWatcher) Flush() {
	w.see(http.StatusOK)
	w.flusher.Flush()
}

// FlushError is what [http.ResponseController] asks for, to say if that failed.
func (w *flushWatcher) FlushError() error {
	w.see(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

type flushHijackWatcher struct {
	flushWatcher
	hijacker http.Hijacker
}

// Hijack hands the connection over, to whatever protocol comes next.
func (w *flushHijackWatcher) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.hijacker.Hijack()
	if err == nil {
		w.see(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// A flushPushWatcher is what HTTP/2 has.
type flushPushWatcher struct {
	flushWatcher
	http.Pusher
}

// A bodyWatcher lets the body of a request through, and remembers if it could not be
// read.
type bodyWatcher struct {
	io.ReadCloser
	failed atomic.Bool // for a proxy's transport reads elsewhere
}

// watchBody puts a watcher around the body of a request, if it has one.
func watchBody(r *http.Request) *bodyWatcher {
	b := &bodyWatcher{ReadCloser: r.Body}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = b
	}
	return b
}

// Read reads. That somebody here has closed the body is not the client's fault.
func (b *bodyWatcher) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.Store(true)
	}
	return n, err
}
