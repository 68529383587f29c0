// Package httplimit puts rate limits on HTTP.
//
// [Protect] is middleware: it charges each request to its client, refuses those
// that are too many, and tells clients how they stand in the header fields that
// they understand. One line protects a service:
//
//	http.ListenAndServe(":8080", httplimit.Protect(lim, nil)(mux))
//
// [Options] say whom a request is charged to, how much, and what to do about it:
// by an API key instead of an address, by what the response turned out to cost,
// only for wrong passwords, without enforcing anything yet.
//
// [Pace] is the other side: a transport for clients that keeps to the limits of
// somebody else's server.
package httplimit
