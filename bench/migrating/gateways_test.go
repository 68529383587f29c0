package migrating

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func cellAfter(store penstock.Store) (*penstock.Limiter, error) {
	// CL.THROTTLE user123 15 30 60
	return penstock.New(store, penstock.Per(30, 60*time.Second).WithBurst(15+1).WithName("throttle"))
}

// reply returns the reply of CL.THROTTLE, in whole seconds.
func reply(d penstock.Decision) [5]int64 {
	limited, retry := int64(1), int64(-1)
	if d.Allowed {
		limited = 0
	}
	if s, ok := httplimit.RetryAfterSeconds(d); ok {
		retry = s
	}
	return [5]int64{limited, d.Limit, d.Remaining, retry, int64((d.ResetAfter + time.Second - 1) / time.Second)}
}

// The wanted replies are redis-cell's.
func TestRedisCellRepliesAgree(t *testing.T) {
	c := newClock()
	lim, err := cellAfter(c.memory())
	if err != nil {
		t.Fatal(err)
	}
	take := func(n int64) [5]int64 {
		d, err := lim.AllowN(t.Context(), "user123", n)
		if err != nil {
			t.Fatal(err)
		}
		return reply(d)
	}
	for _, step := range []struct {
		n    int64
		want [5]int64
	}{
		{1, [5]int64{0, 16, 15, -1, 2}},
		{14, [5]int64{0, 16, 1, -1, 30}},
		{2, [5]int64{1, 16, 1, 2, 30}},
		{1, [5]int64{0, 16, 0, -1, 32}},
		{1, [5]int64{1, 16, 0, 2, 32}},
		{17, [5]int64{1, 16, 0, -1, 32}}, // more than there can ever be
	} {
		if got := take(step.n); got != step.want {
			t.Errorf("%d units: %v, want %v", step.n, got, step.want)
		}
	}
}

func kongAfter(store penstock.Store, mux http.Handler) (http.Handler, error) {
	perSecond, err := penstock.ParseLimit("5/1s fixed-window align=clock name=second")
	if err != nil {
		return nil, err
	}
	perDay, err := penstock.ParseLimit("10000/day zone=UTC fixed-window name=day")
	if err != nil {
		return nil, err
	}
	second, err := penstock.New(store, perSecond)
	if err != nil {
		return nil, err
	}
	day, err := penstock.New(store, perDay)
	if err != nil {
		return nil, err
	}
	return httplimit.Protect(second, &httplimit.Options{
		Additional: []httplimit.Charge{{Limiter: day}},
		Headers:    httplimit.Kong,
	})(mux), nil
}

func TestKongExampleRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := kongAfter(penstock.NewMemory(nil), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if err != nil {
			t.Fatal(err)
		}
		var last http.Header
		for range 6 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			last = w.Header()
		}
		for name, want := range map[string]string{
			"RateLimit-Limit": "5", "RateLimit-Remaining": "0", "RateLimit-Reset": "1", "Retry-After": "1",
			"X-RateLimit-Limit-Second": "5", "X-RateLimit-Remaining-Second": "0",
			"X-RateLimit-Limit-Day": "10000", "X-RateLimit-Remaining-Day": "9995",
		} {
			if got := last.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}

func istioAfter(ctx context.Context, store penstock.Store) (granted int64, err error) {
	limit, err := penstock.ParseLimit("500/1s rolling-window bucket=100ms name=requestcount")
	if err != nil {
		return 0, err
	}
	d, err := store.Take(ctx, penstock.Request{
		Key:    "destination=reviews;source=productpage",
		Limit:  limit,
		Cost:   20,          // amount
		AtMost: true,        // bestEffort
		ID:     "a7f3-0001", // deduplicationId
	})
	return d.Granted, err
}

func TestIstioExampleRuns(t *testing.T) {
	c := newClock()
	store := c.memory()
	for range 3 { // the same request, sent again
		if n, err := istioAfter(t.Context(), store); n != 20 || err != nil {
			t.Errorf("granted %d, %v", n, err)
		}
	}
	limit, err := penstock.ParseLimit("500/1s rolling-window bucket=100ms name=requestcount")
	if err != nil {
		t.Fatal(err)
	}
	r := penstock.Request{Key: "destination=reviews;source=productpage", Limit: limit, Cost: 1000, AtMost: true}
	if d, err := store.Take(t.Context(), r); err != nil || d.Granted != 480 {
		t.Errorf("remaining: %v, %v, want 480", d, err)
	}
}
