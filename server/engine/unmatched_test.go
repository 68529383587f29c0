package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// unmatchedOf returns the counters of unmatched requests in one line.
func unmatchedOf(e *engine.Engine) string {
	var parts []string
	for _, c := range e.UnmatchedCounters() {
		parts = append(parts, fmt.Sprintf("%q=%d", c.Domain, c.Count))
	}
	return strings.Join(parts, " ")
}

func TestUnmatchedRequestsAreCountedByDomain(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, nil)
	want(t, unmatchedOf(e), `""=0 "api"=0`)
	want(t, decide(t, e, "apii", descriptor(1, "user=ada")), "allowed: no rule")
	want(t, decide(t, e, "other", descriptor(1, "user=ada")), "allowed: no rule")
	want(t, decide(t, e, "api", descriptor(1, "usr=ada")), "allowed: no rule")
	want(t, decide(t, e, "api", descriptor(1, "usr=ada"), descriptor(1, "pth=/")), "allowed: no rule | no rule")
	want(t, unmatchedOf(e), `""=2 "api"=2`)
	decide(t, e, "api", descriptor(1, "user=ada"), descriptor(1, "usr=ada")) // one descriptor has a rule
	decide(t, e, "api", descriptor(1, "vip=ada"))                            // unlimited on purpose
	decide(t, e, "api", withOverride(descriptor(1, "usr=ada"), 5))           // it has its own limit
	decide(t, e, "api", descriptor(0, "usr=ada"))                            // a peek
	decide(t, e, "apii", descriptor(-1, "usr=ada"))                          // a refund
	want(t, unmatchedOf(e), `""=2 "api"=2`)
	e.SetRules(parse(t, strings.Replace(apiRules, "domain: api", "domain: api ", 1)))
	want(t, unmatchedOf(e), `""=2 "api"=2`)
}

func TestDenyUnmatchedDeniesWhatNoRuleMatches(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, &engine.Options{DenyUnmatched: true})
	want(t, decide(t, e, "apii", descriptor(1, "user=ada")), "denied: no rule over")
	want(t, decide(t, e, "api", descriptor(1, "usr=ada")), "denied: no rule over")
	want(t, decide(t, e, "api", descriptor(1, "usr=ada"), descriptor(0, "pth=/")), "denied: no rule over | no rule over")
	want(t, decide(t, e, "api", descriptor(1, "user=ada"), descriptor(1, "usr=ada")), "allowed: granted=1 remaining=1 | no rule")
	want(t, decide(t, e, "api", descriptor(1, "vip=ada")), "allowed: unlimited")
	want(t, decide(t, e, "api", withOverride(descriptor(1, "usr=ada"), 5)), "allowed: granted=1 remaining=4")
	want(t, decide(t, e, "api", descriptor(0, "usr=ada")), "allowed: no rule")
	shadow := newEngine(t, newMemory(), apiRules, &engine.Options{DenyUnmatched: true, Shadow: true})
	want(t, decide(t, shadow, "apii", descriptor(1, "user=ada")), "allowed: no rule")
}

// Each descriptor without a rule is reported, because a typo in one of two loses a limit too.
func TestOnUnmatchedIsCalledForEachDescriptor(t *testing.T) {
	var calls []string
	e := newEngine(t, newMemory(), apiRules, &engine.Options{OnUnmatched: func(domain string, entries []rules.Entry) {
		calls = append(calls, fmt.Sprint(domain, entries))
	}})
	decide(t, e, "apii", descriptor(1, "user=ada"), descriptor(1, "path=/"))
	decide(t, e, "api", descriptor(1, "user=ada"), descriptor(1, "usr=ada"))
	decide(t, e, "api", descriptor(1, "user=ada"))
	want(t, strings.Join(calls, " "), "apii[] api[{usr ada}]")
}
