package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/candidates"
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

// The keys of a candidate are those since it is tried, as its counts are, also if it follows another one.
func TestNextCandidateNamesItsOwnKeys(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, &engine.Options{TopKeys: topkeys.New(nil)})
	for count := range int64(2) { // 0/1h denies the first request, and 1/1h the second
		key := fmt.Sprintf("other=%d", count)
		if err := e.Trials.Try(e.Rules().Rule("shop/other"), penstock.PerHour(count), time.Time{}); err != nil {
			t.Fatal(err)
		}
		for range count + 1 {
			decide(t, e, "shop", descriptor(1, key))
		}
		for _, c := range e.Candidates() {
			if denied := c.Differing(true, 10).Entries; c.Rule == "shop/other" && (len(denied) != 1 || denied[0].Key != key) {
				t.Errorf("%s: got %+v, want only %s", c.Candidate, denied, key)
			}
		}
	}
}

// Rules that are tried as a whole say what an engine says that has them in force, request by request.
func TestTriedRulesSayWhatTheyWouldDecide(t *testing.T) {
	const inForce = `
domain: shop
descriptors:
  - {key: user, limit: 5/1h fixed-window}
  - {key: path, limit: 9/1h sliding-log}
  - {key: user, value: vip, limit: 50/1h}
  - {key: same, limit: 3/1h}
`
	const next = `
domain: shop
descriptors:
  - {key: user, limit: 7/1h fixed-window, also: 20/1d fixed-window}
  - {key: path, limit: 8/1h sliding-log}
  - {key: new, limit: 4/1h}
  - {key: same, limit: 3/1h}
`
	tried := parse(t, next)
	if left := tried.AsCandidates(); left != nil {
		t.Fatal(left)
	}
	trying, deciding := newEngine(t, newMemory(), inForce, nil), newEngine(t, newMemory(), next, nil)
	trying.Trials.TryRules(tried)
	if n := len(trying.Candidates()); n != 3 {
		t.Fatalf("%d rules are compared, want 3: those that differ", n)
	}
	random := rand.New(rand.NewPCG(1, 2))
	allowed, asked := uint64(0), 0
	for range 500 {
		entries := []string{"user=", "path=", "new="}
		random.Shuffle(3, func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		var ds []engine.Descriptor
		for _, e := range entries[:1+random.IntN(3)] {
			ds = append(ds, descriptor(1+random.Int64N(2), e+[]string{"a", "b", "c", "vip"}[random.IntN(4)]))
		}
		decide(t, trying, "shop", ds...)
		if strings.HasPrefix(decide(t, deciding, "shop", ds...), "allowed") {
			allowed += uint64(len(ds))
		}
		asked += len(ds)
	}
	counted := uint64(0)
	for _, c := range trying.Candidates() {
		counted += c.Of(false, false) + c.Of(true, false)
	}
	if counted != allowed || allowed == 0 || allowed == uint64(asked) {
		t.Errorf("the rules that are tried allow %d of %d, and allow %d in force", counted, asked, allowed)
	}
	decide(t, trying, "shop", descriptor(1, "same=a"))
	trying.Trials.TryRules(nil)
	if n := len(trying.Candidates()); n != 0 {
		t.Errorf("%d candidates are left", n)
	}
}

func TestCandidateAtRuntimeEnds(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, nil)
	other, tight := e.Rules().Rule("shop/other"), e.Rules().Rule("shop/tight")
	for _, rule := range []*rules.Rule{other, tight} {
		if err := e.Trials.Try(rule, penstock.PerHour(1), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	decide(t, e, "shop", descriptor(1, "other=a"))
	decide(t, e, "shop", descriptor(1, "other=a"))
	want(t, compared(t, e, "shop/other"), "1 1 0 0")
	e.SetRules(parse(t, candidateRules)) // a reload keeps it, and what it has counted
	want(t, compared(t, e, "shop/other"), "1 1 0 0")
	if !e.Trials.End("shop/tight") || e.Trials.End("shop/tight") {
		t.Error("a candidate did not end, or twice")
	}
	if err := e.Trials.Try(other, penstock.PerHour(1), time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	isTried := func() bool {
		return slices.ContainsFunc(e.Candidates(), func(c *candidates.Comparison) bool { return c.Rule == "shop/other" })
	}
	for begin := time.Now(); isTried() && time.Since(begin) < time.Minute; {
		runtime.Gosched()
	}
	if isTried() {
		t.Error("it did not end by its time")
	}
	if err := e.Trials.Try(tight, penstock.Limit{Algorithm: penstock.Concurrent, Count: 1, Period: time.Minute}, time.Time{}); err == nil {
		t.Error("permits were accepted as a candidate")
	}
}

// A value of a foreign program under the key of a candidate fails no request.
func TestCandidateWithForeignValue(t *testing.T) {
	memory := newMemory()
	broken := func(r *penstock.Request) bool { return strings.Contains(r.Limit.Name, "candidate") }
	store := new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		for i := range rs {
			if broken(&rs[i]) {
				err := penstock.TakeBatch(ctx, memory, rs[:i], ds[:i], all)
				return errors.Join(err, &penstock.RequestError{Index: i, Err: &penstock.KeyError{Key: rs[i].Key, Err: errors.New("foreign")}})
			}
		}
		return penstock.TakeBatch(ctx, memory, rs, ds, all)
	}))
	e := newEngine(t, store, candidateRules, nil)
	want(t, decide(t, e, "shop", descriptor(1, "tight=a")), "allowed: granted=1 remaining=1")
	want(t, decide(t, e, "shop", descriptor(1, "tight=a"), descriptor(1, "other=a")), "allowed: granted=1 remaining=0 | granted=1 remaining=2")
	want(t, compared(t, e, "shop/tight"), "0 0 0 0")
}

// A store that is down fails no request that only a candidate limits.
func TestCandidateAloneFailsNoRequest(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	e, tried := newEngine(t, down, candidateRules, nil), parse(t, "domain: shop\ndescriptors: [{key: new, limit: 1/1h}]")
	_ = tried.AsCandidates()
	e.Trials.TryRules(tried)
	want(t, decide(t, e, "shop", descriptor(1, "new=a")), "allowed: no rule")
	want(t, compared(t, e, "shop/new"), "0 0 0 0")
}

// A candidate whose denials are remembered lets no hits of the limits in force go uncounted.
func TestCandidateHoldsNothingBack(t *testing.T) {
	e := newEngine(t, newMemory(), candidateRules, &engine.Options{CompatEnvoy: true, OverLimitKeys: 100, StopIncrement: true})
	for i := range 8 {
		var r engine.Result
		if err := e.Decide(t.Context(), "shop", []engine.Descriptor{descriptor(1, "loose=a")}, &r); err != nil || r.OverLimit != (i >= 4) {
			t.Errorf("request %d: over %v, %v", i, r.OverLimit, err)
		}
	}
}

// Rules that are tried refuse no request under an ID, even where they would in force.
func TestTriedRulesRefuseNoID(t *testing.T) {
	for _, compat := range []bool{false, true} {
		e := newEngine(t, newMemory(), "domain: shop\ndescriptors: [{key: user, limit: 5/1h fixed-window}]", &engine.Options{CompatEnvoy: compat})
		tried := parse(t, "domain: shop\ndescriptors: [{key: user, charge: always, limit: 5/1h fixed-window}, {key: new, limit: 5/1h fixed-window}]")
		_ = tried.AsCandidates()
		e.Trials.TryRules(tried)
		user, unlimited := descriptor(1, "user=a"), descriptor(1, "new=a")
		for _, c := range []struct {
			terms engine.Terms
			ds    []engine.Descriptor
			skip  bool
		}{
			{engine.Terms{ID: "1"}, []engine.Descriptor{user}, compat}, // refused by the rule in force
			{engine.Terms{ID: "2"}, []engine.Descriptor{unlimited}, false},
			{engine.Terms{ID: "2", Settle: true}, []engine.Descriptor{unlimited}, false},
			{engine.Terms{ID: "3"}, []engine.Descriptor{user, descriptor(-1, "new=a")}, compat},
		} {
			var r engine.Result
			if err := e.DecideOn(t.Context(), "shop", c.terms, c.ds, &r); err != nil && !c.skip {
				t.Errorf("compat %v, %+v: %v", compat, c.terms, err)
			}
		}
	}
}

// Whatever is asked, and whichever calls for candidates fail, callers are answered as without candidates, and the limits in
// force are charged the same.
func TestCandidatesChangeNoAnswer(t *testing.T) {
	for seed := range uint64(fixedseed.FewerUnderRace(60)) {
		random := rand.New(rand.NewPCG(seed, 3))
		o := engine.Options{CompatEnvoy: seed%3 == 1, StopIncrement: seed%6 == 1}
		plain := newEngine(t, newMemory(), withoutCandidates.ReplaceAllString(candidateRules, ""), &o)
		memory, chance := newMemory(), rand.New(rand.NewPCG(seed, 4))
		e := newEngine(t, failingForCandidates(memory, func() bool { return chance.IntN(3) == 0 }), candidateRules, &o)
		tried := parse(t, "domain: shop\ndescriptors: [{key: other, limit: 1/1h fixed-window}, {key: tight, limit: 1/1h burst=1}, {key: new, limit: 1/1h}]")
		_ = tried.AsCandidates()
		e.Trials.TryRules(tried)
		for i := range 150 {
			terms, ds := randomRequest(random)
			var got, want engine.Result
			gotErr, wantErr := e.DecideOn(t.Context(), "shop", terms, ds, &got), plain.DecideOn(t.Context(), "shop", terms, ds, &want)
			if a, b := answer(&got, gotErr), answer(&want, wantErr); a != b {
				t.Fatalf("seed %d, request %d, %+v %+v:\nwith candidates %s\nwithout         %s", seed, i, terms, ds, a, b)
			}
		}
	}
}

var withoutCandidates = regexp.MustCompile(`(?m), candidate: [^}\n]*|^ *candidate: .*$`)

// failingForCandidates returns a store that fails calls which are about candidates alone: before they are decided, or after.
func failingForCandidates(next penstock.Store, fails func() bool) penstock.Store {
	return new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		if slices.ContainsFunc(rs, func(r penstock.Request) bool { return !strings.Contains(r.Limit.Name, "candidate") }) || !fails() {
			return penstock.TakeBatch(ctx, next, rs, ds, all)
		}
		if fails() {
			_ = penstock.TakeBatch(ctx, next, rs, ds, all)
			clear(ds)
		}
		return penstock.ErrUnavailable
	}))
}

// A shard on which only candidates are is down: the limits in force are decided, and charged once.
func TestCandidateOnAShardThatIsDown(t *testing.T) {
	memory := newMemory()
	store := new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		n := slices.IndexFunc(rs, func(r penstock.Request) bool { return strings.Contains(r.Limit.Name, "candidate") })
		if n < 0 {
			return penstock.TakeBatch(ctx, memory, rs, ds, all)
		}
		err := penstock.TakeBatch(ctx, memory, rs[:n], ds[:n], all)
		return cmp.Or(err, error(&penstock.RequestError{Index: n, Err: penstock.ErrUnavailable}))
	}))
	e := newEngine(t, store, candidateRules, nil)
	want(t, decide(t, e, "shop", descriptor(1, "loose=a")), "allowed: granted=1 remaining=3")
	want(t, decide(t, e, "shop", descriptor(1, "loose=a"), descriptor(1, "other=a")), "allowed: granted=1 remaining=2 | granted=1 remaining=2")
	want(t, decide(t, e, "shop", descriptor(9, "loose=a")), "denied: granted=0 remaining=2 over denied")
	want(t, compared(t, e, "shop/loose"), "0 0 0 0")
}

// Several limits and their candidates are two calls of the store at the same time: each waits here for the other.
func TestCandidatesBesideSeveralLimitsShareTheirRoundTrip(t *testing.T) {
	memory, meet := newMemory(), make(chan struct{})
	e := newEngine(t, new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		if all {
			meet <- struct{}{}
		} else {
			<-meet
		}
		return penstock.TakeBatch(ctx, memory, rs, ds, all)
	})), candidateRules, nil)
	want(t, decide(t, e, "shop", descriptor(1, "tight=a"), descriptor(1, "loose=a")), "allowed: granted=1 remaining=1 | granted=1 remaining=3")
	want(t, compared(t, e, "shop/loose"), "1 0 0 0")
}

// A request that fails leaves nothing charged to its candidates, with several limits beside them and with one.
func TestCandidateIsRefundedAfterAnError(t *testing.T) {
	for _, ds := range [][]engine.Descriptor{
		{descriptor(1, "loose=a")},
		{descriptor(1, "loose=a"), descriptor(1, "other=a")},
	} {
		memory, down := newMemory(), true
		e := newEngine(t, new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
			if !down || strings.Contains(rs[0].Limit.Name, "candidate") {
				return penstock.TakeBatch(ctx, memory, rs, ds, all)
			}
			if n := len(rs) - 1; strings.Contains(rs[n].Limit.Name, "candidate") {
				_ = penstock.TakeBatch(ctx, memory, rs[n:], ds[n:], all)
			}
			return penstock.ErrUnavailable
		})), candidateRules, nil)
		for range 3 {
			var r engine.Result
			if err := e.Decide(t.Context(), "shop", ds, &r); !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("got %v", err)
			}
		}
		down = false
		for range 3 {
			decide(t, e, "shop", ds...)
		}
		want(t, compared(t, e, "shop/loose"), "2 1 0 0")
	}
}

// A call that refunds a candidate also peeks at a limit in force. If all of it fails, the peek is no denial, and if only the
// refund does, that fails no request.
func TestCandidateRefundFailsBesideAPeek(t *testing.T) {
	for _, all := range []bool{true, false} {
		memory, down := newMemory(), false
		e := newEngine(t, new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, together bool) error {
			refund := slices.IndexFunc(rs, func(r penstock.Request) bool { return r.Cost < 0 })
			switch {
			case !down || refund < 0:
				return penstock.TakeBatch(ctx, memory, rs, ds, together)
			case all:
				return penstock.ErrUnavailable
			}
			err := penstock.TakeBatch(ctx, memory, rs[:refund], ds[:refund], together)
			return cmp.Or(err, error(&penstock.RequestError{Index: refund, Err: penstock.ErrUnavailable}))
		})), candidateRules, nil)
		decide(t, e, "shop", descriptor(2, "loose=a")) // all that its candidate has
		down = true
		var r engine.Result
		err := e.Decide(t.Context(), "shop", []engine.Descriptor{descriptor(1, "loose=a"), descriptor(1, "tight=a"), descriptor(0, "other=a")}, &r)
		if all && !errors.Is(err, penstock.ErrUnavailable) || !all && (err != nil || r.OverLimit || r.Statuses[2].Decision.Remaining != 3) {
			t.Errorf("all fails: %v; got %+v, %v", all, r, err)
		}
	}
}

// randomRequest returns a request of up to three descriptors, some of them peeks and refunds, or under an ID.
func randomRequest(random *rand.Rand) (terms engine.Terms, ds []engine.Descriptor) {
	names := []string{"tight", "loose", "other", "bucket", "shadow", "quota", "always", "tokens", "both", "new"}
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+random.IntN(3)] {
		cost := []int64{1, 1, 1, 1, 2, 3, 0, -1}[random.IntN(8)]
		ds = append(ds, descriptor(cost, name+"="+string(rune('a'+random.IntN(2)))))
	}
	if random.IntN(5) == 0 {
		terms.ID, terms.Settle = fmt.Sprint(random.IntN(20)), random.IntN(3) == 0
	}
	return terms, ds
}

func answer(r *engine.Result, err error) string {
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprint(r.OverLimit)
	for i := range r.Statuses {
		s := &r.Statuses[i]
		text += fmt.Sprintf(" | %v %v", s.OverLimit, s.Decision)
	}
	return text
}
