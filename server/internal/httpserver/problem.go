package httpserver

import (
	"net/http"

	"github.com/penstock-io/penstock/httplimit"
)

// WriteProblem writes a problem document that must not be cached.
func WriteProblem(w http.ResponseWriter, p httplimit.Problem) {
	w.Header().Set("Cache-Control", "no-store")
	httplimit.WriteProblem(w, p)
}

// MethodNotAllowed writes the response to a request with a method that its path does not
// allow.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request, allowed string) {
	w.Header().Set("Allow", allowed)
	WriteProblem(w, httplimit.Problem{
		Status: http.StatusMethodNotAllowed,
		Detail: "method " + r.Method + " not allowed, use " + allowed,
	})
}
