package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
)

var begin = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const perAddress = "domain: edge\ndescriptors:\n  - key: remote_address\n    limit: "

// An arrival is a request of a test.
type arrival struct {
	at      time.Duration
	address string
}

// jsonLog writes arrivals with exact times.
func jsonLog(t *testing.T, arrivals []arrival) string {
	var b strings.Builder
	for _, a := range arrivals {
		address, _ := json.Marshal(a.address)
		fmt.Fprintf(&b, `{"time":"%s","address":%s}`+"\n", begin.Add(a.at).Format(time.RFC3339Nano), address)
	}
	return file(t, "exact.json", b.String())
}

// combinedLog writes arrivals with whole seconds.
func combinedLog(t *testing.T, arrivals []arrival) string {
	var b strings.Builder
	for _, a := range arrivals {
		fmt.Fprintf(&b, `%s - - [%s] "GET / HTTP/1.1" 200 5 "-" "-"`+"\n", a.address, begin.Add(a.at).Format("02/Jan/2006:15:04:05 -0700"))
	}
	return file(t, "access.log", b.String())
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Load(file(t, "rules.yaml", text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func replayed(t *testing.T, log string, o Options) *Report {
	t.Helper()
	r, err := Run(context.Background(), []string{log}, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// random returns arrivals of some addresses, of which a few are busy.
func random(seed uint64, n int) (all []arrival) {
	r := rand.New(rand.NewPCG(seed, 1))
	at := time.Duration(1)
	for range n {
		at += time.Duration(r.ExpFloat64() * float64(100*time.Millisecond))
		all = append(all, arrival{at, fmt.Sprintf("10.0.0.%d", int(r.ExpFloat64()*5))})
	}
	return all
}

// The replay of a log with exact times is what a limiter decides at these times, under every algorithm.
func TestRunDecidesAsALimiter(t *testing.T) {
	arrivals := random(1, 2000)
	log := jsonLog(t, arrivals)
	for _, text := range []string{"20/1m burst=5", "20/1m leaky-bucket", "20/1m fixed-window align=clock", "20/1m sliding-window", "20/1m rolling-window", "20/1m sliding-log"} {
		want := map[string]int64{}
		now := time.Time{}
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := penstock.New(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}), limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range arrivals {
			now = begin.Add(a.at)
			if d, err := limiter.Allow(context.Background(), a.address); err != nil {
				t.Fatal(err)
			} else if !d.Allowed {
				want["remote_address="+a.address]++
			}
		}
		got := replayed(t, log, Options{Rules: load(t, perAddress+`"`+text+`"`), TopKeys: 100})
		if int64(len(want)) != got.Rules[0].DeniedKeys || got.Denied.AtOnce != nil || got.Requests != 2000 {
			t.Errorf("%s: got %+v, want %d denied keys", text, got, len(want))
		}
		for _, k := range got.Rules[0].Top {
			if k.Denied != want[k.Key] {
				t.Errorf("%s: %s is denied %d times, want %d", text, k.Key, k.Denied, want[k.Key])
			}
		}
	}
}

// Requests of a log with whole seconds come among those of another, which are a little later than their seconds begin.
func TestRunMergesWholeSecondsWithExactTimes(t *testing.T) {
	var whole, exact []arrival
	for i := range 100 {
		at := time.Duration(i/10) * time.Second
		whole = append(whole, arrival{at, "10.0.0.1"})
		exact = append(exact, arrival{at + time.Duration(i%10)*95*time.Millisecond, "10.0.0.1"})
	}
	paths := []string{combinedLog(t, whole), jsonLog(t, exact)}
	got, err := Run(context.Background(), paths, Options{Rules: load(t, perAddress+"20/1s"), Suggest: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range got.Rules[0].Suggested.Curve {
		if p.Count >= 20 && (p.Burst < 11 || p.Burst > 20) {
			t.Errorf("suggested %+v, of which 11 are needed, and 20 come in a second", p)
		}
	}
	if want := begin.Add(exact[99].at); !got.To.Equal(want) || !got.From.Equal(begin) {
		t.Errorf("from %v to %v, want %v to %v", got.From, got.To, begin, want)
	}
}

// Ten requests in a second under ten a second with a burst of one: all pass if they are spread, one if not.
func TestRunHasBothBoundsOfWholeSeconds(t *testing.T) {
	var arrivals []arrival
	for i := range 30 {
		arrivals = append(arrivals, arrival{time.Duration(i/10) * time.Second, "10.0.0.1"})
	}
	got := replayed(t, combinedLog(t, arrivals), Options{Rules: load(t, perAddress+`"10/1s burst=1"`)})
	if got.Denied.Count != 0 || got.Denied.AtOnce == nil || *got.Denied.AtOnce != 27 {
		t.Errorf("denied %+v, want 0 if spread and 27 at once", got.Denied)
	}
	if text := textOf(t, got); !strings.Contains(text, "0 to 27 (0.0% to 90.0%) denied") || !strings.Contains(text, "times are whole seconds") {
		t.Errorf("the report does not say so:\n%s", text)
	}
}

func textOf(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRunComparesRules(t *testing.T) {
	arrivals := []arrival{{1, "10.0.0.1"}, {2, "10.0.0.1"}, {3, "10.0.0.1"}, {4, "10.0.0.2"}, {5, "10.0.0.2"}, {6, "10.0.0.3"}}
	o := Options{
		Rules:   load(t, perAddress+"1/1m\n"),
		Compare: load(t, perAddress+"2/1m\n  - key: remote_address\n    value: 10.0.0.3\n    limit: 0/1m\n"),
	}
	got := replayed(t, jsonLog(t, arrivals), o)
	c := got.Compared
	if got.Denied.Count != 3 || c.Denied.Count != 2 || c.NewlyDenied.Count != 2 || c.NewlyAllow.Count != 1 || len(c.Gone) != 1 {
		t.Errorf("denied %+v, compared %+v; want 3, before 2, newly denied 2, newly allowed 1, one rule gone", got.Denied, c)
	}
	if was := got.Rules[0].Was; was == nil || was.Count != 1 || got.Rules[0].NewlyDenied != 2 {
		t.Errorf("rule %+v, before %+v", got.Rules[0], was)
	}
}

func TestConditions(t *testing.T) {
	arrivals := []arrival{{1, "10.0.0.1"}, {2, "10.0.0.1"}, {3, "vip:7"}, {4, "vip:7"}, {5, "10.0.0.4"}}
	log := jsonLog(t, arrivals)
	for text, fails := range map[string]bool{
		"denied > 0.1%":                          true,
		"denied > 2":                             false,
		"denied >= 2":                            true,
		"denied > 40%":                           false,
		"rule edge/remote_address denied >= 40%": true,
		"denied keys > 1":                        true,
		"not understood > 0":                     false,
		"newly denied > 0":                       true,

		"rule edge/remote_address newly denied > 2":   false,
		"rule edge/remote_address denies key vip:*":   true,
		"denies key remote_address=10.0.0.1":          true,
		"rule edge/remote_address denies key 10.1.*":  false,
		"rule edge/remote_address denies key 10.0.*4": false,

		"does not deny key 10.0.0.1":                          false,
		"does not deny key 10.0.0.4":                          true,
		"does not deny key 10.0.0.*":                          false,
		"does not deny key 10.9.9.9":                          true, // there is none
		"rule edge/remote_address does not deny key vip:*":    false,
		"rule edge/remote_address does not deny key 10.0.0.4": true,
	} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		got := replayed(t, log, Options{Rules: load(t, perAddress+"1/1m"), Compare: load(t, perAddress+"2/1m"), FailIf: []Condition{c}})
		if len(got.Failures) > 0 != fails {
			t.Errorf("%s: got %q", text, got.Failures)
		}
	}
	for _, text := range []string{"", "denied", "denied < 1", "denied > x", "denied > -1", "allowed > 1", "rule a", "rule a denied 1%", "denies key", "denies key \xff", "does not deny key", "does not denies key a", "not deny key a"} {
		if _, err := ParseCondition(text); !errors.Is(err, ErrBadCondition) {
			t.Errorf("%q: got %v, want ErrBadCondition", text, err)
		}
	}
}

// Of a key, too, a condition says the larger of two numbers, rather than how many requests one of two readings denies:
// the second request of second 0 is denied if it came at once, and that of second 6 if requests came evenly spread.
func TestConditionOfKeysCountsLargerBound(t *testing.T) {
	log := combinedLog(t, []arrival{
		{0, "10.0.0.1"},
		{0, "10.0.0.1"},
		{5 * time.Second, "10.0.0.2"},
		{5 * time.Second, "10.0.0.3"},
		{5 * time.Second, "10.0.0.4"},
		{5 * time.Second, "10.0.0.1"},
		{6 * time.Second, "10.0.0.1"},
	})
	c, err := ParseCondition("denies key 10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	got := replayed(t, log, Options{Rules: load(t, perAddress+`"2/1s burst=1"`), FailIf: []Condition{c}})
	if got.Denied.Count != 1 || *got.Denied.AtOnce != 1 || len(got.Failures) != 1 || !strings.HasSuffix(got.Failures[0], " is denied 1 times") {
		t.Errorf("%d or %d denied, and %q", got.Denied.Count, *got.Denied.AtOnce, got.Failures)
	}
}

// The last request is denied for its address by both readings, and for its user only if it came at once.
func TestConditionOfKeysSeesSecondBoundOfDenied(t *testing.T) {
	log := ""
	for _, who := range []string{"10.0.0.2 - ada", "10.0.0.3 - -", "10.0.0.1 - -", "10.0.0.1 - ada"} {
		log += who + ` [01/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-"` + "\n"
	}
	c, err := ParseCondition("denies key ada")
	if err != nil {
		t.Fatal(err)
	}
	both := perAddress + "2/1s burst=1\n  - key: user\n    limit: 2/1s burst=1\n"
	got := replayed(t, file(t, "access.log", log), Options{Rules: load(t, both), FailIf: []Condition{c}})
	if got.Denied.Count != 1 || *got.Denied.AtOnce != 1 || len(got.Failures) != 1 {
		t.Errorf("%d or %d denied, and %q", got.Denied.Count, *got.Denied.AtOnce, got.Failures)
	}
}

// A key that is denied only if all requests of a second came at once is denied for a condition.
func TestConditionOfKeysSeesBothBounds(t *testing.T) {
	log := combinedLog(t, []arrival{{0, "10.0.0.1"}, {0, "10.0.0.1"}})
	for key, fails := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false} {
		c, err := ParseCondition("denies key " + key)
		if err != nil {
			t.Fatal(err)
		}
		got := replayed(t, log, Options{Rules: load(t, perAddress+`"2/1s burst=1"`), FailIf: []Condition{c}})
		if got.Denied.Count != 0 || *got.Denied.AtOnce != 1 || len(got.Failures) > 0 != fails {
			t.Errorf("%s: %d or %d denied, and %q", key, got.Denied.Count, *got.Denied.AtOnce, got.Failures)
		}
	}
}

// That a key is denied must be true of both readings.
func TestConditionOfSparedKeysNeedsBothBounds(t *testing.T) {
	log := combinedLog(t, []arrival{{0, "10.0.0.1"}, {0, "10.0.0.1"}, {5 * time.Second, "10.0.0.2"}})
	for limit, fails := range map[string]bool{`"2/1s burst=1"`: true, `"1/1m burst=1"`: false} {
		c, err := ParseCondition("does not deny key 10.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		got := replayed(t, log, Options{Rules: load(t, perAddress+limit), FailIf: []Condition{c}})
		if *got.Denied.AtOnce != 1 || len(got.Failures) > 0 != fails {
			t.Errorf("%s: %d or %d denied, and %q", limit, got.Denied.Count, *got.Denied.AtOnce, got.Failures)
		}
	}
}

func TestSuggestionSaysThatItLeavesOutNoKey(t *testing.T) {
	var arrivals []arrival
	for i := range 50 {
		for range 1 + i/49*9 { // the last asks ten times
			arrivals = append(arrivals, arrival{time.Duration(i) * time.Second, fmt.Sprintf("10.0.0.%d", i)})
		}
	}
	const says = "no key is left out by 99.9% of 50 keys"
	for _, limit := range []string{"20/1m fixed-window", "20/1m"} {
		for share, all := range map[float64]bool{0.98: false, 0.999: true, 1: true} {
			got := replayed(t, jsonLog(t, arrivals), Options{Rules: load(t, perAddress+limit), Suggest: share})
			var text strings.Builder
			_ = got.Text(&text)
			if s := got.Rules[0].Suggested; s.All != all || strings.Contains(text.String(), says) != (share == 0.999) {
				t.Errorf("%s, %g: got %+v and\n%s", limit, share, s, &text)
			}
		}
	}
}

// A busy key is one of many keys, and most of the requests.
func TestSuggestByRequests(t *testing.T) {
	arrivals := []arrival{}
	for i := range 9 {
		arrivals = append(arrivals, arrival{time.Duration(i) * time.Second, fmt.Sprintf("10.0.0.%d", i)})
	}
	for range 91 {
		arrivals = append(arrivals, arrival{10 * time.Second, "10.0.1.1"})
	}
	log := jsonLog(t, arrivals)
	for byRequests, want := range map[bool]string{false: "1/1m fixed-window", true: "91/1m fixed-window"} {
		got := replayed(t, log, Options{Rules: load(t, perAddress+"20/1m fixed-window"), Suggest: 0.9, SuggestByRequests: byRequests})
		if s := got.Rules[0].Suggested; s.Limit != want {
			t.Errorf("by requests %v: got %+v, want %s", byRequests, s, want)
		}
	}
}

// Under a suggested limit at most the rest of the keys is denied, as the engine decides; with one unit less, more are.
func TestSuggestedLimitIsTheSmallest(t *testing.T) {
	for _, text := range []string{"20/1m burst=5", "20/1m fixed-window", "20/1m fixed-window align=clock", "20/1m sliding-window", "20/1m rolling-window", "20/1m sliding-log"} {
		for seed := range uint64(3) {
			log, share := jsonLog(t, random(seed, 3000)), 0.8
			s := replayed(t, log, Options{Rules: load(t, perAddress+`"`+text+`"`), Suggest: share}).Rules[0].Suggested
			limits := []string{s.Limit}
			for _, p := range s.Curve {
				limits = append(limits, p.Limit)
			}
			for _, limit := range limits {
				checkSuggested(t, log, limit, share)
			}
		}
	}
}

func checkSuggested(t *testing.T, log, text string, share float64) {
	t.Helper()
	never := func(l penstock.Limit) float64 {
		r := replayed(t, log, Options{Rules: load(t, perAddress+`"`+l.String()+`"`)}).Rules[0]
		return 1 - float64(r.DeniedKeys)/float64(r.Keys)
	}
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := never(l); got < share {
		t.Errorf("%s denies all but %g of the keys, want %g", text, got, share)
	}
	if l.Burst = l.Capacity() - 1; !l.IsBucket() {
		l.Burst, l.Count = 0, l.Count-1
	}
	if got := never(l); l.Capacity() > 0 && got >= share {
		t.Errorf("%s would do: %g of the keys are never denied, where %s was suggested", l, got, text)
	}
}

// With fewer keys than there are the sums stay right, and the report says what is missing.
func TestRunIsBoundedByMaxKeys(t *testing.T) {
	var arrivals []arrival
	for i := range 30_000 {
		arrivals = append(arrivals, arrival{time.Duration(i+1) * time.Microsecond, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)})
	}
	condition, err := ParseCondition("denies key 10.255.*")
	if err != nil {
		t.Fatal(err)
	}
	got := replayed(t, jsonLog(t, arrivals), Options{Rules: load(t, perAddress+"1/1h"), MaxKeys: 1000, FailIf: []Condition{condition}})
	rule := got.Rules[0]
	if rule.Keys != 1000 || !rule.MoreKeys || rule.Requests != 30_000 {
		t.Errorf("got %+v, want 1000 keys and 30000 requests", rule)
	}
	text := textOf(t, got)
	for _, want := range []string{"more than 1,000 keys: 29,000 requests of others", "decisions were made by an overflow bucket", "raise --max-keys"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
}

func TestRunUsesEntriesOfNestedRules(t *testing.T) {
	set := load(t, `domain: edge
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        limit: 1/1m
  - key: tenant
    limit: 1/1m
    shadow_mode: true
  - key: user
    limit: 1/1m
    penalty: {after: 1/1m, for: 1h}
  - key: method
    id: request
    limit: 1/1m concurrent
`)
	log := file(t, "access.log", `{"time":1793534400.5,"address":"a","uri":"/login?x","user":"-","tenant":"t","method":"GET"}
{"time":1793534400.6,"address":"a","uri":"/login","tenant":"t","method":"GET"}
{"time":1793534400.7,"address":"b","uri":"/login","method":"GET"}
{"time":1793534400.8,"address":"a","uri":"/other","user":"ada"}
`)
	got := replayed(t, log, Options{Rules: set, Log: accesslog.Options{Entries: []accesslog.Entry{{Key: "tenant", Value: "field:tenant"}}}})
	if got.Denied.Count != 1 || got.Rules[0].Requests != 3 || got.Rules[0].Denied.Count != 1 {
		t.Errorf("got %+v", got)
	}
	for _, r := range got.Rules {
		if r.Name == "edge/tenant" && (r.Requests != 2 || !r.Shadow || r.Denied.Count > 1) || r.Name == "edge/user" && r.Requests != 1 {
			t.Errorf("got %+v", r)
		}
	}
	notes := strings.Join(got.Assumed, "\n")
	if !strings.Contains(notes, "bans of its penalty are not replayed") || !strings.Contains(notes, "concurrent, which cannot be replayed") {
		t.Errorf("notes: %s", notes)
	}
}

func TestRunNeedsADomain(t *testing.T) {
	set := func() *rules.Set { return load(t, perAddress+"1/1m\n") }
	log := jsonLog(t, random(1, 10))
	_, err := Run(context.Background(), []string{log}, Options{Rules: set(), Domain: "shop"})
	if !errors.Is(err, ErrDomain) || !strings.Contains(err.Error(), `no domain "shop", but edge`) {
		t.Errorf("got %v", err)
	}
}

func TestRunSaysWhichEntriesLogsLack(t *testing.T) {
	log := jsonLog(t, random(1, 10))
	_, err := Run(context.Background(), []string{log}, Options{Rules: load(t, "domain: a\ndescriptors: [{key: tenant, limit: 1/1m}]")})
	if !errors.Is(err, ErrNoEntries) || !strings.Contains(err.Error(), "--entry tenant=field:NAME") {
		t.Errorf("got %v", err)
	}
	set := load(t, "domain: a\ndescriptors: [{key: tenant, limit: 1/1m}, {key: ip, limit: 1/1m}]")
	got := replayed(t, log, Options{Rules: set, Log: accesslog.Options{Entries: []accesslog.Entry{{Key: "typo", Value: "x"}}}})
	notes := strings.Join(got.Assumed, "\n")
	if !strings.Contains(notes, "--entry tenant=field:NAME would say") || !strings.Contains(notes, `no rule of the domain a has an entry "typo"`) {
		t.Errorf("notes: %s", notes)
	}
}

// The share of a rule's denials is that of its own requests, before as now.
func TestPageHasSharesOfTheRule(t *testing.T) {
	var page strings.Builder
	r := Report{Requests: 1000, Rules: []Rule{{Name: "a", Requests: 10, Was: &Denials{Count: 5}}}}
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "before 5 (50.0%)") {
		t.Errorf("the page does not say 50%%:\n%s", page.String())
	}
}

// A share is printed once if both bounds have the same.
func TestBoundsHaveOneShareIfItIsTheSame(t *testing.T) {
	for atOnce, want := range map[int64]string{975: "974 to 975 (30.1%)", 1100: "974 to 1,100 (30.1% to 33.9%)"} {
		if got := (&Denials{Count: 974, AtOnce: &atOnce}).text(3241); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The page marks the suggested limit, in the list and on the line.
func TestPageMarksSuggestedLimit(t *testing.T) {
	var page strings.Builder
	s := &Suggestion{Limit: "2/1m", Share: 0.99, Of: "keys", Now: 0.5, Curve: []Point{{Burst: 3, Limit: "1/1m burst=3"}, {Burst: 2, Limit: "2/1m"}, {Burst: 1, Limit: "3/1m burst=1"}}}
	if err := (&Report{Rules: []Rule{{Name: "a", Limit: "9/1m", Suggested: s}}}).HTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<td>★</td><td>2/1m</td>", `d="M320.0 0v80"`, "9/1m never denies 50%"} {
		if !strings.Contains(page.String(), want) || strings.Count(page.String(), "★") != 1 {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}

// What a client sends is in reports as text only.
func TestReportEscapesKeys(t *testing.T) {
	hostile := "<script>alert(1)</script>\x1b[2J\"'&\u202e\u2066"
	log := jsonLog(t, []arrival{{1, hostile}, {2, hostile}})
	got := replayed(t, log, Options{Rules: load(t, perAddress+"1/1m"), Suggest: 1})
	var page strings.Builder
	if err := got.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "<script") || !strings.Contains(page.String(), "&lt;script&gt;") {
		t.Errorf("the page has a script:\n%s", page.String())
	}
	if strings.Contains(page.String(), "http://") || strings.Contains(page.String(), "https://") {
		t.Errorf("the page needs the network:\n%s", page.String())
	}
	if text := textOf(t, got); strings.ContainsAny(text, "\x1b\u202e\u2066") {
		t.Errorf("the text has control characters:\n%q", text)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}

func TestTimelineKeepsSums(t *testing.T) {
	tl := timeline{rows: make([][columns]Bucket, 1)}
	for i := range 100_000 {
		tl.add(0, begin.Add(time.Duration(i)*time.Second).UnixNano(), i%2 == 0)
	}
	sum := Bucket{}
	for _, b := range tl.used(0, begin.Add(100_000*time.Second).UnixNano()) {
		sum.Requests += b.Requests
		sum.Denied += b.Denied
	}
	if want := (Bucket{100_000, 50_000}); sum != want {
		t.Errorf("got %+v, want %+v", sum, want)
	}
}
