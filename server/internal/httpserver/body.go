package httpserver

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// MaxBody is the longest body of a request with decisions.
const MaxBody = 64 << 10

// ErrTooLarge means that a body is longer than [MaxBody].
var ErrTooLarge = errors.New("body too large")

// ReadBody appends the body of a request to buf, up to [MaxBody]. It returns what it has read
// with an error too, so that a caller can keep the buffer.
func ReadBody(r *http.Request, buf []byte) ([]byte, error) {
	if r.ContentLength > MaxBody {
		return buf, ErrTooLarge
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > MaxBody:
			return buf, ErrTooLarge
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return buf, fmt.Errorf("cannot read the body: %w", err)
		}
	}
}

// IsJSON reports whether a content type is JSON. Browsers let a page of any site
// send other types without a CORS preflight, so the check also rejects pages.
func IsJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || media != "application/json" {
		return false
	}
	charset, ok := parameters["charset"]
	return !ok || charset == "utf-8" || charset == "UTF-8"
}
