package redisstore_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A hundred permits of a key take at most 3.2 kB, and nothing remains when they are
// released. Redis never sees an ID.
func TestPermitsAreSmallAndHashed(t *testing.T) {
	tr := newRivalTest(t)
	l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 100, Period: time.Minute}
	for i := range 100 {
		tr.wait(time.Millisecond)
		if d := tr.request(penstock.Request{Limit: l, Cost: 1, ID: "request-" + strconv.Itoa(i)}); !d.Allowed {
			t.Fatalf("permit %d: %+v", i, d)
		}
	}
	keys := tr.storeKeys()
	if len(keys) != 1 {
		t.Fatalf("a hundred permits of one key are in %q, want one key", keys)
	}
	if n := tr.number("MEMORY", "USAGE", keys[0], "SAMPLES", 0); n > 3200 {
		t.Errorf("a hundred permits take %d bytes, want at most 3200", n)
	}
	if value := redistest.MustCommand(t, fakeClockServer, "GET", keys[0]); strings.Contains(value, "request") {
		t.Errorf("the value contains an ID: %q", value)
	}
	for i := range 100 {
		tr.request(penstock.Request{Limit: l, Cost: -1, ID: "request-" + strconv.Itoa(i)})
	}
	if keys := tr.storeKeys(); len(keys) != 0 {
		t.Errorf("after all permits were released, %q remain", keys)
	}
}

// A call whose answer was lost is repeated: it renews permits that it took already, and
// releases none twice.
func TestPermitsAreTakenOnceWhenAnswersAreLost(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, longTimeout)
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Algorithm: penstock.Concurrent, Count: 9, Period: time.Hour}, ID: "id"}
	for _, c := range []struct{ cost, granted, remaining int64 }{{3, 3, 6}, {3, 3, 6}, {-1, 0, 7}, {-3, 0, 7}} {
		r.Cost = c.cost
		mustCommand(t, server, "CONFIG", "RESETSTAT")
		p.CutReplyAfter(0, false)
		d, err := store.Take(t.Context(), r)
		if err != nil || d.Granted != c.granted || d.Remaining != c.remaining {
			t.Errorf("%d permits, and the answer is lost: %+v, %v, want %d granted and %d remaining", c.cost, d, err, c.granted, c.remaining)
		}
		if n := infoCounter(t, "cmdstat_evalsha", server); n < 2 {
			t.Errorf("%d permits: the script ran %d times, want the repetition of a lost answer", c.cost, n)
		}
	}
}
