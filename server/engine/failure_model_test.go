package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

const failureRules = modelRules + `
  - {key: always, charge: always, rate_limit: {unit: year, requests_per_unit: 60}}
  - {key: bucket, charge: always, limit: 60/300d}
`

// onceFailing is a store whose n-th request fails, if that is no refund.
type onceFailing struct {
	penstock.Store
	n int
}

func (s *onceFailing) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if s.n--; s.n == 0 && r.Cost >= 0 {
		return penstock.Decision{}, fmt.Errorf("connection lost: %w", penstock.ErrUnavailable)
	}
	return s.Store.Take(ctx, r)
}

// A request that fails charges nothing, and one that is denied only what is always charged.
func TestDecideChargesNothingAfterFailure(t *testing.T) {
	for _, compat := range []bool{false, true} {
		t.Run(fmt.Sprintf("compat=%v", compat), func(t *testing.T) {
			set := parse(t, strings.Replace(failureRules, "COMPAT", map[bool]string{true: "compat: envoy"}[compat], 1))
			rapid.Check(t, func(t *rapid.T) { failAndCompare(t, set, compat) })
		})
	}
}

func failAndCompare(t *rapid.T, set *rules.Set, compat bool) {
	store := &onceFailing{Store: newMemory()}
	o := &engine.Options{}
	if rapid.Bool().Draw(t, "cached") {
		o = &engine.Options{OverLimitKeys: 16, OverLimitAge: time.Hour, CacheDenials: true}
	}
	e, plain := engine.New(store, o), engine.New(store.Store, nil)
	e.SetRules(set)
	plain.SetRules(set)
	for range rapid.IntRange(1, 8).Draw(t, "requests") {
		ds := drawDescriptors(t)
		store.n = rapid.IntRange(0, 8).Draw(t, "fails")
		before := leftOf(t, plain)
		var v engine.Result
		err := e.Decide(t.Context(), "DOMAIN", ds, &v)
		if after := leftOf(t, plain); err != nil && after != before {
			t.Fatalf("%v: %v\n left before: %v\n left after:  %v", ds, err, before, after)
		} else if !compat && err == nil && v.OverLimit && !hasGate(ds) && after != before {
			t.Fatalf("%v: denied\n left before: %v\n left after:  %v", ds, before, after)
		}
	}
}

func hasGate(ds []engine.Descriptor) bool {
	for _, d := range ds {
		if key := d.Entries[0].Key; key == "always" || key == "bucket" {
			return true
		}
	}
	return false
}

var failureKinds = []string{"hard1", "hard2", "quota1", "quota2", "shadow", "both", "always", "bucket"}

func drawDescriptors(t *rapid.T) (ds []engine.Descriptor) {
	for range rapid.IntRange(1, 4).Draw(t, "descriptors") {
		d := descriptor(rapid.Int64Range(0, 4).Draw(t, "cost"), rapid.SampledFrom(failureKinds).Draw(t, "kind")+"=x")
		if d.Entries[0].Key != "bucket" && rapid.IntRange(0, 3).Draw(t, "own") == 0 {
			d.Own = &engine.OwnLimit{
				Limit:           penstock.Limit{Algorithm: penstock.FixedWindow, Count: rapid.Int64Range(1, 9).Draw(t, "count"), Period: 365 * 24 * time.Hour, Align: penstock.AlignClock},
				RequestsPerUnit: 5, Unit: rules.Year,
			}
		}
		d.DenyInDebt = rapid.IntRange(0, 3).Draw(t, "denyInDebt") == 0
		ds = append(ds, d)
	}
	return ds
}

// leftOf returns what is left of all keys, as one text. An own limit is counted under its rule.
func leftOf(t *rapid.T, e *engine.Engine) string {
	var ds []engine.Descriptor
	for _, kind := range failureKinds {
		d := descriptor(0, kind+"=x")
		ds = append(ds, d)
	}
	var b strings.Builder
	for _, d := range ds {
		var v engine.Result
		if err := e.Decide(t.Context(), "DOMAIN", []engine.Descriptor{d}, &v); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %d, ", d.Entries[0].Key, v.Statuses[0].Decision.Remaining)
	}
	return b.String()
}
