package adminapi

import "net/http"

func (s *Server) handleHealthz(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") }

// readiness is the response of /readyz.
type readiness struct {
	Ready    bool     `json:"ready"`
	Degraded bool     `json:"degraded,omitempty"`
	Reasons  []string `json:"reasons,omitempty"`
}

func (s *Server) handleReadyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.options.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, readiness{Reasons: reasons(err)})
		return
	}
	if err := s.options.Degraded(); err != nil {
		writeJSON(w, http.StatusOK, readiness{Ready: true, Degraded: true, Reasons: reasons(err)})
		return
	}
	writeJSON(w, http.StatusOK, readiness{Ready: true})
}

// reasons returns the texts of joined errors.
func reasons(err error) []string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []string{err.Error()}
	}
	var all []string
	for _, err := range joined.Unwrap() {
		all = append(all, reasons(err)...)
	}
	return all
}
