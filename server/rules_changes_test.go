package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func setOf(t *testing.T, lines ...string) *rules.Set {
	t.Helper()
	text := "domain: shop\ndescriptors:\n" + strings.Join(lines, "\n")
	if len(lines) == 0 {
		text = "domain: shop\n"
	}
	set, err := rules.Parse(rules.File{Name: "shop.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestChanges(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("- {key: k%02d, limit: 1/1s}", i))
	}
	long := strings.Repeat("é", 200)
	for name, test := range map[string]struct {
		old, now []string
		want     string
	}{
		"nothing":  {[]string{"- {key: user, limit: 60/1m}"}, []string{"# moved", `- {key: user, limit: "60/1m"}`}, ""},
		"the same": {[]string{"- {key: user, limit: 60/1m}"}, []string{"- {key: user, limit: 60/60s}"}, ""},
		"changed":  {[]string{"- {key: user, limit: 60/1m}"}, []string{"- {key: user, limit: 6/1m}"}, "shop/user 60/1m -> 6/1m"},
		"burst":    {[]string{"- {key: user, limit: 60/1m}"}, []string{"- {key: user, limit: 60/1m burst=9}"}, "shop/user 60/1m -> 60/1m burst=9"},
		"shadow":   {[]string{"- {key: user, limit: 6/1m}"}, []string{"- {key: user, limit: 6/1m, shadow_mode: true}"}, "shop/user 6/1m -> 6/1m (shadow)"},
		"removed and added": {
			[]string{"- {key: user, limit: 6/1m}", "- {key: a, limit: 5/1s}"},
			[]string{"- {key: b, limit: 7/1s}", "- {key: user, limit: 9/1m}"},
			"shop/user 6/1m -> 9/1m, shop/a removed: 5/1s, shop/b added: 7/1s",
		},
		"unlimited": {[]string{"- {key: user, limit: 6/1m}"}, []string{"- {key: user, rate_limit: {unlimited: true}}"}, "shop/user 6/1m -> unlimited"},
		"many": {nil, many, "shop/k00 added: 1/1s, shop/k01 added: 1/1s, shop/k02 added: 1/1s, shop/k03 added: 1/1s, shop/k04 added: 1/1s, " +
			"shop/k05 added: 1/1s, shop/k06 added: 1/1s, shop/k07 added: 1/1s, shop/k08 added: 1/1s, shop/k09 added: 1/1s, and 2 more"},
		"also": {[]string{"- {key: user, limit: 6/1m, also: [9/1h]}"}, []string{"- {key: user, limit: 6/1m, also: [8/1h]}"}, "shop/user//1h 9/1h -> 8/1h"},
		"setting": {
			[]string{"- {key: user, limit: 6/1m, on_store_failure: deny}"},
			[]string{"- {key: user, limit: 6/1m, on_store_failure: allow}"},
			"shop/user on_store_failure deny -> allow",
		},
		"units kept free": {
			[]string{"- {key: user, limit: 60/1m, keep_free: 10%}"},
			[]string{"- {key: user, limit: 60/1m, keep_free: 90%}"},
			"shop/user keep_free 6 -> 54",
		},
		"new setting": {
			[]string{"- {key: user, limit: 6/1m}"},
			[]string{"- {key: user, limit: 6/1m, charge: always}"},
			"shop/user charge unset -> always, as debt if it does not fit",
		},
		"setting removed": {
			[]string{"- {key: user, limit: 6/1m, also: 9/1h, quota_mode: true}"},
			[]string{"- {key: user, limit: 6/1m, also: 9/1h}"},
			"shop/user quota denies only if all quota rules of the request are over their limit -> unset",
		},
		"limit and settings": {
			[]string{"- {key: user, limit: 6/1m, settle: true}"},
			[]string{"- {key: user, limit: 5/1m, on_store_failure: deny, penalty: {after: 3/1m, for: 1h, up_to: 1d}}"},
			"shop/user 6/1m -> 5/1m, shop/user on_store_failure unset -> deny, " +
				"shop/user penalty unset -> 3 denials within 1m ban a key for 1h, then twice as long each time, up to 1d, " +
				"shop/user settle what was taken under an ID, for one period and at most a day -> unset",
		},
		"hostile and long setting": {
			[]string{"- {key: user, limit: 1/1h concurrent, id: aa" + long + "a}"},
			[]string{"- {key: user, limit: 1/1h concurrent, id: \"\\e" + long + "b\"}"},
			"shop/user id aa" + strings.Repeat("é", 49) + "… -> \\x1b" + strings.Repeat("é", 48) + "…",
		},
		"long": {nil, []string{"- {key: " + long + ", limit: 1/1s}"}, "shop/" + strings.Repeat("é", 47) + "… added: 1/1s"},
	} {
		if got := changes(setOf(t, test.old...), setOf(t, test.now...)).String(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	twice := changes(setOf(t, "- {key: user, limit: 6/1m}"), setOf(t, "- {key: user, limit: 5/1m, on_store_failure: deny}"))
	if twice.changedRules != 1 {
		t.Errorf("a rule with two changes: %d rules have changed, want 1", twice.changedRules)
	}
	if got := changes(nil, setOf(t, many...)).String(); got != "" {
		t.Errorf("the first rules: got %q, want nothing", got)
	}
}
