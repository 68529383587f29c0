package adminapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// A key is peeked at, refunded and reset, by rule, by entries and by limit.
func TestKeysPeekRefundReset(t *testing.T) {
	for _, c := range []struct{ query, rule string }{
		{"rule=edge/remote_address&key=remote_address%3D10.0.0.1", "edge/remote_address"},
		{"rule=edge/remote_address&key=10.0.0.1", "edge/remote_address"},
		{"domain=edge&remote_address=10.0.0.1", "edge/remote_address"},
		{"domain=edge&key=remote_address%3D10.0.0.1", "edge/remote_address"},
		{"limit=" + url.QueryEscape(requestLimit) + "&key=remote_address%3D10.0.0.1", ""},
	} {
		onEachStore(t, func(t *testing.T, e *engine.Engine) { checkKey(t, e, c.query, c.rule) })
	}
}

// requestLimit has the name of a rule, and yet a state of its own.
const requestLimit = `3/1m fixed-window align=clock name="edge/remote_address"`

// takeThree takes three units, under a rule or under requestLimit.
func takeThree(t *testing.T, e *engine.Engine, rule string) {
	t.Helper()
	if rule == "" {
		l, err := penstock.ParseLimit(requestLimit)
		if err != nil {
			t.Fatal(err)
		}
		r := penstock.Request{Key: "remote_address=10.0.0.1", Limit: requestlimits.Of(l), Cost: 3}
		if d, err := e.Store().Take(t.Context(), r); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	var result engine.Result
	err := e.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "10.0.0.1"}}, Cost: 3}}, &result)
	if err != nil || result.OverLimit {
		t.Fatal(result, err)
	}
}

// checkKey takes three units of a key, and refunds and resets them.
func checkKey(t *testing.T, e *engine.Engine, query, rule string) {
	log, err := audit.New(audit.Options{Out: io.Discard, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, e, adminapi.Options{Loopback: true, Audit: log})
	takeThree(t, e, rule)
	for _, step := range []struct {
		method, more       string
		granted, remaining float64
	}{
		{"GET", "", 0, 0},
		{"POST", "&reason=one", -1, 1},
		{"POST", "&units=5&reason=rest", -2, 3},
		{"GET", "", 0, 3},
		{"DELETE", "&reason=again", 0, 3},
	} {
		w := send(s, step.method, "/v1/keys?"+query+step.more)
		var got struct {
			Rule, Limit, Key string
			Decision         map[string]any
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%s %s: got %d %s", step.method, query, w.Code, w.Body)
		}
		if got.Rule != rule || got.Key != "remote_address=10.0.0.1" || !strings.HasPrefix(got.Limit, "3/1m fixed-window") ||
			got.Decision["granted"] != step.granted || got.Decision["remaining"] != step.remaining || got.Decision["allowed"] != true {
			t.Errorf("%s %s%s: got %s, want %v granted and %v remaining", step.method, query, step.more, w.Body, step.granted, step.remaining)
		}
	}
	checkEntries(t, log, rule)
	for _, counts := range e.RuleStats() {
		if counts.Rule == "edge/remote_address" && counts.Allowed() != 1 || counts.Rule == "" && counts.Allowed() != 0 {
			t.Errorf("%s: got %d counted requests of rule %q, want those of clients only", query, counts.Allowed(), counts.Rule)
		}
	}
}

// checkEntries checks what is on record about checkKey's refunds and reset.
func checkEntries(t *testing.T, log *audit.Log, rule string) {
	t.Helper()
	entries := log.Recent()
	if len(entries) != 3 {
		t.Fatalf("got %d entries, want one for each refund and reset: %+v", len(entries), entries)
	}
	for i, want := range []struct {
		action, verb, reason string
		before, after, units int64
	}{
		{audit.KeyReset, "DELETE /v1/keys", "again", 3, 3, 0},
		{audit.KeyRefund, "POST /v1/keys", "rest", 1, 3, 2},
		{audit.KeyRefund, "POST /v1/keys", "one", 0, 1, 1},
	} {
		e := entries[i]
		if e.Action != want.action || e.Verb != want.verb || e.Reason != want.reason || e.Result != audit.Done || e.API != "admin" ||
			*e.Before.Remaining != want.before || *e.After.Remaining != want.after || e.Units != want.units ||
			e.Actor != (audit.Actor{Via: audit.ViaLocal, Address: "127.0.0.1:4711"}) ||
			e.Target.Rule != rule || e.Target.Key != "remote_address=10.0.0.1" || !strings.HasPrefix(e.Target.Limit, "3/1m fixed-window") {
			t.Errorf("got %+v, want %+v", e, want)
		}
	}
}

// A settlement makes what was taken under an ID cost what was used, and is on record with what is left before and after it.
func TestKeysSettle(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		log := newAudit(t, io.Discard)
		s := newServer(t, e, adminapi.Options{Loopback: true, Audit: log})
		set, err := rules.Parse(rules.File{Name: "r.yaml", Text: []byte("domain: shop\ndescriptors: [{key: team, limit: 100/1h, settle: true}, {key: user, limit: 5/1h}]")})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		var result engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "team", Value: "9"}}, Cost: 60}}
		if err := e.DecideOn(t.Context(), "shop", engine.Terms{ID: "b81c"}, ds, &result); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerHour(100)), Cost: 60, ID: "b81c"}, nil); err != nil {
			t.Fatal(err)
		}
		for _, target := range []string{"rule=shop/team&key=9", "limit=100/1h&key=k"} {
			for units, want := range map[string]string{"25": `"remaining":75`, "0": `"remaining":100`} {
				w := send(s, "POST", "/v1/keys?"+target+"&settle=b81c&reason=r&units="+units)
				if w.Code != 200 || !strings.Contains(strings.ReplaceAll(w.Body.String(), " ", ""), want) {
					t.Errorf("%s settled at %s: %d %s, want %s", target, units, w.Code, w.Body, want)
				}
				if got := log.Recent()[0]; got.Action != audit.KeySettle || got.Result != audit.Done || fmt.Sprintf(`"remaining":%d`, *got.After.Remaining) != want {
					t.Errorf("the audit has %+v", got)
				}
			}
		}
		for query, want := range map[string]int{
			"POST rule=shop/team&key=9&settle=other&units=1&reason=r": 404, "POST rule=shop/user&key=9&settle=b81c&units=1&reason=r": 400,
			"POST rule=shop/team&key=9&settle=b81c&reason=r": 400, "POST rule=shop/team&key=9&settle=&units=1&reason=r": 400,
			"POST rule=shop/team&key=9&settle=b81c&units=1": 400, "DELETE rule=shop/team&key=9&settle=b81c&units=1&reason=r": 400,
			"POST rule=shop/team&key=9&units=0&reason=r": 400, "POST rule=shop/team&key=9&settle=b81c&units=-1&reason=r": 400,
			"GET rule=shop/team&key=9&settle=b81c": 400,
		} {
			method, query, _ := strings.Cut(query, " ")
			if w := send(s, method, "/v1/keys?"+query); w.Code != want {
				t.Errorf("%s %s: %d %s, want %d", method, query, w.Code, w.Body, want)
			}
		}
	})
}

// What is done under some limits of a rule only is told, with the names of all of them, and the others are not left out.
func TestKeysTellWhatIsDoneInPart(t *testing.T) {
	for _, c := range []struct {
		action string
		failed []string // limits under which the store fails
		cause  error
		code   int
		want   []string
	}{
		{"POST units=1", []string{"//1d"}, penstock.ErrUnavailable, 503, []string{"done under sms/phone and sms/phone//7d, and failed under sms/phone//1d,", penstock.ErrUnavailable.Error()}},
		{"POST units=1", []string{"//1d", "//7d"}, penstock.ErrUnavailable, 503, []string{"done under sms/phone, and failed under sms/phone//1d and sms/phone//7d,"}},
		{"POST settle=b81c&units=1", []string{"//7d"}, penstock.ErrUnknownID, 404, []string{"done under sms/phone and sms/phone//1d, and failed under sms/phone//7d,", "nothing was taken under this ID"}},
		{"DELETE ", []string{"//1d"}, penstock.ErrUnavailable, 503, []string{"done under sms/phone and sms/phone//7d,"}},
		{"DELETE ", []string{"phone"}, penstock.ErrUnavailable, 503, []string{`"detail":"` + penstock.ErrUnavailable.Error()}},
	} {
		memory, failing := penstock.NewMemory(nil), false
		store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if failing && r.Cost != 0 && slices.ContainsFunc(c.failed, func(name string) bool { return strings.HasSuffix(r.Limit.Name, name) }) {
				return penstock.Decision{}, c.cause
			}
			return memory.Take(ctx, r)
		})
		e := engine.New(store, nil)
		set, err := rules.Parse(rules.File{Name: "sms.yaml", Text: []byte("domain: sms\ndescriptors: [{key: phone, limit: 9/1h, also: [20/1d, 30/7d], settle: true}]")})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		log := newAudit(t, io.Discard)
		s := newServer(t, e, adminapi.Options{Loopback: true, Audit: log})
		var result engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "phone", Value: "138"}}, Cost: 2}}
		if err := e.DecideOn(t.Context(), "sms", engine.Terms{ID: "b81c"}, ds, &result); err != nil || result.OverLimit {
			t.Fatal(result, err)
		}
		failing = true
		method, query, _ := strings.Cut(c.action, " ")
		w := send(s, method, "/v1/keys?domain=sms&phone=138&reason=r&"+query)
		failing = false
		if text := w.Body.String(); w.Code != c.code || !containsInOrder(text, c.want) {
			t.Errorf("%s fails under %q: %d %s, want %d and %q", c.action, c.failed, w.Code, text, c.code, c.want)
		}
		failures := 0
		for _, entry := range log.Recent() {
			if entry.Result != audit.Done {
				failures++
			}
		}
		if failures != len(c.failed) {
			t.Errorf("%s fails under %q: %d failures on record", c.action, c.failed, failures)
		}
	}
}

// Whichever limit of a rule is the tightest, its state tells the rule, and has those under the other limits beside it.
func TestKeysTellTheRuleOfTheTightestLimit(t *testing.T) {
	names := []string{"sms/phone", "sms/phone//1d", "sms/phone//7d"}
	for tightest := range names {
		counts := []any{20, 20, 20}
		counts[tightest] = 9
		e := newEngine(t)
		set, err := rules.Parse(rules.File{Name: "sms.yaml", Text: fmt.Appendf(nil, "domain: sms\ndescriptors: [{key: phone, limit: %d/1h, also: [%d/1d, %d/7d]}]", counts...)})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		var got adminapi.KeyState
		w := send(newServer(t, e, adminapi.Options{Loopback: true}), "GET", "/v1/keys?domain=sms&phone=138")
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		var others []string
		for _, state := range got.Also {
			others = append(others, state.Rule)
		}
		if want := slices.Delete(slices.Clone(names), tightest, tightest+1); got.Rule != names[tightest] || got.Of != names[0] || !slices.Equal(others, want) {
			t.Errorf("%v: got %s of %s, beside %q, want %s of %s, beside %q", counts, got.Rule, got.Of, others, names[tightest], names[0], want)
		}
	}
}

func TestKeysResetOfAnyBytes(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		s := newServer(t, e, adminapi.Options{Loopback: true})
		limit := requestlimits.Of(penstock.PerMinute(5))
		if _, err := e.Take(t.Context(), penstock.Request{Key: "a\x00\xff", Limit: limit, Cost: 5}, nil); err != nil {
			t.Fatal(err)
		}
		if w := send(s, "DELETE", "/v1/keys?limit=5/1m&key=a%00%ff&reason=r"); !strings.Contains(w.Body.String(), `"granted":-5`) &&
			!strings.Contains(w.Body.String(), `"granted": -5`) {
			t.Errorf("got %s, want -5 granted", w.Body)
		}
		if d, err := e.Take(t.Context(), penstock.Request{Key: "a\x00\xff", Limit: limit}, nil); err != nil || d.Remaining != 5 {
			t.Errorf("got %v, %v, want 5 remaining", d, err)
		}
	})
}

func TestKeysRejectsMalformedRequests(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for _, c := range []struct {
		method, query     string
		status            int
		parameter, detail string
	}{
		{"GET", "", 400, "rule", "want one of rule, limit and domain"},
		{"GET", "rule=a&limit=1/s&key=k", 400, "rule", "want one of"},
		{"GET", "limit=1/s", 400, "key", "want a key"},
		{"GET", "limit=x&key=k", 400, "limit", "want a count"},
		{"GET", "limit=1/s&key=k&key=l", 400, "key", "duplicate"},
		{"GET", "limit=1/s&key=k&x=y", 400, "x", "unknown parameter"},
		{"GET", "limit=1/s&key=k&units=1", 400, "units", "with POST"},
		{"DELETE", "limit=1/s&key=k&units=1", 400, "units", "with POST"},
		{"POST", "limit=1/s&key=k&units=0", 400, "units", "1 or more"},
		{"POST", "limit=1/s&key=k&units=-1", 400, "units", "1 or more"},
		{"GET", "domain=edge&key=k", 400, "key", "want entries"},
		{"GET", "domain=edge&key=a%3Db&a=b", 400, "key", "want either"},
		{"GET", "domain=edge", 400, "domain", "want entries"},
		{"GET", "rule=edge/nothing&key=k", 404, "", "no such rule: \"edge/nothing\"; /rules lists all rules"},
		{"GET", "rule=edge/remote_adress&key=k", 404, "", "no such rule: \"edge/remote_adress\": did you mean edge/remote_address?"},
		{"GET", "rule=edge/remote_address&key=remote_adress%3Dk", 404, "", "not a key of rule edge/remote_address: want remote_address=VALUE"},
		{"DELETE", "rule=edge/remote_address&reason=r", 404, "", "not a key of rule edge/remote_address"},
		{"GET", "rule=edge/vip&key=k", 400, "rule", "unlimited"},
		{"GET", "domain=edge&vip=k", 400, "rule", "unlimited"},
		{"GET", "domain=edge&nothing=k", 404, "", "none of domain edge applies to \"nothing=...\"; /rules lists"},
		{"GET", "domain=edge&remote_adress=k", 404, "", "did you mean remote_address=VALUE?"},
		{"GET", "domain=edge&path=/logout", 404, "", "did you mean path=/login?"},
		{"GET", "domain=edgy&a=k", 404, "", "no file defines domain \"edgy\": did you mean edge?"},
		{"GET", "domain=&a=k", 400, "", "domain must not be empty"},
		{"GET", "rule=%zz", 400, "", "invalid URL escape"},
		{"DELETE", "limit=1/s&key=k", 400, "reason", "want a reason"},
		{"POST", "limit=1/s&key=k&reason=%20%09", 400, "reason", "want a reason"},
		{"POST", "limit=1/s&key=k&reason=" + strings.Repeat("x", audit.MaxReason+1), 400, "reason", "at most 512"},
		{"POST", "limit=1/s&key=k&reason=%ff", 400, "reason", "UTF-8"},
		{"GET", "limit=1/s&key=k&reason=r", 400, "reason", "with POST and DELETE"},
		{"PUT", "limit=1/s&key=k", 405, "", "GET, POST, DELETE"},
	} {
		w := send(s, c.method, "/v1/keys?"+c.query)
		var p struct{ Detail, Parameter string }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != c.status || p.Parameter != c.parameter || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s %s: got %d %s, want %d at %q: %s", c.method, c.query, w.Code, w.Body, c.status, c.parameter, c.detail)
		}
	}
}

func TestKeysStoreUnavailableIs503(t *testing.T) {
	unavailable := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	s := newServer(t, engine.New(unavailable, nil), adminapi.Options{Loopback: true})
	if w := send(s, "GET", "/v1/keys?limit=1/s&key=k"); w.Code != 503 {
		t.Errorf("got %d %s, want 503", w.Code, w.Body)
	}
}

// The response says whether one unit would be granted, and if not, when. Asking charges
// nothing.
func TestKeysSayWhetherOneUnitWouldPass(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		s := newServer(t, e, adminapi.Options{Loopback: true})
		take := func(cost int64) {
			t.Helper()
			var result engine.Result
			err := e.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "10.0.0.2"}}, Cost: cost}}, &result)
			if err != nil || result.OverLimit {
				t.Fatal(result, err)
			}
		}
		for _, c := range []struct {
			cost, remaining int64
			wouldAllow      bool
			retryAfter      float64
		}{{2, 1, true, 0}, {1, 0, false, 60}, {0, 0, false, 60}, {-1, 1, true, 0}} {
			take(c.cost)
			w := send(s, "GET", "/v1/keys?rule=edge/remote_address&key=10.0.0.2")
			var got struct {
				WouldAllow bool    `json:"would_allow"`
				RetryAfter float64 `json:"retry_after"`
				Decision   struct{ Remaining int64 }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.WouldAllow != c.wouldAllow || got.RetryAfter != c.retryAfter || got.Decision.Remaining != c.remaining {
				t.Errorf("after %d units: got %s, want %+v", c.cost, w.Body, c)
			}
		}
	})
}

func TestKeysOfBlockedRuleNeverPass(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	w := send(s, "GET", "/v1/keys?limit=0/1m&key=k")
	if !strings.Contains(w.Body.String(), `"would_allow": false`) || !strings.Contains(w.Body.String(), `"retry_after": null`) {
		t.Errorf("got %s, want a unit that never passes", w.Body)
	}
}

func TestKeysNameShadowMode(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	if w := send(s, "GET", "/v1/keys?domain=edge&path=/login"); !strings.Contains(w.Body.String(), `"mode": "shadow"`) {
		t.Errorf("got %s, want the mode", w.Body)
	}
}

// To tell when a unit will be left, a peek takes one if there is none. If there is one after all,
// it is returned, though the caller has gone meanwhile.
func TestPeekReturnsItsUnitAfterTheCallerHasGone(t *testing.T) {
	for _, limit := range []string{"5/1h", "5/1h concurrent"} {
		ctx, leave := context.WithCancel(t.Context())
		memory, held := penstock.NewMemory(nil), int64(0)
		store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if err := ctx.Err(); err != nil {
				return penstock.Decision{}, err
			}
			d, err := memory.Take(ctx, r)
			held += d.Granted
			switch {
			case r.Cost == 0:
				d.Remaining = 0
			case r.Cost > 0:
				leave()
			}
			return d, err
		})
		s := newServer(t, newEngineWithStore(t, store, nil), adminapi.Options{Loopback: true})
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/v1/keys?key=k&limit="+url.QueryEscape(limit), nil)
		r.RemoteAddr = "127.0.0.1:4711"
		s.ServeHTTP(httptest.NewRecorder(), r)
		if ctx.Err() == nil || held != 0 {
			t.Errorf("%s: took a unit: %t, and %d are not returned", limit, ctx.Err() != nil, held)
		}
	}
}

// A limit of the name override is the counter of Envoy's descriptors with their own limit, whose
// denials the engine remembers.
func TestKeysResetUnderAnOverridesNameEndsADenial(t *testing.T) {
	e := newEngineWithOptions(t, &engine.Options{CompatEnvoy: true, OverLimitKeys: 1000, OverLimitAge: time.Hour})
	own := &engine.OwnLimit{Limit: rules.Hour.Limit(1), RequestsPerUnit: 1, Unit: rules.Hour}
	isDenied := func() bool {
		var r engine.Result
		d := engine.Descriptor{Entries: []rules.Entry{{Key: "other", Value: "x"}}, Cost: 1, Own: own}
		if err := e.Decide(t.Context(), "edge", []engine.Descriptor{d}, &r); err != nil {
			t.Fatal(err)
		}
		return r.OverLimit
	}
	if isDenied() || !isDenied() {
		t.Fatal("want the second of two requests to be denied")
	}
	query := url.Values{"key": {"edge=|other=x"}, "limit": {"1/1h fixed-window align=clock name=override"}, "reason": {"r"}}
	if w := send(newServer(t, e, adminapi.Options{Loopback: true}), "DELETE", "/v1/keys?"+query.Encode()); w.Code != 200 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if isDenied() {
		t.Error("the denial is still remembered after the reset")
	}
}

// The store knows a key above 4 KiB by its hash, and overrides know it by its text.
func TestKeysShowOverrideOfLongKey(t *testing.T) {
	e := newEngine(t)
	setModelRules(t, e)
	s := newServer(t, e, adminapi.Options{Loopback: true})
	if w := putJSON(s, `{"rule":"m/log","key":"tenant-7:*","limit":"ban","reason":"abuse"}`); w.Code != 200 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	for _, endpoint := range []string{"/v1/keys", "/v1/inspect"} {
		path := endpoint + "?rule=m/log&key=tenant-7:" + strings.Repeat("x", 5000)
		if body := send(s, "GET", path).Body.String(); !strings.Contains(body, `"would_allow": false`) || !strings.Contains(body, `"reason": "abuse"`) {
			t.Errorf("%s: got %s, want the ban", endpoint, body)
		}
	}
}
