package adminapi

import (
	"net/http"

	"github.com/penstock-io/penstock/server/observe"
)

// This file serves what the page for browsers shows of the traffic; penstock top asks the same.

const (
	maxTopKeys     = 500
	defaultTopKeys = 20

	maxRuleRows     = 1000
	defaultRuleRows = 100

	maxFilter = 200 // bytes
)

// live answers /v1/live.
func (s *Server) live(r *http.Request) (*liveResponse, error) {
	q := observe.LiveQuery{Window: observe.TwoMinutes, Scope: observe.ScopeDaemon, Sort: observe.SortNames[0], Rules: defaultRuleRows}
	err := decodeQuery(r, map[string]func(string) error{
		"window": choice(&q.Window, observe.Windows...),
		"scope":  choice(&q.Scope, observe.ScopeDaemon, observe.ScopeAll),
		"sort":   choice(&q.Sort, observe.SortNames...),
		"rules":  number(&q.Rules, 0, maxRuleRows),
		"filter": short(&q.Filter, maxFilter),
	})
	if err != nil {
		return nil, err
	}
	return &liveResponse{s.observer.Live(r.Context(), q), s.failedReload()}, nil
}

// A liveResponse is the response of /v1/live, with how the last load of the rules of this
// daemon failed, if it did.
type liveResponse struct {
	*observe.Live
	FailedReload *Reload `json:"failed_reload,omitempty"`
}

// failedReload returns how the last load of the rules failed, with its first error alone, or
// nil if it did not.
func (s *Server) failedReload() *Reload {
	last := s.options.Reload()
	if last == nil || len(last.Errors) == 0 {
		return nil
	}
	last.Errors = last.Errors[:1]
	return last
}

// top answers /v1/top.
func (s *Server) top(r *http.Request) (*observe.Top, error) {
	q := observe.TopQuery{By: observe.ByAsked, Scope: observe.ScopeDaemon, N: defaultTopKeys}
	err := decodeQuery(r, map[string]func(string) error{
		"by":    choice(&q.By, observe.ByAsked, observe.ByDenied),
		"scope": choice(&q.Scope, observe.ScopeDaemon, observe.ScopeAll),
		"n":     number(&q.N, 1, maxTopKeys),
		"rule": func(text string) error {
			q.Rule = &text
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return s.observer.Top(r.Context(), q), nil
}
