package redisstore_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A hundred permits of a key take at most 3.2 kB. When they are released, the place of the last
// remains until it expires. Redis never sees an ID.
func TestPermitsAreSmallAndHashed(t *testing.T) {
	tr := newClockTest(t)
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
	if n := tr.number("MEMORY", "USAGE", keys[0], "SAMPLES", "0"); n > 3200 {
		t.Errorf("a hundred permits take %d bytes, want at most 3200", n)
	}
	if value := redistest.MustCommand(t, fakeClockServer, "GET", keys[0]); strings.Contains(value, "request") {
		t.Errorf("the value contains an ID: %q", value)
	}
	for i := range 100 {
		tr.request(penstock.Request{Limit: l, Cost: -1, ID: "request-" + strconv.Itoa(i)})
	}
	if n := tr.number("STRLEN", keys[0]); n > 16 {
		t.Errorf("after all permits were released, %d bytes remain, want at most 16", n)
	}
	tr.wait(90 * time.Second)
	if keys := tr.storeKeys(); len(keys) != 0 {
		t.Errorf("one and a half periods later, %q remain", keys)
	}
}

// A call whose answer was lost is repeated: it renews permits that it took already, and
// releases none twice.
func TestPermitsAreTakenOnceWhenAnswersAreLost(t *testing.T) {
	t.Parallel()
	server, prefix := startServer(t), newPrefix()
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Algorithm: penstock.Concurrent, Count: 9, Period: time.Hour}, ID: "id"}
	for _, c := range []struct{ cost, granted, remaining int64 }{{3, 3, 6}, {3, 3, 6}, {-1, 0, 7}, {-3, 0, 7}} {
		r.Cost = c.cost
		p := startProxy(t, server.Addr) // a store that lost a connection probes the server again, and would get the cut
		store := openPrefix(t, "redis://"+p.Addr, prefix, longTimeout)
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

// Setting an expiry costs Redis as much as three other commands. So a take does it once in
// half a period, and a release never.
func TestPermitsKeepExpiryOfTheirKey(t *testing.T) {
	tr := newClockTest(t)
	l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 10, Period: time.Minute}
	take := func(cost int64, id string) {
		t.Helper()
		if d := tr.request(penstock.Request{Limit: l, Cost: cost, ID: id}); d.Granted != cost {
			t.Fatalf("%s: %+v, want %d granted", id, d, cost)
		}
	}
	take(1, "a")
	key := tr.storeKeys()[0]
	expiry := tr.number("PEXPIRETIME", key)
	tr.wait(30*time.Second - time.Millisecond)
	take(1, "b")
	take(-1, "a")
	if now := tr.number("PEXPIRETIME", key); now != expiry {
		t.Errorf("within half a period, the expiry moved by %d ms", now-expiry)
	}
	tr.wait(time.Millisecond)
	take(1, "c")
	if rest := tr.ttl(key); rest != 90*time.Second {
		t.Errorf("after half a period, the key expires in %v, want 1m30s", rest)
	}
	take(-1, "b")
	take(-1, "c")
	tr.wait(30*time.Second - time.Millisecond)
	take(1, "d")
	if rest := tr.ttl(key); rest != time.Minute+time.Millisecond {
		t.Errorf("within half a period after all were released, the key of a new one expires in %v, want 1m0.001s", rest)
	}
}

// shiftClock adds a number to all times of a key that holds permits.
const shiftClock = `
local value, shifted = redis.call('GET', KEYS[1]), {}
local function add(at) return struct.pack('>I4', (struct.unpack('>I4', value, at) + ARGV[1]) % 4294967296) end
shifted[1] = add(1)
for at = 5, #value, 12 do shifted[#shifted + 1] = string.sub(value, at, at + 7) .. add(at + 8) end
redis.call('SET', KEYS[1], table.concat(shifted), 'KEEPTTL')
return 1`

// The clock of a key's permits wraps around after 24 days. Wherever that is, the decisions
// are the same.
func TestPermitsOutliveTheirClock(t *testing.T) {
	tr := newClockTest(t)
	wantDecisions := permitDecisions(tr, 0)
	for _, before := range []int64{1, 10_000, 90_000, 120_000, 120_001, 180_000, 200_000} { // half milliseconds
		if got := permitDecisions(tr, 1<<32-before-before%2); got != wantDecisions {
			t.Errorf("the clock wraps around in %d: got\n%s\nwant\n%s", before, got, wantDecisions)
		}
	}
}

// permitDecisions returns what a key decides whose clock was shifted after its first permit.
func permitDecisions(tr *clockTest, shift int64) string {
	var b strings.Builder
	l := penstock.Limit{Name: "shift-" + strconv.FormatInt(shift, 10), Algorithm: penstock.Concurrent, Count: 4, Period: time.Minute}
	decide := func(after time.Duration, cost int64, id string) {
		tr.wait(after)
		b.WriteString(tr.request(penstock.Request{Limit: l, Cost: cost, ID: id}).String() + "\n")
	}
	decide(0, 1, "a")
	tr.eval(shiftClock, tr.storeKeys(), shift)
	decide(20*time.Second, 2, "b")
	decide(time.Second, -1, "b")
	decide(time.Second, 1, "a")
	decide(time.Second, 4, "c")
	decide(20*time.Second, 2, "c")
	decide(time.Second, 1, "d")
	decide(37*time.Second, 2, "d")
	decide(2*time.Second, 1, "e")
	decide(30*time.Second, -2, "c")
	decide(time.Hour, 0, "")
	return b.String()
}

// A clock that steps back by months moves expiries further than a permit can count.
func TestPermitsExpireInTimeAfterLongStepBack(t *testing.T) {
	tr := newClockTest(t)
	l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 3, Period: time.Minute}
	tr.request(penstock.Request{Limit: l, Cost: 1, ID: "a"})
	tr.wait(-120 * 24 * time.Hour)
	if d := tr.request(penstock.Request{Limit: l}); d.Remaining != 2 || d.ResetAfter != time.Minute {
		t.Errorf("after a step back: %+v, want 2 remaining and a reset in a minute", d)
	}
	tr.wait(time.Minute)
	if d := tr.request(penstock.Request{Limit: l, Cost: 3, ID: "b"}); d.Granted != 3 {
		t.Errorf("a minute later: %+v, want 3 granted", d)
	}
}

// The empty value of a key without permits has no time but its expiry, which a clock that
// steps back moves further than a permit can count.
func TestPermitsAfterAllWereReleasedAndLongStepBack(t *testing.T) {
	for _, step := range []time.Duration{29 * time.Second, 31 * time.Second, 25 * 24 * time.Hour, 120 * 24 * time.Hour} {
		tr := newClockTest(t)
		l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 3, Period: time.Minute}
		tr.request(penstock.Request{Limit: l, Cost: 1, ID: "a"})
		tr.request(penstock.Request{Limit: l, Cost: -1, ID: "a"})
		tr.wait(-step)
		if d := tr.request(penstock.Request{Limit: l}); d.Remaining != 3 || d.ResetAfter != 0 {
			t.Errorf("%v back: %+v, want all permits free", step, d)
		}
		if d := tr.request(penstock.Request{Limit: l, Cost: 2, ID: "b"}); d.Granted != 2 || d.ResetAfter != time.Minute {
			t.Errorf("%v back: %+v, want 2 granted for a minute", step, d)
		}
		tr.wait(time.Minute - time.Millisecond)
		if d := tr.request(penstock.Request{Limit: l}); d.Remaining != 1 || d.ResetAfter != time.Millisecond {
			t.Errorf("a minute after %v back: %+v, want 2 held for 1ms", step, d)
		}
		tr.wait(time.Millisecond)
		if d := tr.request(penstock.Request{Limit: l}); d.Remaining != 3 {
			t.Errorf("1ms later: %+v, want all permits free", d)
		}
	}
}

// The empty value is deleted by a reset, and by any request once its expiry is too far away.
func TestPermitsEmptyValueIsDeleted(t *testing.T) {
	l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 3, Period: time.Minute}
	for name, remove := range map[string]func(*clockTest){
		"reset":     func(tr *clockTest) { tr.request(penstock.Request{Limit: l, Cost: penstock.Reset}) },
		"step back": func(tr *clockTest) { tr.wait(-time.Hour); tr.request(penstock.Request{Limit: l}) },
	} {
		tr := newClockTest(t)
		tr.request(penstock.Request{Limit: l, Cost: 1, ID: "a"})
		tr.request(penstock.Request{Limit: l, Cost: -1, ID: "a"})
		if keys := tr.storeKeys(); len(keys) != 1 {
			t.Fatalf("%s: after a release the keys are %q, want one", name, keys)
		}
		if remove(tr); len(tr.storeKeys()) != 0 {
			t.Errorf("%s: %q remain", name, tr.storeKeys())
		}
	}
}

func TestPermitsForeignValueFails(t *testing.T) {
	l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 3, Period: time.Minute}
	for _, foreign := range []string{"x", "four", "hello", strings.Repeat("x", 17)} {
		tr := newClockTest(t)
		tr.request(penstock.Request{Limit: l, Cost: 1, ID: "a"})
		name := tr.storeKeys()[0]
		redistest.MustCommand(t, fakeClockServer, "SET", name, foreign, "KEEPTTL")
		for _, r := range []penstock.Request{{}, {Cost: 1, ID: "a"}, {Cost: -1, ID: "a"}} {
			r.Key, r.Limit = "key", l
			if d, err := tr.store.Take(t.Context(), r); !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), name) {
				t.Errorf("%q, cost %d: got %+v, %v, want an error that names the key", foreign, r.Cost, d, err)
			}
		}
		if got := redistest.MustCommand(t, fakeClockServer, "GET", name); got != foreign {
			t.Errorf("%q was changed to %q", foreign, got)
		}
	}
}

// A cold process pays whole units of the limit that it shares with a warm one.
func TestWarmUpPaysInUnitsOfRedis(t *testing.T) {
	tr := newClockTest(t)
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.SlidingLog} {
		l := penstock.PerHour(10).WithAlgorithm(a)
		cold := penstock.WithWarmUp(tr.store, time.Hour)
		take := func(s penstock.Store, cost, granted, remaining int64) {
			t.Helper()
			d, err := s.Take(t.Context(), penstock.Request{Key: t.Name() + a.String(), Limit: l, Cost: cost})
			if err != nil || d.Granted != granted || d.Remaining != remaining {
				t.Errorf("%v, cost %d: %v, %v, want %d granted and %d remaining", a, cost, d, err, granted, remaining)
			}
		}
		take(cold, 2, 2, 1) // of ten, six are paid
		take(tr.store, 1, 1, 3)
		take(cold, 2, 0, 1)
		take(cold, 1, 1, 0)
		take(tr.store, 1, 0, 0)
	}
}

// A wrapper that has only Take renews permits by a take that keeps all of them free: it grants
// them to an ID that holds some, and to no other. So a denied TakeAll releases what it took alone.
func TestPermitsOfDeniedTakeAllInAWrapperStayHeld(t *testing.T) {
	t.Parallel()
	store := openURL(t, "redis://"+startServer(t).Addr, longTimeout)
	permit := func(key, id string, cost int64) penstock.Request {
		return penstock.Request{Key: key, Limit: penstock.Limit{Algorithm: penstock.Concurrent, Count: 5, Period: time.Hour}, ID: id, Cost: cost}
	}
	for _, r := range []penstock.Request{permit("full", "others", 5), permit("key", "held", 2)} {
		if d, err := store.Take(t.Context(), r); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	plain := penstock.StoreFunc(store.Take)
	for _, id := range []string{"held", "new"} {
		ds := make([]penstock.Decision, 2)
		err := penstock.TakeAll(t.Context(), plain, []penstock.Request{permit("key", id, 1), permit("full", "more", 1)}, ds)
		if err != nil || ds[1].Allowed || ds[0].Remaining != 3 {
			t.Errorf("%s: %v, %v, want a denial and three permits left", id, ds, err)
		}
	}
}
