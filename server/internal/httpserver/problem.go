package httpserver

import (
	"net/http"

	"github.com/penstock-io/penstock/httplimit"
)

// WriteProblem answers with a problem, which nobody is to keep for other requests.
func WriteProblem(w http.ResponseWriter, p httplimit.Problem) {
	w.Header().Set("Cache-Control", "no-store")
	httplimit.WriteProblem(w, p)
}

// MethodNotAllowed answers a request whose method the resource does not have.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request, allowed string) {
	w.Header().Set("Allow", allowed)
	WriteProblem(w, httplimit.Problem{
		Status: http.StatusMethodNotAllowed,
		Detail: r.URL.Path + " is not asked by " + r.Method + ", but by " + allowed,
	})
}
