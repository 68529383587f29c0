// Package httplimit puts rate limits on HTTP.
//
// [Protect] is middleware: it charges each request to its client, denies requests
// over the limit with status 429, and sets rate limit header fields. One line
// protects a service:
//
//	http.ListenAndServe(":8080", httplimit.Protect(lim, nil)(mux))
//
// [Options] choose the key and the cost of a request, trusted proxies, charging
// by the response (tokens used, wrong passwords), and a shadow mode that only
// reports.
//
// [Pace] is for clients: a transport that keeps to the limits of a remote server.
//
// [Admit] and [Break] protect from overload: a server from more requests than it
// can serve, and a client from services that fail. See package overload.
package httplimit
