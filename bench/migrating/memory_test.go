package migrating

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func throttledBefore(ctx context.Context) error {
	store, err := memstore.NewCtx(65536)
	if err != nil {
		return err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerMin(20), MaxBurst: 4}
	lim, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return err
	}
	limited, _, err := lim.RateLimitCtx(ctx, "user:42", 1)
	if err != nil {
		return err
	}
	if limited {
		return errTooMany
	}
	return nil
}

func throttledAfter(ctx context.Context) error {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 65536})
	lim, err := penstock.New(store, penstock.PerMinute(20).WithBurst(5))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "user:42")
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany
	}
	return nil
}

func ululeBefore(ctx context.Context) error {
	lim := ulule.New(ululememory.NewStore(), ulule.Rate{Period: time.Hour, Limit: 1000})
	c, err := lim.Get(ctx, "user:42")
	if err != nil {
		return err
	}
	if c.Reached {
		return errTooMany
	}
	return nil
}

func ululeAfter(ctx context.Context, store penstock.Store) error {
	lim, err := penstock.New(store, penstock.PerHour(1000).WithAlgorithm(penstock.FixedWindow))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "user:42")
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany
	}
	return nil
}

func sethvargoBefore(ctx context.Context) error {
	store, err := memorystore.New(&memorystore.Config{Tokens: 15, Interval: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close(ctx) }()
	_, _, _, ok, err := store.Take(ctx, "user:42")
	if err != nil {
		return err
	}
	if !ok {
		return errTooMany
	}
	return nil
}

func sethvargoAfter(ctx context.Context, store penstock.Store) error {
	lim, err := penstock.New(store, penstock.PerMinute(15).WithAlgorithm(penstock.FixedWindow))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "user:42")
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany
	}
	return nil
}

func tollboothBefore(mux http.Handler) http.Handler {
	lim := tollbooth.NewLimiter(5, nil) // a second, for each address
	lim.SetIPLookups([]string{"RemoteAddr"})
	return tollbooth.LimitHandler(lim, mux)
}

func tollboothAfter(store penstock.Store, mux http.Handler) (http.Handler, error) {
	lim, err := penstock.New(store, penstock.PerSecond(5))
	if err != nil {
		return nil, err
	}
	return httplimit.Protect(lim, nil)(mux), nil
}

func TestMemoryExamplesRun(t *testing.T) {
	store := penstock.NewMemory(nil)
	for name, err := range map[string]error{
		"throttled": throttledBefore(t.Context()), "for throttled": throttledAfter(t.Context()),
		"ulule": ululeBefore(t.Context()), "for ulule": ululeAfter(t.Context(), store),
		"sethvargo": sethvargoBefore(t.Context()), "for sethvargo": sethvargoAfter(t.Context(), store),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Its burst is in addition to the first request, so penstock's is one more.
func TestThrottledAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.NewCtx(0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(10), MaxBurst: 19})
		if err != nil {
			t.Fatal(err)
		}
		ours := limiter(t, penstock.NewMemory(nil), penstock.PerSecond(10).WithBurst(20))
		for i, s := range trace(5000, time.Millisecond, 500*time.Millisecond, 10) {
			time.Sleep(s.after)
			limited, _, err := theirs.RateLimitCtx(t.Context(), "k", s.cost)
			if err != nil {
				t.Fatal(err)
			}
			d, err := ours.AllowN(t.Context(), "k", int64(s.cost))
			if err != nil {
				t.Fatal(err)
			}
			if limited == d.Allowed {
				t.Fatalf("step %d: theirs limited %v, ours %v", i, limited, d)
			}
		}
	})
}

// sethvargo/go-limiter computes a wrong refill if there are more tokens than the square
// root of the interval in nanoseconds.
func TestSethvargoRefillsTooLittle(t *testing.T) {
	store, err := memorystore.New(&memorystore.Config{Tokens: 100_000, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close(t.Context()) }()
	spend := func() (n int) {
		for {
			_, _, _, ok, err := store.Take(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return n
			}
			n++
		}
	}
	spend()
	deadline := time.Now().Add(time.Minute)
	for spent := time.Now(); ; {
		n := spend()
		now := time.Now()
		if took := now.Sub(spent); n > 0 && took < time.Second { // in ten seconds even this refills all of it
			if n >= 100_000 {
				t.Errorf("sethvargo/go-limiter refilled %d of 100000 in %s: it is correct now", n, took)
			}
			break
		}
		if spent = now; now.After(deadline) {
			t.Fatal("nothing refilled")
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ours := limiter(t, penstock.NewMemory(nil), penstock.Per(100_000, 100*time.Millisecond).WithAlgorithm(penstock.FixedWindow))
		first := admitted(t, ours, 200_000)
		time.Sleep(100 * time.Millisecond)
		if second := admitted(t, ours, 200_000); first != 100_000 || second != 100_000 {
			t.Errorf("penstock admitted %d and then %d", first, second)
		}
	})
}

func TestTollboothExampleRuns(t *testing.T) {
	hello := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	after, err := tollboothAfter(newClock().memory(), hello)
	if err != nil {
		t.Fatal(err)
	}
	if n := allowedAtOnce(after); n != 5 {
		t.Errorf("ours allowed %d requests at once, want 5", n)
	}
	// Its clock goes on, and a slow machine gets a few more.
	if n := allowedAtOnce(tollboothBefore(hello)); n < 5 {
		t.Errorf("tollbooth allowed %d requests at once, want 5", n)
	}
}

// allowedAtOnce returns how many requests a handler allows before it denies one, or -1 if it denies
// none within a minute.
func allowedAtOnce(h http.Handler) int {
	deadline := time.Now().Add(time.Minute)
	for n := 0; time.Now().Before(deadline); n++ {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code == http.StatusTooManyRequests {
			return n
		}
	}
	return -1
}
