package adminapi

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A Reload is how the last load of the rules ended.
type Reload struct {
	Time time.Time `json:"time"`

	// Loaded is when the rules in force were loaded. It equals Time unless the last load
	// failed.
	Loaded time.Time `json:"loaded"`

	// Errors are why the last load failed, so that older rules stayed in force.
	Errors []ReloadError `json:"errors"`

	// OnStoreFailure is the failure mode of rules without one.
	OnStoreFailure string `json:"on_store_failure"`

	// Kept means that a restart has the rules in force too.
	Kept bool `json:"-"`
}

// staleness says of a failed load what a caller without a token may know: where the error is.
func (r *Reload) staleness() string {
	where := ""
	if first := r.Errors[0]; first.File != "" {
		where = fmt.Sprintf(" (%s:%d)", filepath.Base(first.File), first.Line)
	}
	restart := ", and so would a restart"
	if r.Kept {
		restart = ""
	}
	return fmt.Sprintf("rules of %s in force: the load at %s failed%s%s",
		r.Loaded.Format(time.RFC3339), r.Time.Format(time.RFC3339), where, restart)
}

// A ReloadError is one error of a rule file, or of reading it.
type ReloadError struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Reason string `json:"reason"`
}

// The response of /rules.
type (
	rulesResponse struct {
		Loaded bool           `json:"loaded"`
		Rules  []ruleResponse `json:"rules"`

		// Others counts decisions under limits that requests carried.
		Others *counters `json:"others"`

		Reload *Reload `json:"reload,omitempty"`
	}

	ruleResponse struct {
		Name            string    `json:"name"`
		Domain          string    `json:"domain"`
		Path            []node    `json:"path"` // from the domain down to the rule
		File            string    `json:"file,omitempty"`
		Line            int       `json:"line,omitempty"`
		Limit           string    `json:"limit,omitempty"`
		Unlimited       bool      `json:"unlimited,omitempty"`
		Shadow          bool      `json:"shadow,omitempty"`
		Quota           bool      `json:"quota,omitempty"`
		Alias           string    `json:"alias,omitempty"`
		Replaces        []string  `json:"replaces,omitempty"`
		RequestsPerUnit uint32    `json:"requests_per_unit,omitempty"`
		Unit            string    `json:"unit,omitempty"`
		OnStoreFailure  string    `json:"on_store_failure"`
		Settings        []setting `json:"settings,omitempty"` // what the file says of it besides its limit
		Counts          *counters `json:"counts,omitempty"`
	}

	setting struct {
		Name string `json:"name"`
		Text string `json:"text"`
	}

	// A node without a value stands for all values.
	node struct {
		Key   string `json:"key"`
		Value string `json:"value,omitempty"`
	}

	counters struct {
		Allowed      uint64 `json:"allowed"`
		Denied       uint64 `json:"denied"`
		Shadowed     uint64 `json:"shadowed"`
		AllowedUnits uint64 `json:"allowed_units"`
		DeniedUnits  uint64 `json:"denied_units"`
		Errors       uint64 `json:"errors"`
	}
)

func (s *Server) handleRules(w http.ResponseWriter, _ *http.Request) {
	set := s.engine.Rules()
	byRule := map[string]*counters{}
	for _, c := range s.engine.RuleStats() {
		byRule[c.Rule] = newCounters(c)
	}
	response := rulesResponse{Loaded: set != nil, Rules: []ruleResponse{}, Others: byRule[""], Reload: s.options.Reload()}
	if set != nil {
		for _, r := range set.Rules() {
			rule := newRuleResponse(r)
			rule.Counts = byRule[r.Name]
			response.Rules = append(response.Rules, rule)
		}
	}
	writeJSON(w, http.StatusOK, response)
}

func newRuleResponse(r *rules.Rule) ruleResponse {
	response := ruleResponse{
		Name: r.Name, File: r.File, Line: r.Line, Unlimited: r.Unlimited, Shadow: r.Shadow, Quota: r.Quota,
		Alias: r.Alias, Replaces: r.Replaces, RequestsPerUnit: r.RequestsPerUnit,
		OnStoreFailure: r.OnStoreFailure.String(),
	}
	var path []rules.Entry
	response.Domain, path = r.Path()
	for _, e := range path {
		response.Path = append(response.Path, node{e.Key, e.Value})
	}
	for _, s := range r.Settings() {
		response.Settings = append(response.Settings, setting{s[0], s[1]})
	}
	if !r.Unlimited {
		response.Limit = r.Limit.String()
	}
	if r.Unit != rules.UnknownUnit {
		response.Unit = r.Unit.String()
	}
	return response
}

func newCounters(c *engine.RuleStats) *counters {
	return &counters{
		Allowed: c.Allowed(), Denied: c.Denied.Load(), Shadowed: c.Shadowed.Load(),
		AllowedUnits: c.AllowedUnits(), DeniedUnits: c.DeniedUnits.Load(), Errors: c.Errors.Load(),
	}
}

// handleRLConfig lists the rules in the format of envoyproxy/ratelimit, and with the
// limit where that format cannot express it.
func (s *Server) handleRLConfig(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	if set := s.engine.Rules(); set != nil {
		for _, r := range set.Rules() {
			fmt.Fprintf(&b, "%s: %s, shadow_mode: %t, quota_mode: %t\n", ratelimitName(r), rlconfigLimit(r), r.Shadow, r.Quota)
		}
	}
	writeText(w, b.String())
}

func rlconfigLimit(r *rules.Rule) string {
	if r.Unit == rules.UnknownUnit && !r.Unlimited {
		return fmt.Sprintf("limit=%q", r.Limit.WithName("").String())
	}
	return fmt.Sprintf("unit=%s requests_per_unit=%d", strings.ToUpper(r.Unit.String()), r.RequestsPerUnit)
}
