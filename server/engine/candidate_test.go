package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const candidateRules = `
domain: shop
descriptors:
  - {key: tight, limit: 2/1h fixed-window, candidate: 4/1h fixed-window}
  - {key: loose, limit: 4/1h fixed-window, candidate: 2/1h fixed-window}
  - {key: other, limit: 3/1h fixed-window}
  - {key: bucket, limit: 5/1h burst=2, candidate: 3/1h sliding-log}
  - {key: shadow, shadow_mode: true, limit: 1/1h fixed-window, candidate: 2/1h fixed-window}
  - {key: quota, quota_mode: true, limit: 1/1h fixed-window, candidate: 2/1h fixed-window}
  - {key: always, charge: always, limit: 1/1h fixed-window, candidate: 2/1h fixed-window}
  - {key: tokens, settle: true, limit: 10/1h fixed-window, candidate: 20/1h fixed-window}
  - key: both
    limit: 3/1m fixed-window
    also: 4/1h fixed-window
    candidate: 1/1m fixed-window
`

// compared returns what was counted of a candidate: how many requests both limits allowed, only the candidate denied, only
// the limit in force denied, and both denied.
func compared(t testing.TB, e *engine.Engine, rule string) string {
	t.Helper()
	for _, c := range e.Candidates() {
		if c.Rule == rule {
			return fmt.Sprint(c.Of(false, false), c.Of(false, true), c.Of(true, false), c.Of(true, true))
		}
	}
	t.Fatalf("no candidate of %s", rule)
	return ""
}

func TestCandidatesAreComparedAndNeverDeny(t *testing.T) {
	for _, c := range []struct {
		entry   string
		costs   []int64
		allowed string // one digit a request
		want    string // both allow, only the candidate denies, only the limit in force does, both deny
	}{
		{"tight=a", []int64{1, 1, 1, 1, 1, 1}, "110000", "2 0 2 2"},
		{"loose=a", []int64{1, 1, 1, 1, 1, 1}, "111100", "2 2 0 2"},
		{"bucket=a", []int64{1, 1, 1, 1}, "1100", "2 0 1 1"},
		{"shadow=a", []int64{1, 1, 1, 1}, "1111", "1 0 1 2"},
		{"quota=a", []int64{1, 1, 1}, "100", "1 0 1 1"},
		{"always=a", []int64{1, 1, 1}, "100", "1 0 1 1"},
		{"both=a", []int64{1, 1, 1, 1}, "1110", "1 2 0 1"},
		{"loose=a", []int64{2, 0, -1, 1, 1}, "11111", "2 1 0 0"}, // what is refunded is not counted
		{"tight=a", []int64{3, 4, 1, 1}, "0011", "1 1 1 1"},
	} {
		t.Run(c.entry, func(t *testing.T) {
			onBothStores(t, func(t *testing.T, store penstock.Store) {
				e := newEngine(t, store, candidateRules, nil)
				got := ""
				for _, cost := range c.costs {
					var r engine.Result
					if err := e.Decide(t.Context(), "shop", []engine.Descriptor{descriptor(cost, c.entry)}, &r); err != nil {
						t.Fatal(err)
					}
					got += map[bool]string{true: "0", false: "1"}[r.OverLimit]
				}
				want(t, got, c.allowed)
				rule, _, _ := strings.Cut(c.entry, "=")
				want(t, compared(t, e, "shop/"+rule), c.want)
			})
		})
	}
}

// If another limit denies the request in the candidate's world, the candidate is neither charged nor compared.
func TestCandidateBesideOtherRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, candidateRules, nil)
		request := []engine.Descriptor{descriptor(1, "loose=a"), descriptor(1, "other=a")}
		for range 3 {
			decide(t, e, "shop", request...)
		}
		want(t, compared(t, e, "shop/loose"), "2 1 0 0")
		want(t, decide(t, e, "shop", request...), "denied: granted=0 remaining=1 | granted=0 remaining=0 over denied")
		want(t, compared(t, e, "shop/loose"), "2 1 0 0")

		both := []engine.Descriptor{descriptor(1, "loose=b"), descriptor(1, "tight=b")} // candidates of 2 and 4
		for range 5 {
			decide(t, e, "shop", both...)
		}
		want(t, compared(t, e, "shop/loose"), "4 4 0 0")
		want(t, compared(t, e, "shop/tight"), "2 0 0 0") // the rest is denied by the other candidate
		want(t, decide(t, e, "shop", descriptor(1, "tight=b")), "denied: granted=0 remaining=0 over denied")
		want(t, compared(t, e, "shop/tight"), "2 0 1 0")
	})
}

func TestCandidateIsSettledWithItsRule(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, candidateRules, nil)
		ask := func(cost int64, terms engine.Terms) {
			t.Helper()
			var r engine.Result
			if err := e.DecideOn(t.Context(), "shop", terms, []engine.Descriptor{descriptor(cost, "tokens=a")}, &r); err != nil {
				t.Fatal(err)
			}
		}
		ask(10, engine.Terms{ID: "1"})
		ask(2, engine.Terms{ID: "1", Settle: true}) // 2 of 10, and 2 of 20
		ask(2, engine.Terms{ID: "1", Settle: true})
		ask(8, engine.Terms{ID: "2"})
		ask(10, engine.Terms{ID: "3"})
		ask(1, engine.Terms{ID: "4"})
		want(t, compared(t, e, "shop/tokens"), "2 0 1 1")
	})
}

func TestCandidateSkipsKeysWithOverrides(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, nil)
	o := overrides.Override{Rule: "shop/loose", Key: "loose=vip", Limit: "unlimited"}
	if err := e.Overrides().Put(t.Context(), []overrides.Override{o}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		want(t, decide(t, e, "shop", descriptor(1, "loose=vip")), "allowed: unlimited")
	}
	want(t, compared(t, e, "shop/loose"), "0 0 0 0")
}

func TestCandidateCountsUnderCompat(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		for _, cached := range []int{0, 100} {
			e := newEngine(t, store, candidateRules, &engine.Options{CompatEnvoy: true, OverLimitKeys: cached, StopIncrement: cached > 0})
			for range 6 {
				decide(t, e, "shop", descriptor(1, fmt.Sprintf("tight=compat%d", cached)))
			}
			want(t, compared(t, e, "shop/tight"), "2 0 2 2")
		}
	})
}

func TestCandidateCountsBesideCachedDenials(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, &engine.Options{OverLimitKeys: 100, CacheDenials: true})
	for range 6 {
		decide(t, e, "shop", descriptor(1, "tight=a"))
	}
	want(t, compared(t, e, "shop/tight"), "2 0 2 2")
}

func TestCandidateNamesTheKeysThatDiffer(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, &engine.Options{TopKeys: topkeys.New(nil)})
	for i, key := range []string{"a", "b", "b", "b", "b"} {
		decide(t, e, "shop", descriptor(1, "tight="+key))
		decide(t, e, "shop", descriptor(int64(i+1), "loose="+key))
	}
	for _, c := range e.Candidates() {
		denied, allowed := c.Differing(true, 10), c.Differing(false, 10)
		switch c.Rule {
		case "shop/tight":
			if len(denied.Entries) != 0 || len(allowed.Entries) != 1 || allowed.Entries[0].Key != "tight=b" || allowed.Entries[0].Count != 2 {
				t.Errorf("tight: %+v and %+v", denied, allowed)
			}
		case "shop/loose":
			if len(allowed.Entries) != 0 || len(denied.Entries) != 0 {
				t.Errorf("loose: %+v and %+v", denied, allowed)
			}
		}
	}
}
