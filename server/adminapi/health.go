package adminapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// list says what can be asked.
func (d *Server) list(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	fmt.Fprintf(&b, "penstock %s\n\n", d.options.Version)
	for _, e := range d.endpoints() {
		fmt.Fprintf(&b, "%-22s %s\n", strings.TrimSuffix(e.path, "{$}"), e.help)
	}
	writeText(w, b.String())
}

func (d *Server) healthz(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") }

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool     `json:"ready"`
	Degraded bool     `json:"degraded,omitempty"`
	Reasons  []string `json:"reasons,omitempty"`
}

func (d *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := d.options.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, readiness{Reasons: reasons(err)})
		return
	}
	if err := d.options.Degraded(); err != nil {
		writeJSON(w, http.StatusOK, readiness{Ready: true, Degraded: true, Reasons: reasons(err)})
		return
	}
	writeJSON(w, http.StatusOK, readiness{Ready: true})
}

// reasons tells joined errors apart.
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

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // a caller that has gone hears nothing
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // as above
}
