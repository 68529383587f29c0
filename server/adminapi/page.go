package adminapi

import (
	"net/http"

	"github.com/penstock-io/penstock/server/page"
)

// preferPage answers browsers with the page, and other clients by a handler.
func (s *Server) preferPage(other http.HandlerFunc) http.HandlerFunc {
	forBrowsers := s.servePage()
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if page.Wanted(r) {
			forBrowsers(w, r)
			return
		}
		other(w, r)
	}
}

// servePage answers with files of the page. They contain no data, so they need no token: their
// scripts ask the rest of this API for it, most of it in observe.go.
func (s *Server) servePage() http.HandlerFunc {
	return s.authorize(endpoint{methods: "GET, HEAD", public: true, handle: func(w http.ResponseWriter, r *http.Request) {
		if !page.Serve(w, r) {
			handleNotFound(w, r)
		}
	}})
}
