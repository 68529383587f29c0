package httplimit_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

var update = flag.Bool("update", false, "write what is told now into testdata/forms")

var forms = []httplimit.Form{
	httplimit.IETF, httplimit.IETF06, httplimit.XRateLimit, httplimit.GitHub,
	httplimit.Kong, httplimit.Envoy03, httplimit.OpenAI, httplimit.NoHeaders,
}

// A step takes units of one key under some limits, all or nothing, so that a
// client is told something worth looking at.
type step struct {
	name   string
	after  time.Duration // since the step before
	limits []string      // "name limit"
	costs  []int64
}

// The story that every form is told of, on a clock that begins in 2000.
var story = []step{
	{name: "one limit, with room", limits: []string{"reads 100/1m"}, costs: []int64{10}},
	{name: "the same, a while later", after: 4 * time.Second, limits: []string{"reads 100/1m"}, costs: []int64{20}},
	{name: "the same, denied", limits: []string{"reads 100/1m"}, costs: []int64{90}},
	{name: "the last one", limits: []string{"reads 100/1m"}, costs: []int64{76}},
	{name: "more than can ever be granted", limits: []string{"reads 100/1m"}, costs: []int64{101}},
	{name: "a burst of its own", limits: []string{"posts 30/1m burst=15"}, costs: []int64{15}},
	{name: "half a second short", limits: []string{"posts 30/1m burst=15"}, after: 1500 * time.Millisecond, costs: []int64{1}},
	{name: "a period of no whole seconds", limits: []string{"ticks 5/250ms"}, costs: []int64{1}},
	{name: "several, with room", limits: []string{"ip 10/1s", "user 60/1m", "day 1000/day zone=Asia/Shanghai fixed-window"}, costs: []int64{5, 5, 5}},
	{name: "several, one of them denied", limits: []string{"ip 10/1s", "user 60/1m", "day 1000/day zone=Asia/Shanghai fixed-window"}, costs: []int64{6, 6, 6}},
	{name: "several, two of them denied", limits: []string{"ip 10/1s", "user 60/1m", "day 1000/day zone=Asia/Shanghai fixed-window"}, costs: []int64{6, 60, 6}},
	{name: "a burst above the count", limits: []string{"slow 2/1s burst=9"}, costs: []int64{1}},
	{name: "several of one period", limits: []string{"a 10/1h", "b 8/1h sliding-log"}, costs: []int64{3, 3}},
	{name: "a month and a year", limits: []string{"month 100/month zone=UTC fixed-window", "year 1000/year zone=UTC fixed-window"}, costs: []int64{1, 1}},
	{name: "a window that is used up", limits: []string{"sms 5/day fixed-window"}, costs: []int64{5}},
	{name: "a log that is used up", limits: []string{"log 10/1m sliding-log"}, costs: []int64{10}},
	{name: "a look at a limit of none", limits: []string{"closed 0/1m"}, costs: []int64{0}},
	{name: "a name that needs care", limits: []string{"\"a\\b\"\nö 10/1s"}, costs: []int64{1}},
	{name: "requests and tokens of a model", limits: []string{"llm/tenant/rpm 60/1m", "llm/tenant/tpm 60000/1m"}, costs: []int64{1, 3000}},
	{name: "the same, tokens denied", after: 120 * time.Millisecond, limits: []string{"llm/tenant/rpm 60/1m", "llm/tenant/tpm 60000/1m"}, costs: []int64{1, 58000}},
	{name: "several that count the same", limits: []string{"tenant_requests 10/1m", "requests 5/1h fixed-window", "tokens 100000/day zone=UTC fixed-window", "usd 5/1m"}, costs: []int64{1, 1, 1500, 1}},
	{name: "further limits of a rule", limits: []string{"llm/rpm 60/1m", "llm/rpm//day 50/day zone=UTC fixed-window"}, costs: []int64{2, 2}},
	{name: "no name", limits: []string{" 10/1s"}, costs: []int64{1}},
}

func TestFormsMatchTranscripts(t *testing.T) {
	for _, f := range forms {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				golden, got := "testdata/forms/"+f.String()+".txt", tell(t, f)
				if *update {
					if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				sameSteps(t, got, string(want))
			})
		})
	}
}

// sameSteps compares what was told with what should have been, step by step.
func sameSteps(t *testing.T, got, want string) {
	t.Helper()
	gots, wants := strings.SplitAfter(got, "\n\n"), strings.SplitAfter(want, "\n\n")
	for i := range max(len(gots), len(wants)) {
		switch {
		case i >= len(gots) || i >= len(wants):
			t.Fatalf("%d steps were told, want %d", len(gots), len(wants))
		case gots[i] != wants[i]:
			t.Errorf("got\n%swant\n%s", gots[i], wants[i])
		}
	}
}

// tell returns what a form makes of the story.
func tell(t *testing.T, f httplimit.Form) string {
	t.Helper()
	var b strings.Builder
	store := penstock.NewMemory(nil)
	for _, s := range story {
		time.Sleep(s.after)
		h := http.Header{}
		f.SetHeaders(h, s.take(t, store))
		fmt.Fprintf(&b, "# %s\n%s\n", s.name, headerText(h))
	}
	return b.String()
}

func (s step) take(t *testing.T, store penstock.Store) []httplimit.Answer {
	t.Helper()
	answers := make([]httplimit.Answer, len(s.limits))
	requests, decisions := make([]penstock.Request, len(s.limits)), make([]penstock.Decision, len(s.limits))
	for i, text := range s.limits {
		name, limit, _ := strings.Cut(text, " ")
		answers[i].Limit = mustLimit(t, limit).WithName(name)
		requests[i] = penstock.Request{Key: "someone", Limit: answers[i].Limit, Cost: s.costs[i]}
	}
	if err := penstock.TakeAll(t.Context(), store, requests, decisions); err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	for i, d := range decisions {
		answers[i].Decision = d
	}
	return answers
}

func mustLimit(t *testing.T, text string) penstock.Limit {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// headerText returns header fields in alphabetical order, a line each.
func headerText(h http.Header) string {
	var lines []string
	for name, values := range h {
		if name != http.CanonicalHeaderKey(name) {
			lines = append(lines, "not canonical: "+name)
		}
		for _, v := range values {
			lines = append(lines, name+": "+v+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func TestParseForm(t *testing.T) {
	for _, f := range forms {
		if got, err := httplimit.ParseForm(f.String()); got != f || err != nil {
			t.Errorf("ParseForm(%q) = %v, %v", f.String(), got, err)
		}
	}
	for _, bad := range []string{"", "IETF", "ietf-12", strings.Repeat("x", 1<<20)} {
		_, err := httplimit.ParseForm(bad)
		if !errors.Is(err, httplimit.ErrBadForm) || !strings.Contains(err.Error(), "envoy-03") {
			t.Errorf("ParseForm(%.20q): %v", bad, err)
		} else if len(err.Error()) > 200 {
			t.Errorf("ParseForm(%.20q): an error of %d bytes", bad, len(err.Error()))
		}
	}
	if got := httplimit.Form(99).String(); got != "Form(99)" {
		t.Errorf("unknown form: %q", got)
	}
}

// Two middlewares, one inside the other, both have something to tell.
func TestIETFFormAppendsToExistingFields(t *testing.T) {
	h := http.Header{}
	outer := []httplimit.Answer{{Policy: "ip", Limit: penstock.PerSecond(10), Decision: penstock.Decision{Allowed: true, Limit: 10, Remaining: 9}}}
	inner := []httplimit.Answer{{Policy: "user", Limit: penstock.PerMinute(60), Decision: penstock.Decision{Allowed: true, Limit: 60, Remaining: 59}}}
	httplimit.IETF.SetHeaders(h, outer)
	httplimit.IETF.SetHeaders(h, inner)
	want := "Ratelimit-Policy: \"ip\";q=10;w=1\nRatelimit-Policy: \"user\";q=60;w=60\nRatelimit: \"ip\";r=9;t=1\nRatelimit: \"user\";r=59;t=59\n"
	if got := headerText(h); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}

	inner[0].Decision = penstock.Decision{Limit: 60, RetryAfter: 1}
	httplimit.IETF.SetHeaders(h, inner)
	if got, want := h["Ratelimit"], []string{`"user";r=0;t=1`}; !slices.Equal(got, want) {
		t.Errorf("a denial tells %q, want %q: no window may end after Retry-After %q", got, want, h["Retry-After"])
	}
}

// Appending to one field must not overwrite another.
func TestSetHeadersValuesDoNotAlias(t *testing.T) {
	h := http.Header{}
	httplimit.XRateLimit.SetHeaders(h, []httplimit.Answer{{Limit: penstock.PerSecond(10)}})
	before := h.Clone()
	for name := range before {
		h.Add(name, "more")
	}
	for name, values := range before {
		if got := h[name]; len(got) != 2 || got[0] != values[0] || got[1] != "more" {
			t.Errorf("%s: %q after adding to %q", name, got, values)
		}
	}
}

func TestSetHeadersWithoutAnswersDoesNothing(t *testing.T) {
	for _, f := range append(forms, 99) {
		h := http.Header{}
		f.SetHeaders(h, nil)
		if len(h) != 0 {
			t.Errorf("%v: no answers, but %v", f, h)
		}
	}
}

// A client that retries after Retry-After is served; one second earlier it is
// denied.
func TestRetryAfterIsLongEnough(t *testing.T) {
	limits := []string{
		"7/1m", "100/1h burst=3", "3/2s leaky-bucket burst=3", "5/10s fixed-window",
		"5/10s sliding-window", "5/10s rolling-window", "5/10s sliding-log", "5/day zone=Asia/Shanghai fixed-window",
	}
	for _, text := range limits {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(1234567891) // not on a second
			lim, err := penstock.New(penstock.NewMemory(nil), mustLimit(t, text))
			if err != nil {
				t.Fatal(err)
			}
			d := denied(t, lim)
			s, ok := httplimit.RetryAfterSeconds(d)
			if !ok {
				t.Fatalf("%s: no Retry-After for %v", text, d)
			}
			time.Sleep(time.Duration(s-1) * time.Second)
			if d := take(t, lim); d.Allowed {
				t.Errorf("%s: passes a whole second before Retry-After %d", text, s)
			}
			time.Sleep(time.Second)
			if d := take(t, lim); !d.Allowed {
				t.Errorf("%s: denied after Retry-After %d: %v", text, s, d)
			}
		})
	}
}

func denied(t *testing.T, lim *penstock.Limiter) penstock.Decision {
	t.Helper()
	for range 1000 {
		if d := take(t, lim); !d.Allowed {
			return d
		}
	}
	t.Fatalf("%v denies nothing", lim.Limit())
	return penstock.Decision{}
}

func take(t *testing.T, lim *penstock.Limiter) penstock.Decision {
	t.Helper()
	d, err := lim.Allow(context.Background(), "someone")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRetryAfterSeconds(t *testing.T) {
	for _, test := range []struct {
		d    penstock.Decision
		want int64
		ok   bool
	}{
		{penstock.Decision{Allowed: true}, 0, false},
		{penstock.Decision{Allowed: true, RetryAfter: time.Hour}, 0, false},
		{penstock.Decision{}, 0, false},
		{penstock.Decision{RetryAfter: -1}, 0, false},
		{penstock.Decision{RetryAfter: penstock.Never}, 0, false},
		{penstock.Decision{RetryAfter: 1}, 1, true},
		{penstock.Decision{RetryAfter: time.Second}, 1, true},
		{penstock.Decision{RetryAfter: time.Second + 1}, 2, true},
		{penstock.Decision{RetryAfter: penstock.Never - 1}, math.MaxInt64/int64(time.Second) + 1, true},
	} {
		if got, ok := httplimit.RetryAfterSeconds(test.d); got != test.want || ok != test.ok {
			t.Errorf("%v: %d, %v, want %d, %v", test.d, got, ok, test.want, test.ok)
		}
	}
}

// However a limit and a decision were made up, what is sent is well-formed and
// no number grows a sign or a sixteenth digit.
func FuzzForms(f *testing.F) {
	f.Add("reads", int64(10), int64(time.Second), int64(0), uint8(0), uint8(0), false, int64(10), int64(3), int64(1), int64(2))
	f.Add("\"\\\x00\xff", int64(math.MaxInt64), int64(math.MinInt64), int64(-1), uint8(2), uint8(5), true,
		int64(math.MinInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add("long", int64(1), int64(math.MaxInt64), int64(math.MaxInt64), uint8(0), uint8(0), true,
		int64(math.MaxInt64), int64(0), int64(0), int64(math.MaxInt64))
	f.Add("longer", int64(3), int64(math.MaxInt64-1), int64(0), uint8(3), uint8(0), true,
		int64(math.MaxInt64), int64(math.MaxInt64), int64(0), int64(0))
	f.Add("longest", int64(math.MaxInt64), int64(math.MaxInt64), int64(0), uint8(3), uint8(0), true,
		int64(math.MaxInt64), int64(math.MaxInt64), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, policy string, count, period, burst int64, algorithm, align uint8, allowed bool,
		limit, remaining, retry, reset int64,
	) {
		a := httplimit.Answer{
			Policy: policy,
			Limit: penstock.Limit{
				Count: count, Period: time.Duration(period), Burst: burst,
				Algorithm: penstock.Algorithm(algorithm % 6), Align: penstock.Align(align % 6),
			},
			Decision: penstock.Decision{
				Allowed: allowed, Limit: limit, Remaining: remaining,
				RetryAfter: time.Duration(retry), ResetAfter: time.Duration(reset),
			},
		}
		for _, form := range forms {
			h := http.Header{}
			form.SetHeaders(h, []httplimit.Answer{a, a})
			for name, values := range h {
				checkField(t, form, name, values)
			}
		}
	})
}

func checkField(t *testing.T, form httplimit.Form, name string, values []string) {
	t.Helper()
	quoted, escaped, digits := false, false, 0
	for _, c := range []byte(strings.Join(values, ", ")) {
		if c < ' ' || c > '~' {
			t.Fatalf("%v: %s: %q has byte %#x", form, name, values, c)
		}
		if c >= '0' && c <= '9' && !quoted {
			digits++
		} else {
			digits = 0
		}
		if name != "X-Ratelimit-Resource" && !quoted && (c == '-' && digits == 0 && !strings.Contains(strings.Join(values, ""), "penstock-burst") || digits > 15) {
			t.Fatalf("%v: %s: %q has a bad number", form, name, values)
		}
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		}
	}
	if quoted && name != "X-Ratelimit-Resource" {
		t.Fatalf("%v: %s: %q ends within a string", form, name, values)
	}
}

// However limits, costs and moments fall together, a client that is denied by some
// of several limits and comes back when it was told to is served; and all that it
// would have been worth to come a second earlier for is denied still.
func TestRetryAfterIsLongEnoughForRandomHistories(t *testing.T) {
	texts := []string{
		"7/1m", "100/1h burst=3", "3/2s burst=5", "5/10s fixed-window", "9/7s sliding-window",
		"5/10s rolling-window", "8/11s sliding-log", "6/day zone=Asia/Shanghai fixed-window", "13/333ms",
	}
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			cost := int64(1)
			o := &httplimit.Options{Cost: func(*http.Request) int64 { return cost }, Headers: forms[rng.IntN(len(forms)-1)]}
			store := penstock.NewMemory(nil)
			for i := range rng.IntN(3) {
				l := limiter(t, store, fmt.Sprintf("%d: %s", i, texts[rng.IntN(len(texts))]))
				o.Additional = append(o.Additional, httplimit.Charge{Limiter: l, Cost: func(*http.Request) int64 { return cost }})
			}
			h := httplimit.Protect(limiter(t, store, "first: "+texts[rng.IntN(len(texts))]), o)(hello)
			for range 60 {
				time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
				cost = 1 + rng.Int64N(3)
				w := ask(h, alice)
				if w.Code == http.StatusOK {
					continue
				}
				s, err := strconv.Atoi(w.Header().Get("Retry-After"))
				if err != nil || s < 1 {
					t.Fatalf("seed %d: denied with Retry-After %q", seed, w.Header().Get("Retry-After"))
				}
				time.Sleep(time.Duration(s-1) * time.Second)
				if w := ask(h, alice); w.Code != http.StatusTooManyRequests {
					t.Fatalf("seed %d: passes a whole second before Retry-After %d", seed, s)
				}
				time.Sleep(time.Second)
				if w := ask(h, alice); w.Code != http.StatusOK {
					t.Fatalf("seed %d: denied after Retry-After %d, with another of %s", seed, s, w.Header().Get("Retry-After"))
				}
			}
		})
	}
}
