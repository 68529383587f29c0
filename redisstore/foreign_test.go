package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// everyAlgorithm has limits of every kind that refill within a test: tests of exact
// numbers use them on the fake clock.
var everyAlgorithm = func() []penstock.Limit {
	limits := []penstock.Limit{
		{Algorithm: penstock.FixedWindow, Count: 10, Period: time.Minute, Align: penstock.AlignClock},
		{Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay, Zone: "Europe/Berlin"},
	}
	for _, a := range penstock.Algorithms() {
		if l := penstock.PerMinute(10).WithAlgorithm(a); !l.HasPermits() {
			limits = append(limits, l)
		}
	}
	return limits
}()

// A value that another program wrote under a state's name is neither used as a state
// nor treated as absent: absence would refill the key.
func TestStoreForeignValueFails(t *testing.T) {
	prefix := newPrefix()
	store := openFakeClock(t, redisstore.Options{Prefix: prefix})
	for _, l := range everyAlgorithm {
		for _, foreign := range [][]string{
			{"SET", "", "hello", "PX", "60000"},
			{"SET", "", "", "PX", "60000"},
			{"SET", "", "1.5", "PX", "60000"},
			{"SET", "", "-1.5u", "PX", "60000"},
			{"SET", "", "-1.500", "PX", "60000"},
			{"SET", "", "12 twelve", "PX", "60000"},
			{"SET", "", "nan", "PX", "60000"},
			{"SET", "", "inf", "PX", "60000"},
			{"RPUSH", "", "a"},
			{"HSET", "", "a", "b"},
		} {
			checkForeign(t, store, prefix, l, foreign)
		}
	}
}

// checkForeign checks a limit's only key under a prefix, and removes it.
func checkForeign(t *testing.T, store *redisstore.Store, prefix string, l penstock.Limit, foreign []string) {
	t.Helper()
	request := penstock.Request{Key: "k", Limit: l, Cost: 1}
	if _, err := store.Take(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	name := keys(t, fakeClockServer, prefix)[0]
	foreign[1] = name
	for _, words := range [][]string{{"DEL", name}, foreign, {"PEXPIRE", name, "60000"}} {
		if _, err := fakeClockServer.Command(words...); err != nil {
			t.Fatal(err)
		}
	}
	before := dump(t, name)
	for _, cost := range []int64{1, 0, -1, 100} {
		request.Cost = cost
		d, err := store.Take(t.Context(), request)
		if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s, %q, cost %d: got %+v, %v, want an error that names the key", l, foreign, cost, d, err)
		}
	}
	if dump(t, name) != before {
		t.Errorf("%s: %q was changed", l, foreign)
	}
	mustCommand(t, fakeClockServer, "DEL", name)
}

func dump(t *testing.T, name string) string {
	t.Helper()
	text, err := fakeClockServer.Command("DUMP", name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A state without expiry would never refill. Only aligned windows do, because their
// end is stored.
func TestStoreStateWithoutExpiryFails(t *testing.T) {
	for _, l := range everyAlgorithm {
		if l.Align != penstock.AlignFirst {
			continue
		}
		prefix := newPrefix()
		store := openFakeClock(t, redisstore.Options{Prefix: prefix})
		request := penstock.Request{Key: "k", Limit: l, Cost: 1}
		if _, err := store.Take(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		name := keys(t, fakeClockServer, prefix)[0]
		if _, err := fakeClockServer.Command("PERSIST", name); err != nil {
			t.Fatal(err)
		}
		_, err := store.Take(t.Context(), request)
		ttl, _ := fakeClockServer.Command("PTTL", name)
		if err == nil && ttl == "-1" {
			t.Errorf("%s: a state without expiry was charged and left as it is", l)
		}
		if err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%s: got %v, want %v", l, err, penstock.ErrUnavailable)
		}
		if _, err := fakeClockServer.Command("DEL", name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAlignedWindowRestoresExpiry(t *testing.T) {
	now := time.Date(2033, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, l := range everyAlgorithm {
		if l.Align == penstock.AlignFirst {
			continue
		}
		prefix := newPrefix()
		store := openFakeClock(t, redisstore.Options{Prefix: prefix})
		request := penstock.Request{Key: "k", Limit: l, Cost: 4}
		fakeClockServer.Clock.Set(now)
		take(t, store, request)
		name := keys(t, fakeClockServer, prefix)[0]
		if _, err := fakeClockServer.Command("PERSIST", name); err != nil {
			t.Fatal(err)
		}
		if d := take(t, store, request); d.Remaining != 2 || d.ResetAfter <= 0 {
			t.Errorf("%s, without expiry: got %+v, want 2 left until the window ends", l, d)
		}
		fakeClockServer.Clock.Set(now.Add(24 * time.Hour))
		if d := take(t, store, request); d.Remaining != 6 {
			t.Errorf("%s, a day later: got %+v, want 6 left", l, d)
		}
		if ttl, err := fakeClockServer.Command("PTTL", name); err != nil || ttl == "-1" {
			t.Errorf("%s, a day later: expires in %s ms, %v, want it to expire", l, ttl, err)
		}
	}
}

// Every key expires soon after its state has become irrelevant.
func TestStoreEveryKeyExpires(t *testing.T) {
	for _, l := range everyAlgorithm {
		prefix := newPrefix()
		store := openFakeClock(t, redisstore.Options{Prefix: prefix})
		for _, r := range []penstock.Request{
			{Cost: 3}, {Cost: 2, ID: "x"}, {Cost: 9, MaxDelay: time.Minute}, {Cost: -1}, {Cost: -1, ID: "x"}, {Cost: 100, AtMost: true},
		} {
			r.Key, r.Limit = "k", l
			if _, err := store.Take(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			for _, name := range keys(t, fakeClockServer, prefix) {
				left, err := fakeClockServer.Command("PTTL", name)
				if err != nil {
					t.Fatal(err)
				}
				ttl, err := time.ParseDuration(left + "ms")
				if most := 2*l.Normal().Period + time.Second; err != nil || ttl <= 0 || ttl > most {
					t.Errorf("%s, cost %d: %s lives for %v, want more than nothing and at most %v", l, r.Cost, name, ttl, most)
				}
			}
		}
		if got := len(keys(t, fakeClockServer, prefix)); got != 2 {
			t.Errorf("%s: got %d keys, want a state and a record", l, got)
		}
	}
}

// A key with a foreign value is decided by the second store, and the first stays up.
func TestFallbackForeignKeyKeepsStoreUp(t *testing.T) {
	prefix := newPrefix()
	store := openFakeClock(t, redisstore.Options{Prefix: prefix})
	fallback := penstock.WithFallback(store, nil, &penstock.FallbackOptions{Timeout: longTimeout})
	request := penstock.Request{Key: "foreign", Limit: penstock.PerHour(1000), Cost: 1}
	take(t, fallback, request)
	if _, err := fakeClockServer.Command("SET", keys(t, fakeClockServer, prefix)[0], "hello", "PX", "600000"); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if d := take(t, fallback, request); d.Source != penstock.SourceFallback {
			t.Fatalf("got %+v for a foreign key, want it from the second store", d)
		}
	}
	request.Key = "other"
	if d := take(t, fallback, request); d.Source != penstock.SourceStore {
		t.Errorf("another key: got %+v, want it from the store", d)
	}
	if down, _ := fallback.Down(); down != 0 {
		t.Errorf("%d shards are down", down)
	}
}
