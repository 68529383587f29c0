package respapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

// testRules returns the rules in testdata.
func testRules(t testing.TB) *rules.Set {
	t.Helper()
	set, err := rules.Load("testdata/rules.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// pairs returns n entries, of keys and values of the given length.
func pairs(n, length int) (words []string) {
	for i := range n {
		words = append(words, fmt.Sprintf("%0*d", length, i), strings.Repeat("v", length))
	}
	return words
}

func TestTakeBoundsArguments(t *testing.T) {
	s := newServerWithClock(newFakeClock())
	s.engine.SetRules(testRules(t))
	c := newFakeClient(s)
	long := strings.Repeat("x", maxKey+1)
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"KEY", long, "LIMIT", "5/1m"}, "-ERR key of 4097 bytes: must be at most 4096"},
		{[]string{"KEY", "k", "LIMIT", "5/1m", "ID", long}, "-ERR ID of 4097 bytes: must be at most 4096"},
		{[]string{"DOMAIN", long, "user", "42"}, "-ERR DOMAIN of 4097 bytes: must be at most 4096"},
		{[]string{"DOMAIN", "shop", "user", long}, "-ERR a descriptor of 4101 bytes: must be at most 4096"},
		{append([]string{"DOMAIN", "shop"}, pairs(16, 2)...), `*4 "allowed" :1 "rule" $-1`},
		{append([]string{"DOMAIN", "shop"}, pairs(17, 2)...), "-ERR 17 entries: must be at most 16"},
		{append([]string{"DOMAIN", "shop"}, pairs(16, 128)...), `*4 "allowed" :1 "rule" $-1`},
		{append([]string{"DOMAIN", "shop"}, pairs(16, 129)...), "-ERR a descriptor of 4128 bytes: must be at most 4096"},
	} {
		if got := c.do(t, append([]string{"PENSTOCK.TAKE"}, test.words...)...); got != test.want {
			t.Errorf("%.80q: got %s, want %s", test.words, got, test.want)
		}
	}
	got := c.do(t, "PENSTOCK.TAKE", long)
	if want := "-ERR unknown word '" + long[:128] + "'; see PENSTOCK.TAKE HELP"; got != want {
		t.Errorf("a long word: got %s, want %s", got, want)
	}
}

// A command without the ID of its permit is wrong. As UNAVAILABLE, a client that then goes on would
// have no limit at all.
func TestTakeWithoutThePermitsIDIsAnError(t *testing.T) {
	s := newServerWithClock(newFakeClock())
	set, err := rules.Parse(rules.File{Name: "held.yaml", Text: []byte("domain: held\ndescriptors: [{key: user, limit: 2/30s concurrent, id: request_id}]")})
	if err != nil {
		t.Fatal(err)
	}
	s.engine.SetRules(set)
	got, want := newFakeClient(s).do(t, "PENSTOCK.TAKE", "DOMAIN", "held", "user", "ada"), "-ERR descriptor 0: rule held/user: the descriptor has no ID"
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTakeBoundsDescriptors(t *testing.T) {
	e := engine.New(penstock.NewMemory(nil), &engine.Options{MaxDescriptors: 2})
	e.SetRules(testRules(t))
	c := newFakeClient(must(New(e, nil)))
	words := []string{"PENSTOCK.TAKE", "DOMAIN", "shop"}
	for range 3 {
		words = append(words, "ENTRIES", "1", "user", "42")
	}
	if got, want := c.do(t, words...), "-ERR 3 descriptors: must be at most 2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTakePipelineIsOneBatch(t *testing.T) {
	redisServer.Clock.Set(newFakeClock().now())
	store := &countingStore{Store: newRedisStore(t, redisServer)}
	c := newFakeClient(newServer(t, store, nil, nil, nil))
	var commands []string
	for range 10 {
		commands = append(commands,
			encode("PENSTOCK.TAKE", "KEY", "alice", "LIMIT", "99/1m"), encode("CL.THROTTLE", "alice", "4", "1", "60"))
	}
	for i, got := range c.doAll(t, commands...) {
		if want := []string{`*16 "allowed" :1 `, "*5 :"}[i%2]; !strings.HasPrefix(got, want) {
			t.Errorf("reply %d: got %s, want %s…", i, got, want)
		}
	}
	if store.takes != 0 || store.batches != 1 {
		t.Errorf("%d takes and %d batches, want one batch", store.takes, store.batches)
	}
}

// Takes are counted as those of other APIs: by rule, or as request limits.
func TestTakeIsCounted(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, store, nil, nil, nil)
			s.engine.SetRules(testRules(t))
			c := newFakeClient(s)
			c.doAll(t,
				encode("PENSTOCK.TAKE", "KEY", "alice", "LIMIT", "3/1m", "COST", "3"),
				encode("PENSTOCK.TAKE", "KEY", "alice", "LIMIT", "3/1m", "COST", "2"),
				encode("PENSTOCK.TAKE", "KEY", "alice", "LIMIT", "3/1m", "COST", "0"),
				encode("PENSTOCK.TAKE", "DOMAIN", "shop", "user", "42", "COST", "5"),
				encode("PENSTOCK.TAKE", "DOMAIN", "shop", "user", "42"),
			)
			for _, rule := range []struct {
				name                string
				allowed, denied     uint64
				allowedUnits, units uint64
			}{{"", 1, 1, 3, 2}, {"shop/user", 1, 1, 5, 1}} {
				all := s.engine.RuleStats()
				got := all[slices.IndexFunc(all, func(c *engine.RuleStats) bool { return c.Rule == rule.name })]
				if got.Allowed() != rule.allowed || got.Denied.Load() != rule.denied ||
					got.AllowedUnits() != rule.allowedUnits || got.DeniedUnits.Load() != rule.units {
					t.Errorf("rule %q: got %d and %d allowed and denied, %d and %d units, want %+v", rule.name, got.Allowed(),
						got.Denied.Load(), got.AllowedUnits(), got.DeniedUnits.Load(), rule)
				}
			}
		})
	}
}

// A take that no rule matches is denied where the engine says so.
func TestTakeUnmatchedCanBeDenied(t *testing.T) {
	s := newServer(t, newFakeClock().memory(), nil, &engine.Options{DenyUnmatched: true}, nil)
	s.engine.SetRules(testRules(t))
	c := newFakeClient(s)
	for _, domain := range []string{"shop", "shpo"} {
		if got, want := c.do(t, "PENSTOCK.TAKE", "DOMAIN", domain, "usr", "42"), `*4 "allowed" :0 "rule" $-1`; got != want {
			t.Errorf("domain %s: got %s, want %s", domain, got, want)
		}
	}
}

// In shadow mode no take is denied.
func TestTakeShadowAllows(t *testing.T) {
	s := newServer(t, newFakeClock().memory(), nil, &engine.Options{Shadow: true}, nil)
	s.engine.SetRules(testRules(t))
	c := newFakeClient(s)
	for _, words := range [][]string{
		{"PENSTOCK.TAKE", "KEY", "alice", "LIMIT", "3/1m", "COST", "4"},
		{"PENSTOCK.TAKE", "DOMAIN", "shop", "user", "42", "COST", "6"},
		{"PENSTOCK.TAKE", "COST", "6", "DOMAIN", "shop", "ENTRIES", "1", "user", "42", "ENTRIES", "1", "user", "43"},
	} {
		if _, rest, _ := strings.Cut(c.do(t, words...), " "); !strings.HasPrefix(rest, `"allowed" :1 `) {
			t.Errorf("%q: got %s, want allowed", words, rest)
		}
	}
}

// Any arguments get one reply, and a command that fails charges nothing.
func FuzzTakeArguments(f *testing.F) {
	f.Add("KEY\x00k\x00LIMIT\x005/1m\x00COST\x002\x00ATMOST")
	f.Add("COST\x00-1\x00DOMAIN\x00shop\x00ENTRIES\x001\x00user\x0042\x00RESET")
	f.Add("DOMAIN\x00shop\x00user\x0042\x00path\x00/login\x00MAXDELAY\x00100\x00ID\x00x")
	set := testRules(f)
	f.Fuzz(func(t *testing.T, joined string) {
		words := append([]string{"PENSTOCK.TAKE"}, strings.Split(joined, "\x00")...)
		if len(words) > maxArgs || len(joined) > maxCommand/2 {
			return
		}
		store := newFakeClock().memory()
		s := must(New(engine.New(store, nil), nil))
		s.engine.SetRules(set)
		got := newFakeClient(s).doAll(t, encode(words...))
		if len(got) != 1 {
			t.Fatalf("%q: got %d replies: %q", words, len(got), got)
		}
		if strings.HasPrefix(got[0], "-") && store.Stats().Keys != 0 {
			t.Errorf("%q: charged, and got %s", words, got[0])
		}
	})
}

// Descriptors of rules with settle are taken under an ID and settled, each to its own cost or
// to that of the command.
func TestSettleByRules(t *testing.T) {
	s := newServerWithClock(newFakeClock())
	s.engine.SetRules(testRules(t))
	c := newFakeClient(s)
	granted := func(units, left int) string {
		return fmt.Sprintf(`*18 "allowed" :1 "granted" :%d "limit" :100 "remaining" :%d "retry_after_ms" :0 "reset_after_ms" :60000 "delay_ms" :0 "source" "store" "rule" "shop/team"`, units, left)
	}
	for _, test := range []struct{ command, want string }{
		{"PENSTOCK.TAKE DOMAIN shop team 9 ID x COST 40", granted(40, 60)},
		{"PENSTOCK.TAKE ID x DOMAIN shop ENTRIES 1 team 9 COST 40", granted(40, 60)},
		{"PENSTOCK.SETTLE ID x DOMAIN shop team 9 COST 15", granted(15, 85)},
		{"PENSTOCK.SETTLE ID x COST 15 DOMAIN shop team 9", granted(15, 85)},
		{"PENSTOCK.SETTLE DOMAIN shop team 9 COST 15 ID y", "-UNKNOWNID nothing is remembered under this ID; nothing was charged"},
		{"PENSTOCK.SETTLE DOMAIN shop team 9 ID x", "-ERR want COST and the amount that was used; see PENSTOCK.TAKE HELP"},
		{"PENSTOCK.SETTLE DOMAIN shop ENTRIES 1 team 9 COST 1 ENTRIES 1 team 8 ID x", "-ERR want COST and the amount that was used; see PENSTOCK.TAKE HELP"},
		{"PENSTOCK.SETTLE DOMAIN shop team 9 COST 1", "-ERR want the ID of what was taken; see PENSTOCK.TAKE HELP"},
		{"PENSTOCK.SETTLE DOMAIN shop team 9 COST -1 ID x", "-ERR COST: must not be negative"},
		{"PENSTOCK.SETTLE DOMAIN shop user 9 COST 1 ID x", "-ERR rule shop/user: the descriptors cannot be taken or settled under an ID: it needs settle: true"},
		{"PENSTOCK.TAKE DOMAIN shop team 9 COST 0", granted(0, 85)},
		{"PENSTOCK.TAKE DOMAIN shop team 9 COST 90 KEEPFREE 10 ATMOST", granted(75, 10)},
		{"PENSTOCK.TAKE KEEPFREE 10 DOMAIN shop team 9", `*18 "allowed" :0 "granted" :0 "limit" :100 "remaining" :10 "retry_after_ms" :60000 "reset_after_ms" :60000 "delay_ms" :0 "source" "store" "rule" "shop/team"`},
		{"PENSTOCK.TAKE DOMAIN shop ENTRIES 1 team 9 COST 1 ENTRIES 1 user 9 COST 2 ATMOST", "-ERR ATMOST wants the same cost for all descriptors"},
		{"PENSTOCK.TAKE DOMAIN shop team 9 HOLD 10", "-ERR HOLD cannot be combined with DOMAIN; if it is the key of an entry, write ENTRIES n before the entries"},
	} {
		if got := c.do(t, strings.Fields(test.command)...); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.command, got, test.want)
		}
	}
}

// A limit of the name override is the counter of Envoy's descriptors with their own limit, whose
// denials the engine remembers.
func TestResetUnderAnOverridesNameEndsADenial(t *testing.T) {
	e := engine.New(newFakeClock().memory(), &engine.Options{Token: "secret", CompatEnvoy: true, OverLimitKeys: 1000, OverLimitAge: time.Hour})
	e.SetRules(testRules(t))
	own := &engine.OwnLimit{Limit: rules.Hour.Limit(1), RequestsPerUnit: 1, Unit: rules.Hour}
	isDenied := func() bool {
		var r engine.Result
		d := engine.Descriptor{Entries: []rules.Entry{{Key: "other", Value: "x"}}, Cost: 1, Own: own}
		if err := e.Decide(t.Context(), "shop", []engine.Descriptor{d}, &r); err != nil {
			t.Fatal(err)
		}
		return r.OverLimit
	}
	if isDenied() || !isDenied() {
		t.Fatal("want the second of two requests to be denied")
	}
	c := newFakeClient(must(New(e, nil)))
	c.do(t, "AUTH", "secret")
	c.do(t, "PENSTOCK.TAKE", "KEY", "shop=|other=x", "LIMIT", "1/1h fixed-window align=clock name=override", "RESET")
	if isDenied() {
		t.Error("the denial is still remembered after the reset")
	}
}

// A refund under an ID needs no audit, and joins the batch of its pipeline.
func TestRefundUnderAnOverridesNameInABatchEndsADenial(t *testing.T) {
	memory := newFakeClock().memory()
	store := penstock.StoreFunc(memory.Take) // may keep keys, so that commands are batched
	e := engine.New(store, &engine.Options{Token: "secret", CompatEnvoy: true, OverLimitKeys: 1000, OverLimitAge: time.Hour})
	e.SetRules(testRules(t))
	isDenied := func() bool {
		var r engine.Result
		own := &engine.OwnLimit{Limit: rules.Hour.Limit(2), RequestsPerUnit: 2, Unit: rules.Hour}
		d := engine.Descriptor{Entries: []rules.Entry{{Key: "other", Value: "x"}}, Cost: 1, Own: own}
		if err := e.Decide(t.Context(), "shop", []engine.Descriptor{d}, &r); err != nil {
			t.Fatal(err)
		}
		return r.OverLimit
	}
	c := newFakeClient(must(New(e, nil)))
	c.do(t, "AUTH", "secret")
	command := []string{"PENSTOCK.TAKE", "KEY", "shop=|other=x", "LIMIT", "2/1h fixed-window align=clock name=override", "ID", "a", "COST"}
	c.do(t, append(command, "2")...)
	if !isDenied() {
		t.Fatal("want a denial after both units were taken")
	}
	c.do(t, append(command, "-2")...)
	if isDenied() {
		t.Error("the denial is still remembered after the refund")
	}
}

// A ban has an end, and a client that is not told when would give up for good.
func TestTakeOfBannedKeyOfUnlimitedRuleHasRetryAfter(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "shop.yaml", Text: []byte("domain: shop\ndescriptors:\n- {key: free, rate_limit: {unlimited: true}}\n")})
	if err != nil {
		t.Fatal(err)
	}
	s := newServerWithClock(newFakeClock())
	s.engine.SetRules(set)
	ban := overrides.Override{Rule: "shop/free", Key: "free=42", Limit: "ban", Reason: "test"}
	if err := s.engine.Overrides().Put(t.Context(), []overrides.Override{ban}); err != nil {
		t.Fatal(err)
	}
	c := newFakeClient(s)
	want := `*18 "allowed" :0 "granted" :0 "limit" :0 "remaining" :0 "retry_after_ms" :-1 "reset_after_ms" :31622400000 "delay_ms" :0 "source" "override" "rule" "shop/free"`
	if got := c.do(t, "PENSTOCK.TAKE", "DOMAIN", "shop", "free", "42"); got != want {
		t.Errorf("banned: got %s, want %s", got, want)
	}
	if got, want := c.do(t, "PENSTOCK.TAKE", "DOMAIN", "shop", "free", "43"), `*4 "allowed" :1 "rule" "shop/free"`; got != want {
		t.Errorf("not banned: got %s, want %s", got, want)
	}
}

// Beside a denial by the deny cache, nothing is known of other limits, and nothing is said of them.
func TestTakeDeniedByDenyCacheInventsNoNumbers(t *testing.T) {
	clock := newFakeClock()
	s := newServer(t, penstock.WithDenyCache(clock.memory(), nil), clock, nil, nil)
	set, err := rules.Parse(rules.File{Name: "api.yaml", Text: []byte("domain: api\ndescriptors: [{key: rpm, limit: 60/1h}, {key: tpm, limit: 2/1h}]\n")})
	if err != nil {
		t.Fatal(err)
	}
	s.engine.SetRules(set)
	c, got := newFakeClient(s), ""
	for range 4 {
		got = c.do(t, "PENSTOCK.TAKE", "DOMAIN", "api", "ENTRIES", "1", "rpm", "ada", "ENTRIES", "1", "tpm", "ada")
	}
	if !strings.Contains(got, `"deny-cache"`) || !strings.Contains(got, `*4 "allowed" :1 "rule" "api/rpm"`) || strings.Contains(got, ":60") {
		t.Errorf("got %s, want numbers of api/tpm alone", got)
	}
}
