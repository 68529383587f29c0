package main

import (
	"fmt"
	"net/http"
	"net/url"
)

// clients returns one request from each of so many addresses.
func clients(n int) []*http.Request {
	requests := make([]*http.Request, n)
	for i := range requests {
		requests[i] = &http.Request{
			Method: http.MethodGet, URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Host: "api.example", Header: http.Header{},
			RemoteAddr: fmt.Sprintf("198.%d.%d.%d:%d", 18+i>>16, i>>8&255, i&255, 1024+i%50_000),
		}
	}
	return requests
}

// A response keeps only its status and header fields. It is reused for every request,
// unlike in a server, by all contenders alike.
type response struct {
	header http.Header
	status int
	body   int
}

func newResponse() *response { return &response{header: http.Header{}} }

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) { r.status = status }

func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	r.body += len(b)
	return len(b), nil
}

func (r *response) reset() {
	clear(r.header)
	r.status, r.body = 0, 0
}

// helloBody is the response of the handler behind all limits.
var helloBody = []byte("hello")

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(helloBody) }
