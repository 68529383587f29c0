package regions_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/regions"
)

func parse(t testing.TB, text string) penstock.Limit {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSizes(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		limit     string
		hold      float64
		regions   int
		roundTrip time.Duration
		want      regions.Sizes
	}{
		{"1000/1m", 0, 3, 200 * ms, regions.Sizes{Hold: 40, KeepFree: 120, Pause: 2000 * ms}},
		{"1000/1m", 0, 10, 250 * ms, regions.Sizes{Hold: 15, KeepFree: 150, Pause: 525 * ms}},
		{"6000/1m", 0.5, 3, 200 * ms, regions.Sizes{Hold: 1000, KeepFree: 3000, Pause: 5000 * ms}},
		{"100000/1s", 0, 3, 200 * ms, regions.Sizes{Hold: 23333, KeepFree: 69999, Slow: true}},
		{"10/1s", 0, 3, 200 * ms, regions.Sizes{Hold: 2, KeepFree: 6, Slow: true}},
		{"10/1s", 0.2, 10, 250 * ms, regions.Sizes{}},
		{"5000000/month zone=UTC fixed-window", 0, 3, 250 * ms, regions.Sizes{Hold: 333333, Pause: 5000 * ms, Ends: true}},
		{"6000/1m sliding-window", 0, 3, 250 * ms, regions.Sizes{Hold: 80, KeepFree: 240, Pause: 425 * ms}},
		{"600/1m sliding-log", 0, 3, 250 * ms, regions.Sizes{Hold: 8, KeepFree: 24, Pause: 425 * ms}},
		{"100/1m leaky-bucket", 0, 3, 250 * ms, regions.Sizes{}},
		{"100/1m concurrent", 0, 3, 250 * ms, regions.Sizes{}},
		{"0/1m", 0, 3, 250 * ms, regions.Sizes{}},
	} {
		got := regions.SizesOf(parse(t, test.limit), regions.Settings{Pool: test.hold}, test.regions, test.roundTrip)
		got.Pause = got.Pause.Round(time.Microsecond)
		if test.want.Hold == 0 {
			got.Pause, got.Slow = 0, false // of no meaning
		}
		if got != test.want {
			t.Errorf("%s over %d regions, %v from home:\n got %+v\nwant %+v", test.limit, test.regions, test.roundTrip, got, test.want)
		}
	}
}

func TestSizesInWords(t *testing.T) {
	for limit, want := range map[string]string{
		"6000/1m":              "each holds up to 240 units in advance, home keeps 720 free",
		"6000/1m fixed-window": "each holds up to 400 units in advance, until the window ends",
		"1000/1s":              "each holds up to 233 units in advance, home keeps 699 free; at the full rate, which brings more in two round trips, requests wait for home",
		"100/1m concurrent":    "home decides every request",
	} {
		if got := regions.SizesOf(parse(t, limit), regions.Settings{}, 3, 250*time.Millisecond).String(); got != want {
			t.Errorf("%s: %s, want %s", limit, got, want)
		}
	}
}

// Home can always grant something, and keeps free what regions hold.
func TestSizesLeaveHomeSomethingToGrant(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 1))
	for range 20_000 {
		l := penstock.Limit{Algorithm: penstock.Algorithm(rng.IntN(6)), Count: 1 + rng.Int64N(1<<rng.IntN(14)), Period: time.Duration(1+rng.IntN(5000)) * time.Second}
		if l.IsBucket() {
			l.Burst = 1 + rng.Int64N(1<<rng.IntN(40))
		}
		n, hold := 1+rng.IntN(20), float64(rng.IntN(10))/10
		z := regions.SizesOf(l, regions.Settings{Pool: hold}, n, time.Duration(rng.IntN(1000))*time.Millisecond)
		switch held := z.Hold * int64(n); {
		case z.Hold < 0 || z.Pause < 0 || z.Pause > 5*time.Second:
			t.Fatalf("%v over %d regions with a hold of %v: %+v", l, n, hold, z)
		case !z.Ends && z.KeepFree != held:
			t.Fatalf("%v over %d regions with a hold of %v: keeps %d of %d free", l, n, hold, z.KeepFree, held)
		case z.Hold > 0 && held >= l.Capacity():
			t.Fatalf("%v over %d regions with a hold of %v: regions hold %d, all of it", l, n, hold, held)
		}
	}
}
