package adminapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// What /rules answers.
type (
	ruleBook struct {
		Loaded bool   `json:"loaded"`
		Rules  []rule `json:"rules"`

		// Others are the decisions under limits that requests named.
		Others *counts `json:"others"`
	}

	rule struct {
		Name            string   `json:"name"`
		File            string   `json:"file,omitempty"`
		Line            int      `json:"line,omitempty"`
		Limit           string   `json:"limit,omitempty"`
		Unlimited       bool     `json:"unlimited,omitempty"`
		Shadow          bool     `json:"shadow,omitempty"`
		Quota           bool     `json:"quota,omitempty"`
		Alias           string   `json:"alias,omitempty"`
		Replaces        []string `json:"replaces,omitempty"`
		RequestsPerUnit uint32   `json:"requests_per_unit,omitempty"`
		Unit            string   `json:"unit,omitempty"`
		OnStoreFailure  string   `json:"on_store_failure"`
		Counts          *counts  `json:"counts,omitempty"`
	}

	counts struct {
		Allowed      uint64 `json:"allowed"`
		Denied       uint64 `json:"denied"`
		Shadowed     uint64 `json:"shadowed"`
		AllowedUnits uint64 `json:"allowed_units"`
		DeniedUnits  uint64 `json:"denied_units"`
		Errors       uint64 `json:"errors"`
	}
)

func (d *Server) rules(w http.ResponseWriter, _ *http.Request) {
	set := d.judge.Rules()
	tallies := map[string]*counts{}
	for _, c := range d.judge.RuleCounters() {
		tallies[c.Rule] = countsOf(c)
	}
	book := ruleBook{Loaded: set != nil, Rules: []rule{}, Others: tallies[""]}
	if set != nil {
		for _, r := range set.Rules() {
			told := ruleOf(r)
			told.Counts = tallies[r.Name]
			book.Rules = append(book.Rules, told)
		}
	}
	writeJSON(w, http.StatusOK, book)
}

func ruleOf(r *rules.Rule) rule {
	told := rule{
		Name: r.Name, File: r.File, Line: r.Line, Unlimited: r.Unlimited, Shadow: r.Shadow, Quota: r.Quota,
		Alias: r.Alias, Replaces: r.Replaces, RequestsPerUnit: r.RequestsPerUnit,
		OnStoreFailure: r.OnStoreFailure.String(),
	}
	if !r.Unlimited {
		told.Limit = r.Limit.String()
	}
	if r.Unit != rules.UnknownUnit {
		told.Unit = r.Unit.String()
	}
	return told
}

func countsOf(c *engine.RuleCounters) *counts {
	return &counts{
		Allowed: c.Allowed.Load(), Denied: c.Denied.Load(), Shadowed: c.Shadowed.Load(),
		AllowedUnits: c.AllowedUnits.Load(), DeniedUnits: c.DeniedUnits.Load(), Errors: c.Errors.Load(),
	}
}

// rlconfig tells the rules as envoyproxy/ratelimit does, in order, and of those
// that it cannot have, the limit.
func (d *Server) rlconfig(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	if set := d.judge.Rules(); set != nil {
		for _, r := range set.Rules() {
			fmt.Fprintf(&b, "%s: %s, shadow_mode: %t, quota_mode: %t\n", r.Name, rlconfigLimit(r), r.Shadow, r.Quota)
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
