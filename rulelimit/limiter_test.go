package rulelimit_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rulelimit"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/storepolicy"
)

//go:embed testdata/shop.yaml
var shop string

func open(t *testing.T, text string, o *rulelimit.Options) (*rulelimit.Limiter, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, text)
	lim, err := rulelimit.Open(t.Context(), path, penstock.NewMemory(nil), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lim.Close(); err != nil {
			t.Error(err)
		}
	})
	return lim, path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func allow(t *testing.T, lim *rulelimit.Limiter, ds ...[]penstock.Entry) rulelimit.Answer {
	t.Helper()
	a, err := lim.Allow(t.Context(), "shop", ds...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var entries = rulelimit.Entries

func TestLimiterDecidesAllOrNothing(t *testing.T) {
	t.Parallel()
	lim, _ := open(t, shop, nil)
	for i := range 4 {
		a := allow(t, lim, entries("user", "1"), entries("address", "a"))
		if a.Allowed != (i < 2) || len(a.Parts) != 2 || a.Rule != "shop/user" {
			t.Errorf("request %d: got %+v", i, a)
		}
	}
	if a := allow(t, lim, entries("user", "2"), entries("address", "a")); !a.Allowed || a.Rule != "shop/address" || a.Decision.Remaining != 0 {
		t.Errorf("denied requests charged the address: got %+v", a)
	}
	a := allow(t, lim, entries("user", "1"), entries("nothing", "x"))
	if a.Allowed || a.Decision.RetryAfter <= 0 || !a.Parts[1].Decision.Allowed || a.Parts[1].Limited || a.Parts[1].Rule != "" {
		t.Errorf("with a descriptor without a rule: got %+v", a)
	}
	if a := allow(t, lim, entries("nothing", "x")); !a.Allowed || a.Rule != "" {
		t.Errorf("without a rule: got %+v", a)
	}
}

func TestLimiterFollowsTheFile(t *testing.T) {
	t.Parallel()
	loads := make(chan error, 10)
	lim, path := open(t, shop, &rulelimit.Options{OnLoad: func(_ *rules.Set, err error) { loads <- err }})
	write(t, path, "domain: shop\ndescriptors: [{key: user, limit: nonsense}]\n")
	var bad rules.Errors
	if err := next(t, loads); !errors.As(err, &bad) || lim.LoadError() == nil || len(lim.Rules().Rules()) != 5 {
		t.Errorf("bad rules: got %v, want the old ones and rules.Errors", err)
	}
	write(t, path, "domain: shop\ndescriptors: [{key: user, limit: 7/1h burst=7}]\n")
	if err := next(t, loads); err != nil || lim.LoadError() != nil {
		t.Errorf("good rules: got %v and %v", err, lim.LoadError())
	}
	if a := allow(t, lim, entries("user", "1")); a.Decision.Limit != 7 {
		t.Errorf("after the change: got %+v", a)
	}
}

func next(t *testing.T, loads <-chan error) error {
	t.Helper()
	select {
	case err := <-loads:
		return err
	case <-time.After(time.Minute):
		t.Fatal("no load within a minute")
		return nil
	}
}

func TestLimiterHoldsAndReleasesPermits(t *testing.T) {
	t.Parallel()
	lim, _ := open(t, shop, nil)
	report := func(id string) []penstock.Entry { return entries("report", "daily", "request", id) }
	if !allow(t, lim, report("1")).Allowed || allow(t, lim, report("2")).Allowed || !allow(t, lim, report("1")).Allowed {
		t.Error("want one permit, that its holder can renew")
	}
	release := penstock.RuleRequest{Domain: "shop", Release: true, Descriptors: []penstock.Descriptor{
		{Entries: report("1"), Cost: -1}, {Entries: entries("user", "1"), Cost: -1},
	}}
	allow(t, lim, entries("user", "1"))
	if a, err := lim.Take(t.Context(), release); err != nil || !a.Allowed {
		t.Errorf("release: got %+v, %v", a, err)
	}
	if !allow(t, lim, report("2")).Allowed || allow(t, lim, entries("user", "1")).Decision.Remaining != 0 {
		t.Error("want the permit released and nothing refunded to the user")
	}
	release.Descriptors[0].Cost = 1
	if _, err := lim.Take(t.Context(), release); !errors.Is(err, penstock.ErrBadCost) {
		t.Errorf("release with a positive cost: got %v", err)
	}
}

func TestLimiterSettles(t *testing.T) {
	t.Parallel()
	lim, _ := open(t, shop, nil)
	r := penstock.RuleRequest{Domain: "shop", ID: "q1", Descriptors: []penstock.Descriptor{{Entries: entries("model", "m"), Cost: 80}}}
	for range 2 {
		if a, err := lim.Take(t.Context(), r); err != nil || a.Decision.Remaining != 20 {
			t.Errorf("take, and take again: got %+v, %v", a, err)
		}
	}
	r.Settle, r.Descriptors[0].Cost = true, 5
	if a, err := lim.Take(t.Context(), r); err != nil || a.Decision.Remaining != 95 {
		t.Errorf("settle: got %+v, %v", a, err)
	}
}

func TestLimiterObservesAndShadows(t *testing.T) {
	t.Parallel()
	var seen []string
	lim, _ := open(t, shop, &rulelimit.Options{Shadow: true, DenyUnmatched: true, Observe: func(o rulelimit.Observation) {
		seen = append(seen, fmt.Sprintf("%s %v %d %v", o.Request.Domain, o.Allowed, len(o.Answers), o.Err != nil))
	}})
	for range 3 {
		if !allow(t, lim, entries("user", "1")).Allowed {
			t.Error("denied in shadow mode")
		}
	}
	if _, err := lim.Allow(t.Context(), "shop"); err == nil {
		t.Error("no descriptors: want an error")
	}
	want := "[shop true 1 false shop true 1 false shop true 1 false shop false 0 true]"
	if fmt.Sprint(seen) != want {
		t.Errorf("observed %v, want %s", seen, want)
	}
}

func TestLimiterObeysOverrides(t *testing.T) {
	t.Parallel()
	lim, _ := open(t, shop, nil)
	if err := lim.Overrides().Put(t.Context(), []overrides.Override{{Rule: "shop/user", Key: "user=6", Limit: "ban"}}); err != nil {
		t.Fatal(err)
	}
	a := allow(t, lim, entries("user", "6"))
	if a.Allowed || a.Decision.Source != penstock.SourceOverride {
		t.Errorf("a banned user got %+v", a)
	}
	if x := lim.Rules().Explain("shop", entries("user", "6")); x.Rule == nil || x.Key != "user=6" {
		t.Errorf("explanation %+v", x)
	}
}

// Rules say what happens while the store is down, and what a request may ask for beside its cost.
func TestLimiterFollowsRulesAboutTheStore(t *testing.T) {
	t.Parallel()
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	policies := &storepolicy.Policies{}
	store := penstock.WithFallback(down, penstock.NewMemory(nil), &penstock.FallbackOptions{OnFailure: policies.OnFailure})
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, `domain: shop
descriptors:
  - {key: login, limit: 5/1h, on_store_failure: deny}
  - {key: page, limit: 5/1h, on_store_failure: allow}
  - {key: user, limit: 5/1h burst=5}
`)
	lim, err := rulelimit.Open(t.Context(), path, store, &rulelimit.Options{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	if allow(t, lim, entries("login", "1")).Allowed {
		t.Error("on_store_failure: deny has no effect")
	}
	for range 10 {
		if !allow(t, lim, entries("page", "1")).Allowed {
			t.Error("on_store_failure: allow has no effect")
		}
	}
	ask := penstock.RuleRequest{Domain: "shop", AtMost: true, Descriptors: []penstock.Descriptor{{Entries: entries("user", "1"), Cost: 9}}}
	if a, err := lim.Take(t.Context(), ask); err != nil || !a.Allowed || a.Decision.Granted != 5 {
		t.Errorf("at most 9 of 5: got %+v, %v", a, err)
	}
}

func TestOpenReturnsErrors(t *testing.T) {
	if _, err := rulelimit.Open(t.Context(), filepath.Join(t.TempDir(), "none.yaml"), penstock.NewMemory(nil), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	if _, err := rulelimit.Open(t.Context(), "rules.yaml", nil, nil); err == nil {
		t.Error("no store: want an error")
	}
}

// A program starts without its configuration centre, from what it kept.
func TestOpenFromServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(shop)) }))
	o := &rulelimit.Options{Source: rulesource.Options{Keep: filepath.Join(t.TempDir(), "kept")}}
	for _, stop := range []func(){server.Close, func() {}} {
		lim, err := rulelimit.Open(t.Context(), server.URL+"/shop.yaml", penstock.NewMemory(nil), o)
		if err != nil {
			t.Fatal(err)
		}
		if a := allow(t, lim, entries("user", "1")); a.Rule != "shop/user" {
			t.Errorf("got %+v", a)
		}
		stop()
		if err := lim.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := rulelimit.Open(t.Context(), "zookeeper://host/x", penstock.NewMemory(nil), nil); err == nil {
		t.Error("unknown scheme: want an error")
	}
}

// A rule that denies while the store is down, and does not, is told.
func TestLimiterWarnsOfSettingsWithoutPolicies(t *testing.T) {
	for text, warns := range map[string]bool{
		"{key: login, limit: 5/1h, on_store_failure: deny}": true,
		"{key: login, limit: 5/1h, global: {}}":             true,
		"{key: login, limit: 5/1h}":                         false,
	} {
		var log strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		path := filepath.Join(t.TempDir(), "rules.yaml")
		write(t, path, "domain: shop\ndescriptors:\n  - "+text+"\n")
		lim, err := rulelimit.Open(t.Context(), path, penstock.NewMemory(nil), nil)
		slog.SetDefault(before)
		if err != nil {
			t.Fatal(err)
		}
		_ = lim.Close()
		if got := strings.Contains(log.String(), "Options.Policies"); got != warns {
			t.Errorf("%s: the log has %q", text, &log)
		}
	}
}
