package engine

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// notExempt is the right of a remote caller.
func notExempt() bool { return false }

func boundedEngine(bound int64) *Engine {
	return New(penstock.NewMemory(nil), &Options{RequestLimits: requestlimits.Options{MaxStoreBytes: bound}})
}

// fillUntilRefused calls take until there is no room, and checks that what was accounted
// for is within the bound, and most of it.
func fillUntilRefused(t *testing.T, e *Engine, take func(i int) error) {
	t.Helper()
	bound := e.RequestLimits().MaxStoreBytes
	for i := range 10_000 {
		err := take(i)
		var refused *requestlimits.Refusal
		if errors.As(err, &refused) && refused.Reason == requestlimits.ReasonStoreBytes {
			if used := e.RequestLimits().StoreBytes(); used > bound || used < bound/2 {
				t.Errorf("refused with %d bytes accounted for, of %d", used, bound)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("no take was refused; %d bytes are accounted for, of %d", e.RequestLimits().StoreBytes(), bound)
}

// Each ID leaves a record, so many IDs of one key need room as many keys do.
func TestAdmitAccountsForIDs(t *testing.T) {
	e := boundedEngine(100_000)
	limit := requestlimits.Of(penstock.PerHour(1_000_000))
	fillUntilRefused(t, e, func(i int) error {
		_, err := e.Take(t.Context(), penstock.Request{Key: "one", Limit: limit, Cost: 1, ID: strconv.Itoa(i)}, notExempt)
		return err
	})
}

// On a Cluster each request of a TakeAll leaves a record for a while, so that it can be
// rolled back. Without accounting, a caller could leave any number of them by few keys.
func TestTakeAllAccountsForRecordsToRollBack(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := New(penstock.NewMemory(nil), &Options{RequestLimits: requestlimits.Options{
		MaxStoreBytes: 100_000, TakeAllMemory: 10 * time.Second, Now: func() time.Time { return now },
	}})
	limit := requestlimits.Of(penstock.PerHour(1_000_000))
	take := func(take func(context.Context, []penstock.Request, []penstock.Decision, func() bool) error) error {
		rs := []penstock.Request{{Key: "a", Limit: limit, Cost: 1}, {Key: "b", Limit: limit, Cost: 1}}
		return take(t.Context(), rs, make([]penstock.Decision, len(rs)), notExempt)
	}
	fillUntilRefused(t, e, func(int) error { return take(e.TakeAll) })
	if err := take(e.TakeEach); err != nil {
		t.Errorf("independent takes leave no record: %v", err)
	}
	now = now.Add(time.Minute)
	if err := take(e.TakeAll); err != nil {
		t.Errorf("after the records expired: %v", err)
	}
}

// Overrides of Envoy are limits in requests too.
func TestDecideAccountsForOverrides(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte("domain: shop\ndescriptors:\n  - key: user\n    limit: \"5/1h\"\n")})
	if err != nil {
		t.Fatal(err)
	}
	e := boundedEngine(100_000)
	e.SetRules(set)
	decide := func(d Descriptor) error {
		var r Result
		return e.Decide(t.Context(), "shop", []Descriptor{d}, &r)
	}
	override := func(i int) Descriptor {
		return Descriptor{Entries: []rules.Entry{{Key: "user", Value: strconv.Itoa(i)}}, Cost: 1, Own: &OwnLimit{Limit: penstock.PerHour(5)}}
	}
	fillUntilRefused(t, e, func(i int) error { return decide(override(i)) })
	exempt := override(-1)
	exempt.Own.MayRefund = true
	for name, d := range map[string]Descriptor{
		"an accounted key": override(0), "an exempt caller": exempt,
		"a rule": {Entries: []rules.Entry{{Key: "user", Value: "new"}}, Cost: 1},
	} {
		if err := decide(d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a request may have left behind before its store panicked is accounted for as long as it
// would live, and no longer.
func TestAdmissionsAreSettledAfterAStoreHasPanicked(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := New(penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) { panic("a bug of the store") }),
		&Options{RequestLimits: requestlimits.Options{MaxStoreBytes: 100_000, Now: func() time.Time { return now }}})
	set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{key: k, limit: 10/1h}]")})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
	request := func(i int) penstock.Request {
		return penstock.Request{Key: strconv.Itoa(i), Limit: requestlimits.Of(penstock.PerMinute(9)), Cost: 1, ID: "x"}
	}
	for name, take := range map[string]func(i int) error{
		"Take": func(i int) error {
			_, err := e.Take(t.Context(), request(i), notExempt)
			return err
		},
		"TakeEach": func(i int) error {
			return e.TakeEach(t.Context(), []penstock.Request{request(i)}, make([]penstock.Decision, 1), notExempt)
		},
		"TakeAll": func(i int) error {
			return e.TakeAll(t.Context(), []penstock.Request{request(i)}, make([]penstock.Decision, 1), notExempt)
		},
		"Decide": func(i int) error {
			own := &OwnLimit{Limit: penstock.PerMinute(9)}
			entries := []rules.Entry{{Key: "other", Value: strconv.Itoa(i)}}
			return e.Decide(t.Context(), "a", []Descriptor{{Entries: entries, Cost: 1, Own: own}}, &Result{})
		},
	} {
		panicking := func(i int) (err error) {
			defer func() { _ = recover() }()
			return take(i)
		}
		fillUntilRefused(t, e, panicking)
		now = now.Add(time.Hour)
		if err := panicking(0); err != nil {
			t.Errorf("%s, after all states have expired: %v", name, err)
		}
		now = now.Add(time.Hour)
	}
}
