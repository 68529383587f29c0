package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// byPlan returns a LimiterFor that chooses by the field Plan.
func byPlan(limiters map[string]*penstock.Limiter) func(*http.Request) *penstock.Limiter {
	return func(r *http.Request) *penstock.Limiter { return limiters[r.Header.Get("Plan")] }
}

func TestProtectLimiterForChoosesByRequest(t *testing.T) {
	store := standingStill()
	limiters := map[string]*penstock.Limiter{
		"free": limiter(t, store, "api: 2/1h fixed-window"), "pro": limiter(t, store, "api: 4/1h fixed-window"),
	}
	h := httplimit.Protect(nil, &httplimit.Options{LimiterFor: byPlan(limiters)})(hello)
	expect(t, "free", statuses(h, 3, alice, "Plan", "free"), 200, 200, 429)
	expect(t, "pro, where the use of free counts", statuses(h, 3, alice, "Plan", "pro"), 200, 200, 429)
	expect(t, "without a limiter", statuses(h, 5, alice, "Plan", "none"), 200, 200, 200, 200, 200)
	if got := ask(h, alice, "Plan", "none").Header().Get("RateLimit"); got != "" {
		t.Errorf("a request that is not limited has the field RateLimit: %s", got)
	}
	if got := ask(h, bob, "Plan", "pro").Header().Get("RateLimit-Policy"); got != `"api";q=4;w=3600` {
		t.Errorf("a request of the plan pro: RateLimit-Policy %s", got)
	}
}

func TestProtectLimiterForFallsBackToLimiter(t *testing.T) {
	limiters := map[string]*penstock.Limiter{"pro": inMemory(t, "2/1h")}
	h := httplimit.Protect(inMemory(t, "1/1h"), &httplimit.Options{LimiterFor: byPlan(limiters)})(hello)
	expect(t, "pro", statuses(h, 3, alice, "Plan", "pro"), 200, 200, 429)
	expect(t, "another plan", statuses(h, 2, alice, "Plan", "x"), 200, 429)
}

// A chosen limiter is taken together with the others, or not at all.
func TestProtectLimiterForIsDecidedWithAdditional(t *testing.T) {
	store := standingStill()
	limiters := map[string]*penstock.Limiter{"free": limiter(t, store, "plan: 1/1h"), "pro": limiter(t, store, "pro: 9/1h")}
	all := limiter(t, store, "all: 3/1h")
	h := httplimit.Protect(nil, &httplimit.Options{
		LimiterFor: byPlan(limiters), Additional: []httplimit.Charge{{Limiter: all, Key: httplimit.Global}},
	})(hello)
	expect(t, "free", statuses(h, 3, alice, "Plan", "free"), 200, 429, 429)
	expect(t, "pro", statuses(h, 1, alice, "Plan", "pro"), 200)
	expect(t, "no plan", statuses(h, 2, alice), 200, 429)
	if d, err := all.Peek(t.Context(), "global"); err != nil || d.Remaining != 0 {
		t.Errorf("%d remain of 3, %v, although three requests passed", d.Remaining, err)
	}
}

func TestProtectLimiterForSettlesOnChosenLimiter(t *testing.T) {
	limiters := map[string]*penstock.Limiter{"free": inMemory(t, "5/1h"), "pro": inMemory(t, "9/1h")}
	h := httplimit.Protect(nil, &httplimit.Options{
		LimiterFor: byPlan(limiters), Key: httplimit.Global, After: func(httplimit.Response) int64 { return 4 },
	})(hello)
	ask(h, alice, "Plan", "pro")
	for plan, want := range map[string]int64{"free": 5, "pro": 5} {
		if d, err := limiters[plan].Peek(t.Context(), "global"); err != nil || d.Remaining != want {
			t.Errorf("%s: %d remain, %v, want %d", plan, d.Remaining, err, want)
		}
	}
}

// A program may make a limiter for each request, although it should not.
func TestProtectLimiterForManyLimiters(t *testing.T) {
	store, l := standingStill(), mustLimit(t, "1/1h")
	h := httplimit.Protect(nil, &httplimit.Options{LimiterFor: func(*http.Request) *penstock.Limiter {
		lim, err := penstock.New(store, l)
		if err != nil {
			t.Error(err)
		}
		return lim
	}})(hello)
	expect(t, "the first", statuses(h, 1, alice), 200)
	for range 1000 {
		expect(t, "later", statuses(h, 1, alice), 429)
	}
}

func TestProtectWithoutLimiterPanics(t *testing.T) {
	for name, protect := range map[string]func(){
		"none": func() { httplimit.Protect(nil, nil) },
		"an additional charge without one": func() {
			httplimit.Protect(inMemory(t, "1/1h"), &httplimit.Options{Additional: []httplimit.Charge{{}}})
		},
	} {
		func() {
			defer func() {
				const want = "no limiter: want one, LimiterFor or Rules"
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%s: got the panic %q, want %q rather than no limit", name, got, want)
				}
			}()
			protect()
		}()
	}
}

// captureLog makes a buffer the default log until the test ends.
func captureLog(t *testing.T) *strings.Builder {
	t.Helper()
	var b strings.Builder
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	return &b
}

func TestProtectLogsStoreErrorsOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := captureLog(t)
		broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
			return penstock.Decision{}, errors.New("the store is gone")
		})
		h := httplimit.Protect(limiter(t, broken, "1/1h"), nil)(hello)
		expect(t, "while the store is down", statuses(h, 3, alice), 200, 200, 200)
		time.Sleep(time.Second)
		expect(t, "a second later", statuses(h, 1, alice), 200)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "the store is gone") || !strings.Contains(lines[1], "not_logged=2") {
			t.Errorf("logged %q, want the first and the fourth", lines)
		}
	})
}

func TestProtectLogsNothingWhereErrorsAreHandled(t *testing.T) {
	log := captureLog(t)
	failing := penstock.StoreFunc(func(ctx context.Context, _ penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, errors.Join(errors.New("the store is gone"), ctx.Err())
	})
	lim := limiter(t, failing, "1/1h")
	seen := 0
	ask(httplimit.Protect(lim, &httplimit.Options{OnError: func(*http.Request, error) { seen++ }})(hello), alice)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	h := httplimit.Protect(lim, nil)(hello)
	ask(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r.WithContext(gone)) }), alice)
	if seen != 1 || log.String() != "" {
		t.Errorf("OnError was called %d times, and the log has %q, want once and nothing", seen, log.String())
	}
}
