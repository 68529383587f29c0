package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const overrideRules = `
domain: o
descriptors:
  - {key: bucket, limit: 60/1m}
  - {key: window, limit: 10/1h fixed-window}
  - {key: log, limit: 10/1h sliding-log}
  - {key: shadow, shadow_mode: true, limit: 1/1h}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: held, limit: 2/30s concurrent, id: request_id}
  - {key: quota, quota_mode: true, limit: 10/1h}
  - {key: spare, quota_mode: true, limit: 10/1h}
  - {key: harsh, limit: 1/1h, penalty: {after: 3/1m, for: 10m, up_to: 15m}}
`

// An overridden engine has a book of overrides.
type overridden struct {
	*engine.Engine
	t    *testing.T
	book *overrides.Set
}

func newOverridden(t *testing.T, store penstock.Store) *overridden {
	t.Helper()
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &overridden{newEngine(t, store, overrideRules, &engine.Options{Overrides: book}), t, book}
}

// set sets an override, which "" deletes.
func (o *overridden) set(rule, key, limit string, until ...time.Time) {
	o.t.Helper()
	all := []overrides.Override{{Rule: rule, Key: key, Limit: limit}}
	for _, u := range until {
		all[0].Until = u
	}
	change := o.book.Put
	if limit == "" {
		change = o.book.Delete
	}
	if err := change(o.t.Context(), all); err != nil {
		o.t.Fatal(err)
	}
}

// decide returns the result of descriptors of one unit each.
func (o *overridden) decide(cost int64, entries ...string) engine.Result {
	o.t.Helper()
	var ds []engine.Descriptor
	for _, e := range entries {
		ds = append(ds, descriptor(cost, e))
	}
	var r engine.Result
	if err := o.Decide(o.t.Context(), "o", ds, &r); err != nil {
		o.t.Fatal(err)
	}
	return r
}

// remaining takes units of a key and returns how many remain.
func (o *overridden) remaining(cost int64, entry string) int64 {
	o.t.Helper()
	return o.decide(cost, entry).Statuses[0].Decision.Remaining
}

func TestBanDeniesUntilItEnds(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		o := newOverridden(t, store)
		o.set("o/bucket", "bucket=a", "ban", time.Now().Add(time.Hour))
		o.set("o/bucket", "bucket=b", "ban")
		o.set("o/bucket", "bucket=c", "ban", time.Now().Add(-time.Second))
		o.remaining(1, "bucket=d")

		r := o.decide(1, "bucket=a")
		d := r.Statuses[0].Decision
		if !r.OverLimit || !r.Statuses[0].OverLimit || d.Allowed || d.Limit != 60 || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > time.Hour || d.Source != penstock.SourceOverride {
			t.Errorf("banned for an hour: got %+v", r)
		}
		if d := o.decide(1, "bucket=b").Statuses[0].Decision; d.RetryAfter != penstock.Never || d.ResetAfter != 366*24*time.Hour {
			t.Errorf("banned for good: got %v", d)
		}
		if r := o.decide(1, "bucket=c"); r.OverLimit {
			t.Error("a ban that has ended denies")
		}
		if r := o.decide(0, "bucket=a"); r.OverLimit || r.Statuses[0].Decision.Remaining != 0 {
			t.Errorf("a peek at a banned key: got %+v", r)
		}
		if r := o.decide(1, "bucket=d", "bucket=a"); !r.OverLimit || r.Statuses[0].OverLimit || r.Statuses[0].Decision.Remaining != 59 {
			t.Errorf("with another key: got %+v", r)
		}
		if got := o.remaining(1, "bucket=d"); got != 58 {
			t.Errorf("the other key was charged: %d remain", got)
		}
		if r := o.decide(-1, "bucket=d", "bucket=a"); r.OverLimit {
			t.Error("a refund is denied")
		}
		o.set("o/bucket", "bucket=a", "")
		if r := o.decide(1, "bucket=a"); r.OverLimit {
			t.Error("a ban that was lifted denies")
		}
	})
}

func TestBanOfOtherRules(t *testing.T) {
	o := newOverridden(t, newMemory())
	for _, key := range []string{"shadow", "free", "quota", "log"} {
		o.set("o/"+key, key+"=*", "ban")
	}
	for entries, denied := range map[string]bool{
		"shadow=a": false, "free=a": true, "log=a": true, "quota=a": true, "quota=a spare=a": false, "spare=a": false,
	} {
		if r := o.decide(1, strings.Fields(entries)...); r.OverLimit != denied {
			t.Errorf("%s: denied %t, want %t", entries, r.OverLimit, denied)
		}
	}
	if c := o.RuleStats(); c[4].Rule != "o/shadow" || c[4].Shadowed.Load() != 1 {
		t.Errorf("the ban of a shadow rule is not counted: %v", c[4].Rule)
	}
	for _, c := range o.StatsOfRules() {
		if want := map[string]uint64{"o/shadow": 1, "o/free": 1, "o/log": 1, "o/quota": 2}[c.Rule]; c.Banned.Load() != want {
			t.Errorf("%s: %d banned requests, want %d", c.Rule, c.Banned.Load(), want)
		}
	}
}

func TestBanInEnvoyCompat(t *testing.T) {
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, newMemory(), "domain: o\ncompat: envoy\ndescriptors:\n  - {key: k, rate_limit: {unit: hour, requests_per_unit: 2}}\n", &engine.Options{Overrides: book})
	o := &overridden{e, t, book}
	o.set("o/k", "k=b", "ban")
	for range 3 {
		r := o.decide(1, "k=a", "k=b")
		if !r.OverLimit || !r.Statuses[1].OverLimit || r.Statuses[1].Decision.Source != penstock.SourceOverride {
			t.Errorf("got %+v", r)
		}
	}
	if r := o.decide(1, "k=a"); !r.OverLimit {
		t.Error("hits of a denied request are not counted")
	}
}

func TestExemptKeyHasNoLimit(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/window", "window=10.0.0.0/8", "unlimited")
	for range 20 {
		r := o.decide(1, "window=10.1.2.3")
		if s := r.Statuses[0]; r.OverLimit || !s.Rule.Unlimited || s.Rule.Name != "o/window" {
			t.Fatalf("got %+v", r)
		}
	}
	if got := o.remaining(1, "window=11.1.2.3"); got != 9 {
		t.Errorf("another key has %d, want 9", got)
	}
}

// What a key has used counts in units under another limit, there and back.
func TestOverrideCarriesUnitsOver(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		o := newOverridden(t, store)
		for _, c := range []struct {
			rule, limit  string
			used, before int64
			after, back  int64
		}{
			{"bucket", "600/1m", 30, 30, 569, 28},           // another rate
			{"bucket", "60/1m burst=100", 30, 30, 69, 28},   // the same rate: the same bucket
			{"bucket", "10/1m", 30, 30, 0, 49},              // fewer units than were used: ten are kept
			{"bucket", "100/1h sliding-log", 7, 53, 92, 51}, // another algorithm
			{"window", "100/1h fixed-window", 4, 6, 95, 4},  // the same window
			{"window", "100/2h fixed-window", 4, 6, 95, 4},  // another window
			{"window", "100/1m", 4, 6, 95, 4},
			{"log", "5/1h sliding-window", 4, 6, 0, 4},
		} {
			key := c.rule + "=" + strings.ReplaceAll(c.limit, "=", "-")
			steps := []int64{o.remaining(c.used, key)}
			o.set("o/"+c.rule, key, c.limit)
			steps = append(steps, o.remaining(1, key))
			o.set("o/"+c.rule, key, "")
			steps = append(steps, o.remaining(1, key))
			if want := []int64{c.before, c.after, c.back}; !equal(steps, want) {
				t.Errorf("%s: remaining %v, want %v", key, steps, want)
			}
		}
	})
}

func equal(a, b []int64) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestOverrideCarriesUnitsThroughSeveralLimits(t *testing.T) {
	o := newOverridden(t, newMemory())
	key := "bucket=a"
	if got := o.remaining(10, key); got != 50 {
		t.Fatal(got)
	}
	o.set("o/bucket", key, "100/1m")
	if got := o.remaining(10, key); got != 80 {
		t.Errorf("after the first: %d, want 80", got)
	}
	o.set("o/bucket", key, "200/1m") // no request under this one
	o.set("o/bucket", key, "ban")
	o.decide(1, key)
	o.set("o/bucket", key, "300/1m")
	if got := o.remaining(10, key); got != 270 {
		t.Errorf("after the last: %d, want 270", got)
	}
	o.set("o/bucket", key, "300/1m", time.Now().Add(-time.Second))
	if got := o.remaining(0, key); got != 30 {
		t.Errorf("after the end: %d, want 30", got)
	}
	o.set("o/bucket", key, "300/1m") // renewed
	if got := o.remaining(0, key); got != 270 {
		t.Errorf("renewed: %d, want 270", got)
	}
}

// A key that is too long for a store is replaced by its hash, and must not escape.
func TestLongKeyDoesNotEscapeARange(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/bucket", "bucket=tenant-7:*", "ban")
	if r := o.decide(1, "bucket=tenant-7:"+strings.Repeat("x", 1<<14)); !r.OverLimit {
		t.Error("the key is not banned")
	}
}

func TestOverrideKeepsItsRuleOverAReload(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/bucket", "bucket=a", "5/1m")
	o.remaining(1, "bucket=a")
	o.SetRules(parse(t, overrideRules))
	r := o.decide(1, "bucket=a")
	if s := r.Statuses[0]; s.Decision.Remaining != 3 || s.Rule.RequestsPerUnit != 5 || s.Rule.Name != "o/bucket" {
		t.Errorf("got %+v, rule %+v", s, s.Rule)
	}
}

// An override that does not fit its rule any more, after a reload, does not apply.
func TestOverrideOfAnotherKindDoesNotApply(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/held", "held=a", "1/1h")
	o.set("o/bucket", "bucket=a", "1/1h concurrent")
	for _, c := range []struct {
		d         engine.Descriptor
		remaining int64
	}{
		{descriptor(1, "held=a", "request_id=x"), 1},
		{descriptor(-1, "held=a", "request_id=x"), 2},
		{descriptor(1, "bucket=a"), 59},
	} {
		var r engine.Result
		if err := o.Decide(t.Context(), "o", []engine.Descriptor{c.d}, &r); err != nil || r.Statuses[0].Decision.Remaining != c.remaining {
			t.Errorf("%+v: got %+v, %v, want %d remaining", c.d, r, err, c.remaining)
		}
	}
	if l, found := o.Overrides().LimitOfKey(o.Rules().Rule("o/held"), "held=a"); l.Algorithm != penstock.Concurrent || found != nil {
		t.Errorf("got %s and %v, want the limit of the rule", l, found)
	}
}

// A daemon that does not know of a higher limit yet frees nothing under it.
func TestRaisedWindowAdmitsTheLargerLimitOnTwoDaemons(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		for entry, raised := range map[string]string{"window=a": "15/1h fixed-window", "log=a": "15/1h sliding-log"} {
			first, second := newOverridden(t, store), newOverridden(t, store)
			granted := 0
			ask := func(o *overridden, times int) {
				for range times {
					if r := o.decide(1, entry); !r.OverLimit {
						granted++
					}
				}
			}
			rule := "o/" + strings.Split(entry, "=")[0]
			ask(second, 4)
			first.set(rule, entry, raised)
			for range 3 {
				ask(first, 8)
				ask(second, 8) // by the rule's own limit of 10
			}
			second.set(rule, entry, raised)
			ask(second, 20)
			ask(first, 20)
			if granted != 15 {
				t.Errorf("%s: %d granted, want 15", entry, granted)
			}
		}
	})
}

// A sharedBook is what the overrides of several daemons are copied from.
type sharedBook struct {
	overrides.SharedCopy
	records []overrides.Record
}

func (b *sharedBook) Write(ctx context.Context, s *overrides.Set, records []overrides.Record) error {
	for _, r := range records {
		r.Version = time.Now().UnixMicro() + int64(len(b.records))
		b.records = append(b.records, r)
	}
	return b.Sync(ctx, s)
}

func (b *sharedBook) Sync(_ context.Context, s *overrides.Set) error {
	s.Receive(b.records)
	return nil
}

// newDaemons returns engines on one store that share their overrides, and know of a change when they refresh them.
func newDaemons(t *testing.T, n int, store penstock.Store, rule string) (all []*overridden) {
	shared := &sharedBook{}
	for range n {
		book, err := overrides.Open(&overrides.Options{Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &overridden{newEngine(t, store, rule, &engine.Options{Overrides: book}), t, book})
	}
	return all
}

// Daemons that know of a new limit charge the key where the others see it, too.
func TestRaisedBucketAdmitsTheLargerLimitOnSeveralDaemons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			rule, first, second string
			want                int
		}{
			{"24/240h", "40/240h", "", 40},
			{"24/240h", "40/240h", "60/240h", 60},
			{"24/240h", "40/240h fixed-window", "60/240h sliding-log", 60},
			{"24/240h leaky-bucket", "40/240h leaky-bucket", "60/240h", 60},
			{"24/240h fixed-window", "40/480h", "60/240h", 60},
			{"24/240h", "10/240h", "5/240h", 22}, // lowered before all were used
			{"0/240h", "10/240h", "20/240h", 20},
		} {
			rule := "domain: o\ndescriptors:\n  - {key: slow, limit: " + c.rule + "}\n"
			daemons, granted := newDaemons(t, 4, penstock.NewMemory(nil), rule), 0
			ask := func(times int) {
				for range times {
					for _, o := range daemons {
						if r := o.decide(1, "slow=a"); !r.OverLimit {
							granted++
						}
					}
				}
			}
			ask(1)
			for _, l := range []string{c.first, c.second} {
				if l != "" {
					daemons[0].set("o/slow", "slow=a", l)
				}
				for _, o := range daemons[1:] {
					ask(2)
					o.book.Refresh(t.Context())
					time.Sleep(300 * time.Millisecond)
				}
			}
			for range 10 { // until the change is new to none
				time.Sleep(300 * time.Millisecond)
				ask(10)
			}
			if granted != c.want {
				t.Errorf("%s, then %s, then %s: %d granted, want %d", c.rule, c.first, c.second, granted, c.want)
			}
		}
	})
}

// A limit applies from the next request on, to operators as well, though other daemons may not know of it yet.
func TestNewOverrideAppliesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newDaemons(t, 1, penstock.NewMemory(nil), overrideRules)[0]
		rule, used := o.Rules().Rule("o/bucket"), []int64{o.remaining(30, "bucket=a")}
		o.set("o/bucket", "bucket=a", "600/1m")
		used = append(used, o.remaining(1, "bucket=a"), o.remaining(600, "bucket=a"), o.remaining(500, "bucket=a"))
		d, err := o.TakeRule(t.Context(), rule, "bucket=a", -100)
		if err != nil {
			t.Fatal(err)
		}
		used = append(used, d.Remaining, o.remaining(1, "bucket=a"))
		o.set("o/bucket", "bucket=a", "")
		used = append(used, o.remaining(1, "bucket=a"))
		if _, err := o.TakeRule(t.Context(), rule, "bucket=a", penstock.Reset); err != nil {
			t.Fatal(err)
		}
		used = append(used, o.remaining(1, "bucket=a"))
		time.Sleep(time.Hour)
		used = append(used, o.remaining(1, "bucket=a"))
		if want := []int64{30, 569, 569, 69, 169, 168, 0, 59, 59}; !slices.Equal(used, want) {
			t.Errorf("remaining %v, want %v", used, want)
		}
		if s := o.RuleStats()[1]; s.Rule != "o/bucket" || s.Allowed() != 6 || s.Denied.Load() != 2 {
			t.Errorf("%s: %d allowed and %d denied, want 6 and 2", s.Rule, s.Allowed(), s.Denied.Load())
		}
	})
}

// However requests and changes fall, all daemons together admit what the largest limit does in the same time.
func TestChangedBucketsAdmitTheLargestLimit(t *testing.T) {
	for seed := range uint64(fixedseed.FewerUnderRace(60)) {
		synctest.Test(t, func(t *testing.T) { checkChangedBuckets(t, seed) })
	}
}

func checkChangedBuckets(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	algorithm := []string{"", " leaky-bucket"}[random.IntN(2)]
	limits := []string{"20/24h", "30/24h", "30/1h", "40/1h burst=50", "60/30m", "90/1m", "100/1m burst=700"}
	limits = limits[random.IntN(4):][:2+random.IntN(3)]
	largest, err := penstock.ParseLimit(limits[len(limits)-1])
	if err != nil {
		t.Fatal(err)
	}
	if random.IntN(2) == 0 {
		slices.Reverse(limits)
	}
	daemons := newDaemons(t, 3, penstock.NewMemory(nil), "domain: o\ndescriptors:\n  - {key: k, limit: "+limits[0]+algorithm+"}\n")
	type grant struct {
		at    time.Time
		units int64
	}
	var grants []grant
	ask := func() {
		cost := []int64{1, 1, 3, 20}[random.IntN(4)]
		if r := daemons[random.IntN(3)].decide(cost, "k=a"); !r.OverLimit {
			grants = append(grants, grant{time.Now(), cost})
		}
	}
	askOften := func() {
		for range random.IntN(30) {
			ask()
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		}
	}
	askOften()
	for _, l := range limits[1:] {
		daemons[random.IntN(3)].set("o/k", "k=a", l+algorithm)
		for _, i := range random.Perm(3) {
			askOften()
			daemons[i].book.Refresh(t.Context())
		}
		time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
	}
	for range 2 { // all that is left, while the change is new and later
		for range 4 * largest.Capacity() {
			ask()
		}
		time.Sleep(3 * time.Second)
	}
	for i, first := range grants {
		sum := int64(0)
		for _, g := range grants[i:] {
			sum += g.units
			refilled := float64(largest.Count) * float64(g.at.Sub(first.at)) / float64(largest.Period)
			if most := float64(largest.Capacity()) + refilled; float64(sum) > most {
				t.Errorf("seed %d, %v: %d granted within %v, want at most %.2f", seed, limits, sum, g.at.Sub(first.at), most)
				return
			}
		}
	}
}

// An outage is not the fault of the keys that are denied meanwhile.
func TestPenaltyIgnoresDenialsOfFallback(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	for _, mode := range []penstock.FailureMode{penstock.FailClosed, penstock.FailLocal} {
		onFailure := func(penstock.Limit) (penstock.FailureMode, float64) { return mode, 1 }
		store := penstock.WithFallback(down, newMemory(), &penstock.FallbackOptions{OnFailure: onFailure})
		cached := penstock.WithDenyCache(store, nil)
		o := newOverridden(t, cached)
		denied := 0
		for range 20 {
			if r := o.decide(1, "harsh=a"); r.Statuses[0].OverLimit {
				denied++
			}
		}
		o.book.BanOffenders(t.Context())
		if bans := o.book.List("", ""); denied < 10 || len(bans) != 0 {
			t.Errorf("mode %v: %d denials during an outage, bans %+v", mode, denied, bans)
		}
	}
}

func TestPenaltyBansAndDoubles(t *testing.T) {
	o := newOverridden(t, newMemory())
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		o.book.Run(ctx)
	}()
	defer func() { stop(); <-done }()

	offend := func(key string) overrides.Listed {
		t.Helper()
		for range 4 {
			o.decide(1, "harsh="+key)
		}
		redistest.WaitFor(t, "the ban of "+key, func() bool { return len(o.book.List("", "harsh="+key)) == 1 })
		return o.book.List("", "harsh="+key)[0]
	}
	near := func(at time.Time, d time.Duration) bool {
		return at.After(time.Now().Add(d-time.Minute)) && at.Before(time.Now().Add(d+time.Second))
	}
	first := offend("a")
	if first.Strikes != 1 || first.Limit != "ban" || first.Reason == "" || !near(first.Until, 10*time.Minute) {
		t.Errorf("first: got %+v", first)
	}
	if r := o.decide(1, "harsh=a"); r.Statuses[0].Decision.Source != penstock.SourceOverride {
		t.Error("not banned")
	}
	// The ban ends: as if its time had come.
	ended := first.Override
	ended.Until = time.Now().Add(-time.Millisecond)
	if err := o.book.Put(t.Context(), []overrides.Override{ended}); err != nil {
		t.Fatal(err)
	}
	if second := offend("a"); second.Strikes != 2 || !near(second.Until, 15*time.Minute) {
		t.Errorf("second: got %+v, want up_to", second)
	}
	// A ban that an operator lifts is forgiven.
	o.set("o/harsh", "harsh=a", "")
	if third := offend("a"); third.Strikes != 1 {
		t.Errorf("after it was lifted: got %+v", third)
	}
	// A key with an override of its own keeps it.
	o.set("o/harsh", "harsh=b", "2/1h")
	for range 20 {
		o.decide(1, "harsh=b")
	}
	offend("c") // after b was counted
	if got := o.book.List("", "harsh=b"); got[0].Limit != "2/1h" {
		t.Errorf("the override was replaced: %+v", got)
	}
}

// The store fails between the two calls that move units to the limit of an override.
func TestOverrideCarriesUnitsOnceIfTheStoreFailsMeanwhile(t *testing.T) {
	for name, isCharged := range map[string]bool{"before the charge": false, "after the charge": true} {
		t.Run(name, func(t *testing.T) {
			onBothStores(t, func(t *testing.T, store penstock.Store) {
				fails := false
				o := newOverridden(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
					if !fails || !r.AtMost {
						return store.Take(ctx, r)
					}
					fails = false
					if isCharged {
						_, _ = store.Take(ctx, r)
					}
					return penstock.Decision{}, penstock.ErrUnavailable
				}))
				const key = "log=a"
				o.remaining(4, key)
				o.set("o/log", key, "100/1h sliding-window")
				fails = true
				o.remaining(1, key)
				if got := o.remaining(1, key); got != 94 || fails {
					t.Errorf("got %d remaining, failed %t, want 94: 4 under the rule, and 2 since then", got, !fails)
				}
			})
		})
	}
}

func TestOverrideDoesNotCarryUnitsThatTimeHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, fails := penstock.NewMemory(nil), false
		o := newOverridden(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if fails && r.AtMost {
				return penstock.Decision{}, penstock.ErrUnavailable
			}
			return memory.Take(ctx, r)
		}))
		o.remaining(4, "window=a")
		o.set("o/window", "window=a", "100/2h fixed-window")
		fails = true
		o.remaining(1, "window=a")
		fails = false
		time.Sleep(time.Hour)
		if got := o.remaining(1, "window=a"); got != 98 {
			t.Errorf("got %d remaining after the window of the rule, want 98", got)
		}
	})
}

// The first request after a change must not bring back units that an operator has reset before
// it. A reset that the store did not carry out everywhere is an error, and can be repeated.
func TestTakeRuleResetsUnitsOfEarlierLimits(t *testing.T) {
	const key = "log=a"
	for name, overrideNow := range map[string]string{"other limit": "100/1h sliding-window", "no limit": "", "ban": "ban", "exempt": "unlimited"} {
		t.Run(name, func(t *testing.T) {
			onBothStores(t, func(t *testing.T, store penstock.Store) {
				fails := false
				o := newOverridden(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
					if fails && r.Limit.Algorithm == penstock.FixedWindow {
						return penstock.Decision{}, penstock.ErrUnavailable
					}
					return store.Take(ctx, r)
				}))
				o.set("o/log", key, "100/1h fixed-window")
				o.remaining(4, key)
				o.set("o/log", key, overrideNow)
				rule := o.Rules().Rule("o/log")
				fails = true
				if d, err := o.TakeRule(t.Context(), rule, key, penstock.Reset); !errors.Is(err, penstock.ErrUnavailable) {
					t.Errorf("the store failed: got %v, %v", d, err)
				}
				if _, err := o.TakeRule(t.Context(), rule, key, 0); err != nil {
					t.Errorf("a peek fails by what it does not need: %v", err)
				}
				fails = false
				if _, err := o.TakeRule(t.Context(), rule, key, penstock.Reset); err != nil {
					t.Fatal(err)
				}
				o.set("o/log", key, "50/1h fixed-window")
				if got := o.remaining(1, key); got != 49 {
					t.Errorf("%d units are left, want 49", got)
				}
			})
		})
	}
}

// Two limits of a key share their state, and the smaller one sees a part of it.
func TestOverrideCarriesAllUnitsOfASharedState(t *testing.T) {
	o := newOverridden(t, newMemory())
	for _, limits := range [][]string{{"20/1h sliding-log", "15/1h sliding-log"}, {"15/1h sliding-log", "20/1h sliding-log"}} {
		key := "log=" + limits[0]
		for _, l := range limits {
			o.set("o/log", key, l)
		}
		o.set("o/log", key, "20/1h sliding-log")
		o.remaining(19, key)
		o.set("o/log", key, "100/1h fixed-window")
		if got := o.remaining(0, key); got != 81 {
			t.Errorf("%v: %d units are left, want 81", limits, got)
		}
	}
}

// The state of a bucket is a time, which is worth another number of units at another rate.
func TestOverridesOfOtherRatesDoNotShareABucket(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/window", "window=a", "600/1m")
	o.remaining(50, "window=a")
	o.set("o/window", "window=a", "60/1m")
	if got := o.remaining(0, "window=a"); got != 10 {
		t.Errorf("%d units are left, want 10", got)
	}
}

// A limit that a key has had before is its latest one again, and its units are carried over after
// as many changes as those of any other.
func TestOverrideCarriesUnitsOfTheLatestLimits(t *testing.T) {
	o := newOverridden(t, newMemory())
	const key, first = "window=a", "100/1h sliding-log"
	for _, l := range []string{first, "100/2h sliding-log", "100/3h sliding-log", "100/4h sliding-log", first} {
		o.set("o/window", key, l)
	}
	o.remaining(7, key)
	o.set("o/window", key, "100/5h sliding-log")
	o.set("o/window", key, "100/6h sliding-log")
	if got := o.remaining(0, key); got != 93 {
		t.Errorf("%d units are left, want 93", got)
	}
}

// While an override had ended, another daemon may have carried its units back to the rule's limit.
func TestRenewedOverrideCarriesUnitsThatAnotherDaemonMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := penstock.NewMemory(nil)
		o, other := newOverridden(t, store), newOverridden(t, store)
		const key, limit = "bucket=a", "100/1h fixed-window"
		set := func(length time.Duration) {
			o.set("o/bucket", key, limit, time.Now().Add(length))
			other.set("o/bucket", key, limit, time.Now().Add(length))
		}
		set(time.Minute)
		o.remaining(5, key)
		time.Sleep(time.Minute)
		other.remaining(0, key)
		set(time.Hour)
		if got := o.remaining(0, key); got != 95 {
			t.Errorf("%d units are left, want 95", got)
		}
	})
}

// The slow rate of a limit that was raised neither denies what the new one allows nor tells callers to wait for it.
func TestRaisedSlowLimitDelaysNoCaller(t *testing.T) {
	for raised, want := range map[string]int{"100000/1m": 0, "10/1s": 20} { // 5/720h cannot have a burst of 100000
		synctest.Test(t, func(t *testing.T) {
			o := newDaemons(t, 1, penstock.NewMemory(nil), "domain: o\ndescriptors:\n  - {key: slow, limit: 5/720h}\n")[0]
			o.remaining(5, "slow=a")
			o.set("o/slow", "slow=a", raised)
			denied := 0
			for range 40 {
				if r := o.decide(1, "slow=a"); r.OverLimit {
					denied++
					if d := r.Statuses[0].Decision; d.RetryAfter > 2*time.Second {
						t.Errorf("%s: %v, want at most the time until all daemons know of the limit", raised, d)
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
			if denied > want {
				t.Errorf("%s: %d denied, want at most %d", raised, denied, want)
			}
		})
	}
}
