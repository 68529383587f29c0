package httplimit

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// This file is what the transports of [Pace] and [Break] have in common.

// closeBody closes the body of a request that is not sent, which is required of a RoundTripper.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // nothing is read any more
	}
}

// closeIdleConnections closes those of a transport that can.
func closeIdleConnections(t http.RoundTripper) {
	if t, ok := t.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// hostOf returns the normalized host of a URL.
func hostOf(u *url.URL) string {
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return host
	}
	return net.JoinHostPort(host, port)
}
