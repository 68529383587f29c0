package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// TestStoreAgreesWithMemory compares batches of TakeAlls and TakeEachs with memory.

// takeAllOf returns one request for each limit, on keys that begin with a name.
func takeAllOf(name string, cost int64, limits ...penstock.Limit) (rs []penstock.Request) {
	for i, l := range limits {
		rs = append(rs, penstock.Request{Key: fmt.Sprint(name, i), Limit: l, Cost: cost})
	}
	return rs
}

// decisionsFor returns room for the decisions on several TakeAlls.
func decisionsFor(all [][]penstock.Request) [][]penstock.Decision {
	ds := make([][]penstock.Decision, len(all))
	for i := range all {
		ds[i] = make([]penstock.Decision, len(all[i]))
	}
	return ds
}

// batchedAlgorithms are the limits of everyAlgorithm whose takes need no ID.
func batchedAlgorithms() []penstock.Limit {
	return slices.DeleteFunc(slices.Clone(everyAlgorithm), func(l penstock.Limit) bool { return l.Algorithm == penstock.Concurrent })
}

// A value that no limit wrote fails its own TakeAll and charges none of its keys. The
// others in the batch do not notice.
func TestTakeAllBatchForeignValueFailsOneCall(t *testing.T) {
	for _, foreign := range [][]string{{"SET", "", "hello"}, {"SET", "", "1e0"}, {"SET", "", "-1e00"}, {"RPUSH", "", "a"}} {
		for _, l := range batchedAlgorithms() {
			prefix := newPrefix()
			store := openFakeClock(t, redisstore.Options{Prefix: prefix})
			take(t, store, penstock.Request{Key: "b1", Limit: l, Cost: 1})
			name := keys(t, fakeClockServer, prefix)[0]
			foreign[1] = name
			for _, words := range [][]string{{"DEL", name}, foreign, {"PEXPIRE", name, "60000"}} {
				if _, err := fakeClockServer.Command(words...); err != nil {
					t.Fatal(err)
				}
			}
			all := [][]penstock.Request{takeAllOf("a", 3, l, l), takeAllOf("b", 3, l, l), takeAllOf("c", 3, l, l)}
			ds := decisionsFor(all)
			errs, grouped := store.TakeAllBatched(all, ds)
			if !grouped || !errors.Is(errs[1], penstock.ErrUnavailable) || !strings.Contains(errs[1].Error(), name) {
				t.Errorf("%s, %q: got %+v, %v, want an error that names the key", l, foreign, ds[1], errs[1])
			}
			for key, want := range map[string]int64{"a0": 7, "a1": 7, "b0": 10, "c0": 7, "c1": 7} {
				if d := take(t, store, penstock.Request{Key: key, Limit: l}); d.Remaining != want {
					t.Errorf("%s, %q, key %s: %d left, want %d", l, foreign, key, d.Remaining, want)
				}
			}
			if errs[0] != nil || errs[2] != nil || ds[0][1].Remaining != 7 || ds[2][1].Remaining != 7 {
				t.Errorf("%s, %q: got %+v, %v, want the others granted", l, foreign, ds, errs)
			}
		}
	}
}

// Concurrent TakeAlls share scripts. Those that have a key in common are granted exactly
// what it holds, and a denied one charges nothing.
func TestTakeAllConcurrentCallsShareScript(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	limits := []penstock.Limit{slowLimits[0], slowLimits[2].WithName("own")}
	limits[1].Count *= 1000
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	const callers, each = 64, 20
	calls, granted, own := 0, int64(0), make([]atomic.Int64, callers)
	for calls == 0 || infoCounter(t, "cmdstat_evalsha", server) >= calls { // until some shared a script
		granted += takeAllConcurrently(t, store, callers, each, func(caller int) []penstock.Request {
			return []penstock.Request{{Key: "common", Limit: limits[0], Cost: 1}, {Key: fmt.Sprint(caller), Limit: limits[1], Cost: 1}}
		}, own)
		calls += callers * each
	}
	if granted != burst {
		t.Errorf("%d granted, want %d", granted, burst)
	}
	for caller := range callers {
		d := take(t, store, penstock.Request{Key: fmt.Sprint(caller), Limit: limits[1]})
		if want := limits[1].Count - own[caller].Load(); d.Remaining != want {
			t.Errorf("caller %d: %d left, want %d", caller, d.Remaining, want)
		}
	}
}

// takeAllConcurrently makes TakeAlls from several goroutines, and returns how many were
// granted, also by caller.
func takeAllConcurrently(t *testing.T, store *redisstore.Store, callers, each int, requests func(caller int) []penstock.Request, own []atomic.Int64) int64 {
	t.Helper()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			ds := make([]penstock.Decision, 5)
			for range each {
				rs := requests(i)
				if err := store.TakeAll(context.Background(), rs, ds); err != nil {
					t.Error(err)
				} else if allAllowed(ds[:len(rs)]) {
					granted.Add(1)
					own[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	return granted.Load()
}

func allAllowed(ds []penstock.Decision) bool {
	return !slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
}

// Equal keys in one request add up, and many descriptors are decided as few are.
func TestTakeAllEqualKeysAndManyDescriptors(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	for _, l := range batchedAlgorithms() {
		twice := requestsFor(l, 3, "a", "b", "a")
		ds := make([]penstock.Decision, 64)
		for i, want := range []bool{true, false} { // 6 of 10, and then 12
			if err := store.TakeAll(t.Context(), twice, ds); err != nil || allAllowed(ds[:3]) != want {
				t.Errorf("%s, call %d: got %+v, %v, want %t", l, i, ds[:3], err, want)
			}
		}
		many := make([]penstock.Request, 64)
		for i := range many {
			many[i] = penstock.Request{Key: fmt.Sprint("many", i), Limit: l, Cost: 10}
		}
		for i, want := range []bool{true, false} {
			if err := store.TakeAll(t.Context(), many, ds); err != nil || allAllowed(ds) != want {
				t.Errorf("%s, %d descriptors, call %d: got %+v, %v, want %t", l, len(many), i, ds[0], err, want)
			}
		}
		for key, want := range map[string]int64{"a": 4, "b": 7, "many63": 0} {
			if d := take(t, store, penstock.Request{Key: key, Limit: l}); d.Remaining != want {
				t.Errorf("%s, key %s: %d left, want %d", l, key, d.Remaining, want)
			}
		}
	}
}

// A caller with a wrong clock sends the wrong calendar windows, and the batch is sent again.
func TestTakeAllBatchUsesServerClock(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	fakeClockServer.Clock.Set(time.Date(2036, 5, 6, 7, 8, 9, 0, time.UTC)) // not what this process believes
	l := penstock.Limit{Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay}
	all := [][]penstock.Request{takeAllOf("a", 1, l, penstock.PerHour(10)), takeAllOf("b", 1, l, penstock.PerHour(10))}
	ds := decisionsFor(all)
	errs, grouped := store.TakeAllBatched(all, ds)
	if err := errors.Join(errs...); err != nil || !grouped {
		t.Fatal(err, grouped)
	}
	want := 16*time.Hour + 51*time.Minute + 51*time.Second
	if ds[0][0].ResetAfter != want || ds[1][0].ResetAfter != want || !allAllowed(ds[1]) {
		t.Errorf("got %+v, want the windows to end in %v", ds, want)
	}
}

// A caller that leaves before its batch is sent leaves nothing of its limits to the others.
func TestGroupBatchSkipsCanceledCallers(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, l := range batchedAlgorithms() {
		store := openFakeClock(t, redisstore.Options{})
		narrow, wide := l, l
		narrow.Name, narrow.Count, narrow.Burst, wide.Name = "narrow", 5, 0, "wide"
		for name, batched := range map[string]takeBatched{"all": store.TakeAllBatched, "each": store.TakeEachBatched} {
			all := [][]penstock.Request{takeAllOf(name+"gone", 3, wide, wide), takeAllOf(name+"here", 1, narrow, narrow)}
			ds := decisionsFor(all)
			errs, grouped := batched(all, ds, gone)
			if !grouped || !errors.Is(errs[0], context.Canceled) || errs[1] != nil || !allAllowed(ds[1]) {
				t.Fatal(l, grouped, errs, ds)
			}
			for _, r := range all[0] {
				if d := take(t, store, penstock.Request{Key: r.Key, Limit: wide}); d.Remaining != wide.Capacity() {
					t.Errorf("%s, %s, key %s: %d left, want all", l, name, r.Key, d.Remaining)
				}
			}
			for _, r := range all[1] {
				if d := take(t, store, penstock.Request{Key: r.Key, Limit: narrow}); d.Remaining != 4 {
					t.Errorf("%s, %s, key %s: %d left, want 4", l, name, r.Key, d.Remaining)
				}
			}
		}
	}
}

// TakeAlls under different limits share a script if their steps are the same. Each is decided by
// its own limits, in the order of the calls under them.
func TestTakeAllBatchMixesLimits(t *testing.T) {
	for _, l := range batchedAlgorithms() {
		store := openFakeClock(t, redisstore.Options{})
		narrow, wide := l, l
		narrow.Name, narrow.Count, narrow.Burst, wide.Name = "narrow", 2, 0, "wide"
		of := func(key string, limits ...penstock.Limit) []penstock.Request { return takeAllOf(key, 1, limits...) }
		all := [][]penstock.Request{
			of("a", narrow, wide), of("b", wide, wide), of("a", narrow, wide), of("c", wide, narrow), of("a", narrow, wide), of("b", wide, wide),
		}
		ds := decisionsFor(all)
		errs, grouped := store.TakeAllBatched(all, ds)
		if err := errors.Join(errs...); err != nil || !grouped {
			t.Fatal(l, err, grouped)
		}
		for i, want := range []bool{true, true, true, true, false, true} {
			if allAllowed(ds[i]) != want {
				t.Errorf("%s, call %d: got %+v, want allowed to be %t", l, i, ds[i], want)
			}
		}
		for key, want := range map[string]int64{"a1": 8, "b0": 8, "b1": 8, "c0": 9} {
			if d := take(t, store, penstock.Request{Key: key, Limit: wide}); d.Remaining != want {
				t.Errorf("%s, key %s: %d left, want %d", l, key, d.Remaining, want)
			}
		}
	}
}

// The windows of one set of limits do not contain the server's time, and the key of another
// holds a value that no limit wrote. Those are sent again, and all others are charged once.
func TestTakeAllBatchOfMixedLimitsFailsOneByOne(t *testing.T) {
	prefix := newPrefix()
	store := openFakeClock(t, redisstore.Options{Prefix: prefix})
	fakeClockServer.Clock.Set(time.Date(2035, 5, 6, 7, 8, 9, 0, time.UTC)) // not what this process believes
	hourly := penstock.Limit{Name: "hourly", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Hour, Align: penstock.AlignClock}
	twice := hourly
	twice.Name, twice.Count = "twice", 20
	daily := penstock.Limit{Name: "daily", Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay}
	take(t, store, penstock.Request{Key: "x1", Limit: twice, Cost: 1})
	foreign := keys(t, fakeClockServer, prefix)[0]
	if _, err := fakeClockServer.Command("SET", foreign, "hello", "PX", "60000"); err != nil {
		t.Fatal(err)
	}
	for _, order := range [][]string{{"h", "d", "x", "t"}, {"t", "x", "d", "h"}, {"d", "h", "t", "x"}, {"x", "t", "h", "d"}} {
		var all [][]penstock.Request
		for _, kind := range slices.Concat(order, order) {
			l := map[string]penstock.Limit{"h": hourly, "d": daily, "x": twice, "t": twice}[kind]
			all = append(all, takeAllOf(kind, 1, l, l))
		}
		errs, grouped := store.TakeAllBatched(all, decisionsFor(all))
		for i, err := range errs {
			if isForeign := all[i][0].Key == "x0"; !grouped || isForeign != errors.Is(err, penstock.ErrUnavailable) || !isForeign && err != nil {
				t.Errorf("%v, call for %s: got %v, %t", order, all[i][0].Key, err, grouped)
			}
		}
	}
	for key, want := range map[string]penstock.Request{
		"h0": {Limit: hourly, Cost: 2}, "h1": {Limit: hourly, Cost: 2}, "d0": {Limit: daily, Cost: 2}, "d1": {Limit: daily, Cost: 2},
		"t0": {Limit: twice, Cost: 12}, "t1": {Limit: twice, Cost: 12}, "x0": {Limit: twice, Cost: 20},
	} {
		if d := take(t, store, penstock.Request{Key: key, Limit: want.Limit}); d.Remaining != want.Cost {
			t.Errorf("key %s: %d left, want %d", key, d.Remaining, want.Cost)
		}
	}
}

// Every algorithm fits into the largest script: Lua bounds the variables of a function.
func TestTakeAllLargestScriptsCompile(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	for name, batched := range map[string]takeBatched{"all": store.TakeAllBatched, "each": store.TakeEachBatched} {
		for _, l := range batchedAlgorithms() {
			all := [][]penstock.Request{takeAllOf(name+l.String(), 1, l, l, l, l, l)}
			ds := decisionsFor(all)
			if errs, grouped := batched(all, ds); !grouped || errs[0] != nil || !allAllowed(ds[0]) {
				t.Errorf("%s, %s: got %+v, %v, %t, want all allowed", name, l, ds[0], errs, grouped)
			}
		}
	}
}

// A value that no limit wrote fails the request on its key. The other requests of the call
// are decided and charged once.
func TestTakeEachForeignValueFailsOneRequest(t *testing.T) {
	limits := batchedAlgorithms()
	for n := range 3 * len(limits) {
		at, l := n%3, limits[n/3]
		prefix := newPrefix()
		store := openFakeClock(t, redisstore.Options{Prefix: prefix})
		take(t, store, penstock.Request{Key: fmt.Sprint("b", at), Limit: l, Cost: 1})
		name := keys(t, fakeClockServer, prefix)[0]
		for _, words := range [][]string{{"DEL", name}, {"SET", name, "hello", "PX", "60000"}} {
			if _, err := fakeClockServer.Command(words...); err != nil {
				t.Fatal(err)
			}
		}
		ds := make([]penstock.Decision, 3)
		err := store.TakeEach(t.Context(), takeAllOf("b", 3, l, l, l), ds)
		failed, foreign := new(penstock.RequestError), new(penstock.KeyError)
		if !errors.As(err, &failed) || !errors.As(err, &foreign) || failed.Index != at || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error of request %d that names the key", l, err, at)
		}
		for i, d := range ds {
			if i == at && d != (penstock.Decision{}) {
				t.Errorf("%s: got %+v beside the error of request %d, want the zero Decision", l, d, i)
			}
			if i == at {
				continue
			}
			if now := take(t, store, penstock.Request{Key: fmt.Sprint("b", i), Limit: l}); !d.Allowed || d.Remaining != 7 || now.Remaining != 7 {
				t.Errorf("%s, request %d: got %+v and then %d left, want 3 of 10 charged", l, i, d, now.Remaining)
			}
		}
	}
}

// Concurrent TakeEachs share scripts, and each of their requests is granted exactly what its
// key holds, whatever the others of the call are.
func TestTakeEachConcurrentCallsShareScript(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	limits := []penstock.Limit{slowLimits[0], slowLimits[2].WithName("own")}
	limits[1].Count *= 1000
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	const callers, each = 64, 20
	calls, granted := 0, atomic.Int64{}
	for calls == 0 || infoCounter(t, "cmdstat_evalsha", server) >= calls { // until some shared a script
		var wg sync.WaitGroup
		for caller := range callers {
			wg.Go(func() {
				rs := []penstock.Request{{Key: "common", Limit: limits[0], Cost: 1}, {Key: fmt.Sprint(caller), Limit: limits[1], Cost: 1}}
				ds := make([]penstock.Decision, len(rs))
				for range each {
					if err := store.TakeEach(context.Background(), rs, ds); err != nil || !ds[1].Allowed {
						t.Errorf("got %+v, %v, want the request on a key of its own allowed", ds, err)
					}
					granted.Add(ds[0].Granted)
				}
			})
		}
		wg.Wait()
		calls += callers * each
	}
	if granted.Load() != burst {
		t.Errorf("%d granted of the common key, want %d", granted.Load(), burst)
	}
	for caller := range callers {
		d := take(t, store, penstock.Request{Key: fmt.Sprint(caller), Limit: limits[1]})
		if want := limits[1].Count - int64(calls/callers); d.Remaining != want {
			t.Errorf("caller %d: %d left, want %d", caller, d.Remaining, want)
		}
	}
}
