package adminapi

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/internal/auth"
)

// actions are the requests that change something, by method and path. All of them need a
// reason, are on record in the audit log, also if they are refused, and do not exist if
// Options.ReadOnly is set.
var actions = map[string]string{
	"POST /v1/keys":   audit.KeyRefund,
	"DELETE /v1/keys": audit.KeyReset,

	"PUT /v1/overrides":    audit.OverrideSet,
	"DELETE /v1/overrides": audit.OverrideDelete,

	"PUT /v1/candidates":    audit.CandidateSet,
	"DELETE /v1/candidates": audit.CandidateDelete,
}

// actionOf returns the action that a request asks for, or "".
func actionOf(r *http.Request) string {
	action := actions[r.Method+" "+r.URL.Path]
	if action == audit.KeyRefund && r.URL.Query().Has(settleParameter) {
		return audit.KeySettle
	}
	return action
}

type identityKey struct{}

// withIdentity returns the request with the identity of its caller, for [Server.entry].
func withIdentity(r *http.Request, i callers.Identity) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), identityKey{}, i))
}

// entry returns an entry of the audit log for the action that a request asks for, without
// its target and its reason.
func entry(r *http.Request) audit.Entry {
	i, _ := r.Context().Value(identityKey{}).(callers.Identity)
	return audit.Entry{
		Action: actionOf(r), API: "admin", Verb: r.Method + " " + r.URL.Path, Actor: auth.HTTPActor(r, i),
	}
}

// refuse records that a request is not carried out, if it asks for an action.
func (s *Server) refuse(r *http.Request, t audit.Target, reason, detail string) {
	if actionOf(r) == "" {
		return
	}
	e := entry(r)
	e.Target, e.Reason = t, reason
	s.options.Audit.Refuse(e, detail)
}

// refuseUnread is refuse for a request of which nothing but the URL was read.
func (s *Server) refuseUnread(r *http.Request, detail string) {
	k, _ := decodeKeyParameters(r) // an error leaves what came before it
	s.refuse(r, s.refusedTarget(k), k.reason, detail)
}

// checkReason returns an error unless the reason of an action says something.
func checkReason(reason string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return &parameterError{"reason", "want a reason, such as a ticket: it is written to the audit log"}
	case len(reason) > audit.MaxReason, !utf8.ValidString(reason):
		return &parameterError{"reason", "want UTF-8 of at most 512 bytes"}
	}
	return nil
}

// The response of /v1/audit.
type auditResponse struct {
	Entries []audit.Entry `json:"entries"` // the newest first
}

func (s *Server) handleAudit(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, auditResponse{append([]audit.Entry{}, s.options.Audit.Recent()...)})
}
