package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

// A wish is what a request asks for that its limit denies though units are left.
type wish struct {
	cost      int64
	terms     engine.Terms
	permits   engine.PermitUse
	used      int64 // by a request before it
	denied    bool
	penalized bool
}

var wishes = map[string]map[string]wish{
	"10/1h LIMITS": {
		"keep all free":               {cost: 1, terms: engine.Terms{KeepFree: 10}, denied: true},
		"keep some free":              {cost: 8, terms: engine.Terms{KeepFree: 3}, denied: true},
		"keep too much free":          {cost: 1, terms: engine.Terms{KeepFree: 1 << 40}, denied: true},
		"keep free what is used":      {cost: 1, terms: engine.Terms{KeepFree: 9}, used: 1, denied: true},
		"more than the limit":         {cost: 11, denied: true},
		"more than the limit, partly": {cost: 11, used: 4, denied: true},
		"far more, as much as is left, of which too much is to stay free": {cost: 1 << 40, terms: engine.Terms{AtMost: true, KeepFree: 10}, denied: true},
		"more than is left":                    {cost: 3, used: 8, denied: true, penalized: true},
		"one of none":                          {cost: 1, used: 10, denied: true, penalized: true},
		"more than the limit of none":          {cost: 11, used: 10, denied: true, penalized: true},
		"one of none, with ID":                 {cost: 1, terms: engine.Terms{ID: "other"}, used: 10, denied: true, penalized: true},
		"one of none, with units to keep free": {cost: 1, terms: engine.Terms{KeepFree: 5}, used: 10, denied: true, penalized: true},
		"as much as is left of none":           {cost: 5, terms: engine.Terms{AtMost: true}, used: 10, denied: true, penalized: true},
		"a peek at none":                       {cost: 0, used: 10},
		"a repetition of what was granted":     {cost: 10, terms: engine.Terms{ID: "first"}, used: 10},
	},
	"10/1h keep_free": {
		"of what its class may have": {cost: 8, used: 5, denied: true, penalized: true},
		"more than it may have":      {cost: 9, denied: true},
		"one of none":                {cost: 1, used: 8, denied: true, penalized: true},
	},
	"1/10s leaky-bucket burst=5": {
		"an API that cannot wait": {cost: 1, terms: engine.Terms{MaxDelay: engine.NoDelay}, used: 1, denied: true, penalized: true},
		"hardly any delay":        {cost: 1, terms: engine.Terms{MaxDelay: time.Millisecond, Hurried: true}, used: 1, denied: true},
		"no delay of a full one":  {cost: 1, terms: engine.Terms{MaxDelay: engine.NoDelay}, used: 5, denied: true, penalized: true},
		"keep places free":        {cost: 1, terms: engine.Terms{KeepFree: 5}, denied: true},
		"more than all places":    {cost: 6, denied: true},
		"one place of a full one": {cost: 1, used: 5, denied: true, penalized: true},
	},
	"10/30s concurrent": {
		"hold no permit yet":  {cost: 1, permits: engine.NewPermits, used: 1, denied: true},
		"far too many":        {cost: 1000, permits: engine.NewPermits, denied: true},
		"more than the limit": {cost: 11, denied: true},
	},
	"10/1h fixed-window charge: always": {
		"after nothing is left": {cost: 5, used: 10, denied: true, penalized: true},
	},
}

func penaltyRules(limit string) string {
	more := ""
	limit, charged := strings.CutSuffix(limit, " charge: always")
	if charged {
		more += ", charge: always"
	}
	limit, keeps := strings.CutSuffix(limit, " keep_free")
	if keeps {
		more += ", keep_free: 2"
	}
	if strings.HasSuffix(limit, "concurrent") {
		more += ", id: id"
	}
	return "domain: api\ndescriptors: [{key: user, limit: " + limit + ", penalty: {after: 3/1m, for: 10m}" + more + "}]"
}

// Only denials of a spent limit count towards a penalty, however a request is denied.
func TestPenaltyCountsDenialsOfSpentLimitsOnly(t *testing.T) {
	for limits, all := range wishes {
		algorithms := []string{""}
		if strings.HasSuffix(limits, "LIMITS") {
			algorithms = []string{"token-bucket", "fixed-window", "fixed-window align=clock", "sliding-window", "rolling-window", "sliding-log"}
		}
		for _, algorithm := range algorithms {
			limit := strings.Replace(limits, "LIMITS", algorithm, 1)
			for name, w := range all {
				for _, remember := range []bool{false, true} {
					checkWish(t, limit, name, w, remember)
				}
			}
		}
	}
}

// Hits under charge: always are used up whatever the answer is, so a wish may spend the limit itself. Until it has,
// as a peek without wishes tells, its denials do not count.
func TestPenaltyOfReportsCountsDenialsOfSpentLimitsOnly(t *testing.T) {
	early := 0
	for limits, all := range wishes {
		var algorithms []string
		switch {
		case strings.HasSuffix(limits, "LIMITS"):
			algorithms = []string{"token-bucket", "fixed-window", "fixed-window align=clock", "sliding-window"}
		case strings.Contains(limits, "leaky-bucket"):
			algorithms = []string{""}
		}
		for _, algorithm := range algorithms {
			limit := strings.Replace(limits, "LIMITS", algorithm, 1)
			for name, w := range all {
				if w.terms.ID == "" && !w.terms.AtMost { // which reports cannot have
					early += checkReports(t, limit+" charge: always", name, w)
				}
			}
		}
	}
	if early == 0 {
		t.Error("no wish was denied before its limit was spent")
	}
}

// checkReports returns how many requests of a wish were denied before the limit was spent.
func checkReports(t *testing.T, limit, name string, w wish) (early int) {
	t.Helper()
	book, ask := newWishEngine(t, limit, false)
	if w.used > 0 {
		ask(w.used, "a", 0, engine.Terms{})
	}
	counted := 0
	for range 9 {
		peek := ask(0, "a", w.permits, engine.Terms{})
		r := ask(w.cost, "a", w.permits, w.terms)
		switch spent := peek.OverLimit; {
		case spent && !r.OverLimit:
			t.Errorf("%s: %s: got %s of a spent limit", limit, name, textOf(&r))
		case spent && w.cost > 0:
			counted++
		case r.OverLimit:
			early++
		}
	}
	book.BanOffenders(t.Context())
	if banned := len(book.List("", "")) > 0; banned != (counted >= 3) {
		t.Errorf("%s: %s: banned=%t after %d denials of a spent limit and %d others", limit, name, banned, counted, early)
	}
	return early
}

func checkWish(t *testing.T, limit, name string, w wish, remember bool) {
	t.Helper()
	book, ask := newWishEngine(t, limit, remember)
	if w.used > 0 {
		first := engine.Terms{}
		if w.terms.ID != "" {
			first.ID = "first"
		}
		ask(w.used, "a", 0, first)
	}
	for range 9 {
		if r := ask(w.cost, "a", w.permits, w.terms); r.OverLimit != w.denied {
			t.Errorf("%s: %s: got %s, want denied=%t", limit, name, textOf(&r), w.denied)
		}
	}
	book.BanOffenders(t.Context())
	if banned := len(book.List("", "")) > 0; banned != w.penalized {
		t.Errorf("%s: %s, remembered=%t: banned=%t, want %t", limit, name, remember, banned, w.penalized)
	}
	if r := ask(1, "b", 0, engine.Terms{}); !w.penalized && r.OverLimit && w.used < 8 {
		t.Errorf("%s: %s: a plain request afterwards: %s", limit, name, textOf(&r))
	}
}

// newWishEngine returns the overrides of an engine with a penalty, and how to ask it about a key.
func newWishEngine(t *testing.T, limit string, remember bool) (
	book *overrides.Set, ask func(cost int64, id string, permits engine.PermitUse, terms engine.Terms) engine.Result,
) {
	t.Helper()
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	options := &engine.Options{Overrides: book}
	if remember {
		options.OverLimitKeys, options.OverLimitAge, options.CacheDenials = 1024, time.Minute, true
	}
	e := newEngine(t, newMemory(), penaltyRules(limit), options)
	return book, func(cost int64, id string, permits engine.PermitUse, terms engine.Terms) engine.Result {
		d := engine.Descriptor{Entries: []rules.Entry{{Key: "user", Value: "7"}}, Cost: cost, Permits: permits}
		if strings.Contains(limit, "concurrent") {
			d.Entries = append(d.Entries, rules.Entry{Key: "id", Value: id})
		}
		var r engine.Result
		if err := e.DecideOn(t.Context(), "api", terms, []engine.Descriptor{d}, &r); err != nil {
			t.Fatalf("%s: %v", limit, err)
		}
		return r
	}
}
