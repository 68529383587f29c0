package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// withWarmUp runs a test on a store of which one process is cold, with a warm-up of half a
// minute.
func withWarmUp(t *testing.T, text string, test func(t *testing.T, cold, warm *penstock.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		memory := penstock.NewMemory(nil)
		test(t, limiter(t, penstock.WithWarmUp(memory, 30*time.Second), text), limiter(t, memory, text))
	})
}

// expectGrants checks how many units a key is granted at once.
func expectGrants(t *testing.T, lim *penstock.Limiter, key string, want int64) {
	t.Helper()
	granted := int64(0)
	for {
		d, err := lim.Allow(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			break
		}
		granted += d.Granted
	}
	if granted != want {
		t.Errorf("%s: granted %d, want %d", key, granted, want)
	}
}

func TestWarmUpPaysThreeTwoOne(t *testing.T) {
	for _, text := range limitsOfTen {
		t.Run(text, func(t *testing.T) {
			withWarmUp(t, "1"+text, func(t *testing.T, cold, _ *penstock.Limiter) { // 110 in 10 s
				expectGrants(t, cold, "first", 36)
				time.Sleep(10 * time.Second)
				expectGrants(t, cold, "second", 55)
				time.Sleep(10*time.Second - 1)
				expectGrants(t, cold, "still second", 55)
				time.Sleep(time.Nanosecond)
				expectGrants(t, cold, "third", 110)
				time.Sleep(time.Hour)
				expectGrants(t, cold, "later", 110)
			})
		})
	}
}

// What a cold process leaves, a warm one may use.
func TestWarmUpSharesLimitWithWarmProcess(t *testing.T) {
	withWarmUp(t, "100/1h fixed-window", func(t *testing.T, cold, warm *penstock.Limiter) {
		if d, err := cold.AllowN(ctx, "key", 10); err != nil || d.Granted != 10 || d.Remaining != 23 || d.Limit != 100 {
			t.Errorf("cold: %v, %v, want ten granted and 23 left at the price of three", d, err)
		}
		expectRemaining(t, warm, "key", 70)
		expectRemaining(t, cold, "key", 23)
		expectGrants(t, warm, "key", 70)
		if d, err := cold.Allow(ctx, "key"); err != nil || d.Allowed || d.RetryAfter != time.Hour {
			t.Errorf("cold: %v, %v, want a denial until the window ends", d, err)
		}
	})
}

func TestWarmUpAtMostTakesWholePrices(t *testing.T) {
	withWarmUp(t, "10/10s", func(t *testing.T, cold, warm *penstock.Limiter) {
		if d, err := cold.AllowAtMost(ctx, "key", 100); err != nil || d.Granted != 3 || d.Remaining != 0 {
			t.Errorf("%v, %v, want three", d, err)
		}
		expectRemaining(t, warm, "key", 1) // nothing is lost between prices
		if d, err := cold.AllowAtMost(ctx, "key", 100); err != nil || d.Allowed || d.RetryAfter != 2*time.Second {
			t.Errorf("%v, %v, want a denial until there are three", d, err)
		}
		expectRemaining(t, warm, "key", 1)
		ds := make([]penstock.Decision, 1)
		r := cold.Request("other")
		r.Cost, r.AtMost = 100, true
		if err := penstock.TakeEach(ctx, cold.Store(), []penstock.Request{r}, ds); err != nil || ds[0].Granted != 3 {
			t.Errorf("in a batch: %v, %v, want three", ds[0], err)
		}
	})
}

func TestWarmUpRefundsNoMoreThanWasPaid(t *testing.T) {
	withWarmUp(t, "100/1h fixed-window", func(t *testing.T, cold, warm *penstock.Limiter) {
		take := func(cost int64, id string) penstock.Decision {
			t.Helper()
			r := cold.Request("key")
			r.Cost, r.ID = cost, id
			d, err := cold.Store().Take(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		take(5, "a")
		if d := take(-5, "a"); d.Granted != -5 {
			t.Errorf("refund at the same price: %v, want five", d)
		}
		expectRemaining(t, warm, "key", 90) // fifteen were paid, and five returned: the take may have been larger
		take(5, "b")
		time.Sleep(10 * time.Second)
		if d := take(5, "b"); d.Granted != 5 || !d.Allowed {
			t.Errorf("a retry at another price: %v, want five", d)
		}
		expectRemaining(t, warm, "key", 75)
		if d := take(-5, "b"); d.Granted != -5 {
			t.Errorf("refund when the price has fallen: %v, want five", d)
		}
		expectRemaining(t, warm, "key", 80)
	})
}

// A large take pays a lower price, and a warm process pays one for each unit: returning more for
// them would return what others have taken.
func TestWarmUpRefundsNothingThatOthersTook(t *testing.T) {
	withWarmUp(t, "10/1h fixed-window", func(t *testing.T, cold, warm *penstock.Limiter) {
		refund := func(lim *penstock.Limiter, key string, n, left int64) {
			t.Helper()
			if d, err := lim.Refund(ctx, key, n); err != nil || d.Granted != -n {
				t.Errorf("%s: a refund of %d: %v, %v", key, n, d, err)
			}
			expectRemaining(t, warm, key, left)
		}
		take := func(lim *penstock.Limiter, key string, n int64) {
			t.Helper()
			if d, err := lim.AllowN(ctx, key, n); err != nil || d.Granted != n {
				t.Fatalf("%s: %d: %v, %v", key, n, d, err)
			}
		}
		take(cold, "large", 6) // six are paid, because twelve never could be
		take(warm, "large", 4)
		refund(cold, "large", 2, 2)
		refund(cold, "large", 4, 6)

		take(warm, "another process", 4)
		take(warm, "another process", 4)
		refund(cold, "another process", 2, 4)
	})
}

// What ends before its time returns what it has paid.
func TestWarmUpReturnsWholeReservations(t *testing.T) {
	withWarmUp(t, "10/10s", func(t *testing.T, cold, warm *penstock.Limiter) {
		for _, n := range []int64{1, 3, 4, 6} {
			key := fmt.Sprint("key ", n)
			if d, err := warm.AllowN(ctx, key, 10); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			r, err := cold.ReserveN(ctx, key, n)
			if err != nil || r.Delay() == 0 {
				t.Fatal(r, err)
			}
			if err := r.Cancel(ctx); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Nanosecond, cancel)
			if err := cold.WaitN(short, key, n); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if d, err := warm.Peek(ctx, key); err != nil || d.ResetAfter != 10*time.Second-1 {
				t.Errorf("%d: %v, %v, want nothing reserved", n, d, err)
			}
		}
	})
}

// A price that a limit can never grant would be a lock-out.
func TestWarmUpNeverLocksOut(t *testing.T) {
	withWarmUp(t, "4/1m fixed-window", func(t *testing.T, cold, warm *penstock.Limiter) {
		if d, err := cold.AllowN(ctx, "all", 4); err != nil || !d.Allowed || d.Granted != 4 {
			t.Errorf("all four: %v, %v, want them", d, err)
		}
		if d, err := cold.AllowN(ctx, "two", 2); err != nil || !d.Allowed || d.Granted != 2 {
			t.Errorf("two: %v, %v, want them at the price of two", d, err)
		}
		expectRemaining(t, warm, "two", 0)
		if d, err := cold.AllowN(ctx, "five", 5); err != nil || d.RetryAfter != penstock.Never {
			t.Errorf("five of four: %v, %v, want Never", d, err)
		}
		if err := cold.Wait(ctx, "wait"); err != nil {
			t.Error(err)
		}
	})
	withWarmUp(t, "10/1m fixed-window", func(t *testing.T, cold, warm *penstock.Limiter) {
		for cost, left := range map[int64]int64{1: 4, 2: 2, 4: 2} { // twice, at prices of three, two and one
			r := cold.Request(fmt.Sprint("key ", cost))
			r.Cost = cost
			ds := make([]penstock.Decision, 2)
			if err := penstock.TakeAll(ctx, cold.Store(), []penstock.Request{r, r}, ds); err != nil || ds[0].Granted != cost || ds[1].Granted != cost {
				t.Errorf("twice %d: %v, %v, want them", cost, ds, err)
			}
			expectRemaining(t, warm, r.Key, left)
		}
	})
}

// The price is paid out of the burst: a smaller one than three would be as fast as without a warm-up.
func TestWarmUpRefusesBurstsBelowThree(t *testing.T) {
	cold := penstock.WithWarmUp(penstock.NewMemory(nil), time.Minute)
	for text, want := range map[string]string{
		"90/1s burst=1": "burst=3", "90/1s burst=2": "burst=3", "90/1s leaky-bucket burst=2": "burst=3",
		"90/1s burst=3": "", "1/1m fixed-window": "", "1/1m concurrent": "", "0/1m": "",
	} {
		l, err := penstock.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = penstock.New(penstock.WithWarmUp(cold, 0), l); err != nil {
			t.Errorf("%s: %v without a warm-up", text, err)
		}
		_, err = penstock.New(cold, l)
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, penstock.ErrBadLimit) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestWarmUpOfSmallBursts(t *testing.T) {
	for text, want := range map[string]int{"90/1s burst=3": 30, "90/1s leaky-bucket burst=3": 30} {
		withWarmUp(t, text, func(t *testing.T, cold, _ *penstock.Limiter) {
			granted, end := 0, time.Now().Add(time.Second)
			for time.Now().Before(end) {
				d, err := cold.Allow(ctx, "key")
				if err != nil {
					t.Fatal(err)
				}
				granted += int(d.Granted)
				time.Sleep(d.Delay + d.RetryAfter)
			}
			if granted != want {
				t.Errorf("%s: %d in the first second, want %d", text, granted, want)
			}
		})
	}
}

func TestWarmUpTakeAllPaysForEach(t *testing.T) {
	withWarmUp(t, "100/1h", func(t *testing.T, cold, warm *penstock.Limiter) {
		a, b := cold.Request("a"), cold.Request("b")
		a.Cost = 10
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, cold.Store(), []penstock.Request{a, b}, ds); err != nil || ds[0].Granted != 10 || ds[1].Granted != 1 {
			t.Errorf("%v, %v, want ten and one", ds, err)
		}
		expectRemaining(t, warm, "a", 70)
		expectRemaining(t, warm, "b", 97)
	})
}

// Two takes of one key fit beside the units that one of them keeps free, but not at the price that
// the other could pay alone.
func TestWarmUpTakeAllPaysWhatAllCanKeepFree(t *testing.T) {
	withWarmUp(t, "6/1h", func(t *testing.T, cold, warm *penstock.Limiter) {
		rs := []penstock.Request{cold.Request("k"), cold.KeepFree(3).Request("k")}
		ds := make([]penstock.Decision, len(rs))
		if err := penstock.TakeAll(ctx, cold.Store(), rs, ds); err != nil || !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("got %v, %v, want both allowed", ds, err)
		}
		expectGrants(t, warm, "k", 4)
	})
}

// A request behind another in a queue, which at the price of now waits beyond its MaxDelay, is told to come
// back when the price falls.
func TestWarmUpQueueIsTooSlowOnlyAtFirst(t *testing.T) {
	withWarmUp(t, "10/10s leaky-bucket", func(t *testing.T, cold, _ *penstock.Limiter) {
		rs := []penstock.Request{cold.Request("k"), cold.Request("k")}
		rs[1].MaxDelay = 2 * time.Second
		ds := make([]penstock.Decision, len(rs))
		time.Sleep(time.Second)
		if err := penstock.TakeAll(ctx, cold.Store(), rs, ds); err != nil || ds[1].Allowed || ds[1].RetryAfter != 9*time.Second {
			t.Errorf("got %v, %v, want a denial until a unit costs two", ds, err)
		}
		time.Sleep(9 * time.Second)
		if err := penstock.TakeAll(ctx, cold.Store(), rs, ds); err != nil || !ds[1].Allowed || ds[1].Delay != 2*time.Second {
			t.Errorf("got %v, %v, want both allowed", ds, err)
		}
		time.Sleep(10 * time.Second)
		rs[1].MaxDelay = time.Second - 1
		if err := penstock.TakeAll(ctx, cold.Store(), rs, ds); err != nil || ds[1].RetryAfter != penstock.Never {
			t.Errorf("got %v, %v, want a denial for good", ds, err)
		}
	})
}

// What reports a use, or holds permits, pays no price.
func TestWarmUpChargesAndPermitsPayNoPrice(t *testing.T) {
	withWarmUp(t, "100/1h", func(t *testing.T, cold, warm *penstock.Limiter) {
		if d, err := cold.Charge(ctx, "key", 30); err != nil || d.Granted != 30 {
			t.Error(d, err)
		}
		expectRemaining(t, warm, "key", 70)
		r := cold.KeepFree(90).Request("settled")
		r.Cost, r.ID = 3, "x"
		if d, err := cold.Store().Take(ctx, r); err != nil || d.Granted != 3 {
			t.Error(d, err)
		}
		r.Cost, r.Settle = 40, true // whatever it keeps free, and at the usual price
		if d, err := cold.Store().Take(ctx, r); err != nil || !d.Allowed {
			t.Error(d, err)
		}
		expectRemaining(t, warm, "settled", 60)
	})
	withWarmUp(t, "5/1m concurrent", func(t *testing.T, cold, warm *penstock.Limiter) {
		p, d, err := cold.AcquireN(ctx, "key", 2)
		if err != nil || p == nil {
			t.Fatal(d, err)
		}
		defer p.Release()
		expectRemaining(t, warm, "key", 3)
	})
}

func TestWarmUpWithoutStoreReturnsError(t *testing.T) {
	_, err := penstock.WithWarmUp(nil, time.Minute).Take(ctx, penstock.Request{Key: "key", Limit: penstock.PerHour(1), Cost: 1})
	if err == nil || errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("%v, want an error about the store", err)
	}
}
