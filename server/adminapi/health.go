package adminapi

import "net/http"

func (s *Server) handleHealthz(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") }

// readiness is the response of /readyz.
type readiness struct {
	Ready    bool     `json:"ready"`
	Degraded bool     `json:"degraded,omitempty"`
	Reasons  []string `json:"reasons,omitempty"`

	// OldRules says that the last load of the rules failed, so that those of an earlier one are
	// in force. Why is not for everyone: /rules has it.
	OldRules bool `json:"old_rules,omitempty"`
}

func (s *Server) handleReadyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.options.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, readiness{Reasons: reasons(err)})
		return
	}
	state := readiness{Ready: true}
	if err := s.options.Degraded(); err != nil {
		state.Degraded, state.Reasons = true, reasons(err)
	}
	if last := s.options.Reload(); last != nil && len(last.Errors) > 0 {
		state.OldRules, state.Reasons = true, append(state.Reasons, last.staleness())
	}
	writeJSON(w, http.StatusOK, state)
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
