package pagetest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A kind is a kind of rule.
type kind struct {
	name string

	// rule is the rule's descriptor without its key, which is the name of the kind.
	rule string

	// below are the entries of a request behind the one with that key.
	below []string

	unlimited bool
}

// kinds are rules with everything that a rule file can say of one.
var kinds = append([]kind{
	{name: "also", rule: `limit: 3/1h, also: ["5/day zone=Asia/Shanghai fixed-window", "9/7d", "20/month zone=UTC fixed-window"]`},
	{name: "calendar", rule: `limit: 3/day zone=Asia/Shanghai fixed-window`},
	{name: "candidate", rule: `limit: 3/1h, candidate: 1/1h`},
	{name: "charged", rule: `limit: 3/1h, charge: always`},
	{name: "debt", rule: `limit: 3/1h burst=2 debt=7`},
	{name: "deny-cache", rule: `limit: 3/1h, deny_cache: false`},
	{name: "failing", rule: `limit: 3/1h, on_store_failure: local, share: 0.5`},
	{name: "global", rule: `limit: 300/1h, global: {pool: 12%, age: 10s, on_partition: deny}`},
	{name: "held", rule: `limit: 3/1h concurrent, id: request`, below: []string{"request=r1"}},
	{name: "kept-free", rule: `limit: 9/1h, keep_free: 50%`},
	{name: "leased", rule: `limit: 3/1h, lease: true`},
	{name: "metadata", rule: `limit: 3/1h, metadata: {tier: gold}`},
	{name: "metrics", rule: `limit: 3/1h, detailed_metric: true, value_to_metric: true`},
	{name: "named", rule: `rate_limit: {name: by-name, unit: hour, requests_per_unit: 3}`},
	{
		name: "nested", rule: `descriptors: [{key: "a-long-key/with-slashes", value: "/a/very/long/path/of/a/request/to/this/service/*", descriptors: [{key: remote_address, limit: 3/1h}]}]`,
		below: []string{"a-long-key/with-slashes=/a/very/long/path/of/a/request/to/this/service/index.html", "remote_address=203.0.113.9"},
	},
	{name: "none", rule: `limit: 0/1h`},
	{name: "penalized", rule: `limit: 3/1h, penalty: {after: 2/1m, for: 10m, up_to: 24h}`},
	{name: "priority", rule: `limit: 9/1h, descriptors: [{key: priority, value: batch, keep_free: 30%}]`, below: []string{"priority=batch"}},
	{name: "quota", rule: `limit: 3/1h, quota_mode: true`},
	{name: "replacing", rule: `rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: by-name}]}`},
	{name: "settled", rule: `limit: 3/1h, settle: true, hold: 2h`},
	{name: "shadow", rule: `limit: 3/1h, shadow_mode: true`},
	{name: "shadow-also", rule: `limit: 3/1h, also: 5/1d, shadow_mode: true, candidate: 1/1h`},
	{name: "shared", rule: `value: "ad*", share_threshold: true, limit: 3/1h`},
	{name: "unlimited", rule: `rate_limit: {unlimited: true}`, unlimited: true},
	{name: "value", rule: `value: ada, limit: 3/1h`},
}, algorithmKinds()...)

// algorithmKinds returns a plain rule for each algorithm.
func algorithmKinds() (all []kind) {
	for _, algorithm := range []string{"token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "rolling-window", "sliding-log"} {
		all = append(all, kind{name: algorithm, rule: "limit: 3/1h " + algorithm})
	}
	return all
}

// rulesOfKinds returns a file with all kinds, and a list of as many keys as it can have for gateways.
func rulesOfKinds() string {
	var rules, list strings.Builder
	for i, k := range kinds {
		fmt.Fprintf(&rules, "  - {key: %s, %s}\n", k.name, k.rule)
		if k.below == nil && i < 16 {
			fmt.Fprintf(&list, "    - {%s: %q}\n", k.name, "header:X-"+k.name)
		}
	}
	return "domain: kinds\nlists:\n  edge:\n" + list.String() + "descriptors:\n" + rules.String()
}

// entries are those of a request that the kind's rule applies to.
func (k kind) entries(value string) []string {
	return append([]string{k.name + "=" + value}, k.below...)
}

// A kindsDaemon is a daemon with rules of all kinds.
type kindsDaemon struct {
	*daemon `json:"-"`
	Rules   []struct {
		Name, Limit string
		Unlimited   bool
	}
}

// startKinds starts a daemon with an override and a ban for each rule that can have them.
func startKinds(t *testing.T) *kindsDaemon {
	t.Helper()
	store, home := databases.Add(1), databases.Add(1)
	d := &kindsDaemon{daemon: startDaemon(t, map[string]string{"kinds.yaml": rulesOfKinds()},
		"--store", fmt.Sprintf("redis://%s/%d", redis.Addr, store), "--redis-timeout", "10s",
		"--home", fmt.Sprintf("redis://%s/%d", redis.Addr, home), "--regions", "2", "--home-timeout", "10s")}
	d.call(t, "GET", "/rules", d)
	for _, k := range kinds {
		d.call(t, "PUT", "/v1/candidates?rule=kinds/"+k.name+"&limit=2/1h&reason=r", nil) // fails if the rule has no such name
	}
	for _, r := range d.Rules {
		for key, limit := range map[string]string{"ada": "unlimited", "bob": "ban", "cyd": limitOf(r.Limit)} {
			if strings.Contains(r.Name, "//") && key != "cyd" {
				continue // those of the first limit are for all of them
			}
			send(t, "PUT", d.url(t, "admin")+"/v1/overrides", fmt.Sprintf(`{"rule":%q,"key":%q,"limit":%q,"for":"1h","reason":"a reason"}`, r.Name, key, limit), nil)
		}
	}
	return d
}

// takeAll sends requests of each kind, of a key that is denied, one without a limit, one that is banned, and one with a limit of its own.
func (d *kindsDaemon) takeAll(t *testing.T) {
	t.Helper()
	for _, k := range kinds {
		for i := range 16 {
			entries := []map[string]string{}
			for _, text := range k.entries([]string{"<b>zoe", "ada", "bob", "cyd"}[i%4]) {
				key, value, _ := strings.Cut(text, "=")
				entries = append(entries, map[string]string{"key": key, "value": value})
			}
			body, err := json.Marshal(map[string]any{"domain": "kinds", "descriptors": []any{map[string]any{"entries": entries}}})
			if err != nil {
				t.Fatal(err)
			}
			if status := send(t, "POST", d.url(t, "http")+"/v1/take", string(body), nil); status != http.StatusOK && status != http.StatusTooManyRequests {
				t.Fatalf("%s: %d", body, status)
			}
		}
	}
}

// addresses returns where the views show all kinds together, and where they show each of them.
func (d *kindsDaemon) addresses() (all, each []string) {
	all = []string{link("", "live"), link("", "live", "window", "1h", "scope", "all", "sort", "denied"), link("", "keys", "scope", "all"), link("", "keys", "by", "denied"), link("", "overrides"), link("", "rules")}
	for _, value := range []string{"<b>zoe", "ada", "bob", "cyd"} {
		all = append(all, link("", "keys", "key", value))
	}
	for _, k := range kinds {
		each = append(each, link("", "rules", "domain", "kinds", "entries", strings.Join(k.entries("ada"), "\n")), link("", "keys", "key", strings.Join(k.entries("bob"), "|")))
	}
	for _, r := range d.Rules {
		each = append(each, link("", "keys", "rule", r.Name, "by", "denied"))
		simulated := link("", "simulator", "limit", limitOf(r.Limit))
		if !r.Unlimited && !strings.Contains(simulated, "concurrent") && !slices.Contains(each, simulated) {
			each = append(each, simulated)
		}
	}
	return all, each
}

// limitOf returns a limit without the name of its rule.
func limitOf(text string) string {
	text, _, _ = strings.Cut(text, " name=")
	return text
}

// A sight is what is seen of a view over several polls.
type sight struct {
	Rows     []int    // after each poll, and none where the view shows an error
	Repeated []string // elements of a list whose item has the same id as another
	Denied   []string // keys that are denied more often than they asked
	Split    []string // names, places and addresses in tables that are broken elsewhere than behind a slash
	Width    int64    // of what the view contains
}

// look goes to an address, makes the page ask the daemon again and again, and returns what it shows.
const look = `(async (hash) => {
	const wait = async (condition) => { while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2)); };
	const number = (e) => Number((e?.textContent ?? '').replace(/\D/g, ''));
	const lines = (node) => {
		const range = document.createRange();
		range.selectNodeContents(node);
		return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size;
	};
	location.hash = hash;
	const rows = [];
	for (let i = 0; i < 3; i++) {
		const before = answered;
		document.dispatchEvent(new Event('visibilitychange'));
		await wait(() => answered > before && inFlight === 0);
		rows.push([...document.querySelectorAll('main *, .banner')].filter((e) => e.reconcileKey !== undefined).length);
	}
	return {
		Rows: document.querySelector('.banner, .problem:not([hidden])') ? [] : rows,
		Repeated: [...document.querySelectorAll('*')].map((e) => e.reconcileKey).filter((k) => k !== undefined && !k.startsWith('0 ')),
		Denied: [...document.querySelectorAll('.ranking li')].filter((li) => number(li.querySelector('[data-count=denied] b')) > number(li.querySelector('[data-count=asked] b'))).map((li) => li.innerText),
		Split: [...document.querySelectorAll(':is(.audit, .overrides, .tree, .rule-rows) :is(td, th):not(.reason):not(:last-child) *, .table td')].flatMap((e) => [...e.childNodes])
			.filter((n) => n.nodeType === Node.TEXT_NODE && /^[^\s\p{sc=Han}]{1,22}$/u.test(n.data) && n.parentElement.checkVisibility() && lines(n) > 1).map((n) => n.data),
		Width: document.documentElement.scrollWidth,
	};
})`

// Every view shows every kind of rule: without an error, each thing once however often the daemon is asked, and
// within the screen, in both languages and color schemes.
func TestEveryViewShowsEveryKindOfRule(t *testing.T) {
	d := startKinds(t)
	all, each := d.addresses()
	for i, language := range []string{"en", "zh-CN"} {
		for k, width := range []int64{1280, 390} {
			d.takeAll(t)
			tb := openTab(t)
			tb.speak(t, language)
			tb.resize(t, width, 900)
			tb.prefer(t, []string{"light", "dark"}[(i+k)%2])
			tb.show(t, d.daemon, "live")
			shown := all
			if i == k { // the kinds alone once in each language, at each width and in one scheme
				shown = slices.Concat(all, each)
			}
			for _, address := range shown {
				tb.checkSight(t, address, width)
				if language != "en" {
					tb.wantNone(t, address+" has texts that are not Chinese", foreign)
				}
			}
			for _, scheme := range []string{"light", "dark"} {
				tb.prefer(t, scheme)
				tb.wantNone(t, "contrast below 4.5", contrasts)
			}
			if found := tb.seen(&tb.console); len(found) > 0 {
				t.Errorf("on the console: %q", found)
			}
		}
	}
}

// wantNone fails if an expression finds anything on the page.
func (tb *tab) wantNone(t *testing.T, what, expression string) {
	t.Helper()
	if found := evaluate[[]string](t, tb, expression); len(found) > 0 {
		t.Errorf("%s:\n%s", what, strings.Join(found, "\n"))
	}
}

func (tb *tab) checkSight(t *testing.T, address string, width int64) {
	t.Helper()
	seen := evaluate[sight](t, tb, look+"("+quote(strings.TrimPrefix(address, "/"))+")")
	if len(seen.Rows) == 0 {
		t.Errorf("%s at %d px shows an error:\n%.2000s", address, width, tb.text(t, "main"))
	} else if before, after := seen.Rows[1], seen.Rows[2]; after > before || after < before && !strings.HasPrefix(address, "/#/keys") { // keys are forgotten at their time
		t.Errorf("%s at %d px has %d rows, one poll after the other", address, width, seen.Rows)
	}
	if len(seen.Repeated) > 0 {
		t.Errorf("%s at %d px has two of each of these: %q", address, width, seen.Repeated)
	}
	if len(seen.Denied) > 0 {
		t.Errorf("%s at %d px: denied more often than they asked: %q", address, width, seen.Denied)
	}
	if len(seen.Split) > 0 {
		t.Errorf("%s at %d px breaks %q in the middle", address, width, seen.Split)
	}
	if seen.Width > width {
		t.Errorf("%s at %d px is %d px wide: %q", address, width, seen.Width, evaluate[[]string](t, tb, outside))
	}
}
