package httpserver

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Remote clients can cause any number of broken handshakes, and each is a line of net/http.
func TestServerLogsFewLinesOfNetHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := New(http.NotFoundHandler(), Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
		for range 1000 {
			s.server.ErrorLog.Printf("http: TLS handshake error from 192.0.2.1: EOF")
		}
		if n := strings.Count(out.String(), "\n"); n != 10 {
			t.Errorf("%d lines at once, want 10", n)
		}
		out.Reset()
		time.Sleep(time.Second)
		s.server.ErrorLog.Printf("http: panic serving 192.0.2.1")
		if got := out.String(); !strings.Contains(got, `level=WARN msg="http: panic serving 192.0.2.1" not_logged=990`) {
			t.Errorf("a second later: %s", got)
		}
	})
}
