package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// TestStoreAgreesWithMemory compares batched decisions with memory.

// requestsFor returns the same request for several keys.
func requestsFor(l penstock.Limit, cost int64, keys ...string) (rs []penstock.Request) {
	for _, key := range keys {
		rs = append(rs, penstock.Request{Key: key, Limit: l, Cost: cost})
	}
	return rs
}

func TestBatchConcurrentCallsShareScript(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, l := range slowLimits {
		store := openURL(t, "redis://"+server.Addr, longTimeout)
		mustCommand(t, server, "CONFIG", "RESETSTAT")
		calls, admitted := 0, int64(0)
		for calls == 0 || infoCounter(t, "cmdstat_evalsha", server) >= calls { // until some calls shared a script
			const callers, each = 64, 50
			admitted += takeConcurrently(t, store, callers, each, func(int) penstock.Request {
				return penstock.Request{Key: "k", Limit: l, Cost: 1}
			})
			calls += callers * each
		}
		if admitted != burst {
			t.Errorf("%s: %d admitted, want %d", l, admitted, burst)
		}
	}
}

// A call joins only a batch of its own cost.
func TestBatchKeepsCostsApart(t *testing.T) {
	t.Parallel()
	const callers, each = 60, 50
	store := open(t, liveServer, redisstore.Options{})
	l := penstock.PerHour(1_000_000).WithAlgorithm(penstock.FixedWindow)
	var wg sync.WaitGroup
	for i := range callers {
		r := penstock.Request{Key: fmt.Sprint(i), Limit: l, Cost: int64(1 + i%3)}
		wg.Go(func() {
			for n := range int64(each) {
				want := l.Count - (n+1)*r.Cost
				if d, err := store.Take(context.Background(), r); err != nil || d.Remaining != want {
					t.Errorf("cost %d: got %+v, %v, want %d left", r.Cost, d, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Callers that take and release permits share scripts, each with an ID of its own.
func TestBatchPermitsShareScript(t *testing.T) {
	t.Parallel()
	const callers, each, permits = 64, 50, 5
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	limit := penstock.Limit{Algorithm: penstock.Concurrent, Count: permits, Period: time.Hour}
	var held [3]atomic.Int64
	for calls := 0; calls == 0 || infoCounter(t, "cmdstat_evalsha", server) >= calls; { // until some calls shared a script
		var wg sync.WaitGroup
		var released atomic.Int64
		for i := range callers {
			wg.Go(func() {
				for n := range each {
					key := i % len(held)
					r := penstock.Request{Key: fmt.Sprint(key), Limit: limit, Cost: 1, ID: fmt.Sprintf("%d-%d", i, n)}
					if holdPermit(t, store, r, &held[key], permits) {
						released.Add(1)
					}
				}
			})
		}
		wg.Wait()
		calls += callers*each + int(released.Load())
	}
}

// holdPermit takes a permit and releases it, and reports whether there was one.
func holdPermit(t *testing.T, store *redisstore.Store, r penstock.Request, held *atomic.Int64, most int64) bool {
	t.Helper()
	d, err := store.Take(context.Background(), r)
	if err != nil {
		t.Error(err)
	}
	if !d.Allowed {
		return false
	}
	if n := held.Add(1); n > most {
		t.Errorf("%d permits held, want at most %d", n, most)
	}
	held.Add(-1)
	r.Cost = -1
	if d, err := store.Take(context.Background(), r); err != nil || d.Granted != -1 {
		t.Errorf("release of %s: %+v, %v, want one permit", r.ID, d, err)
	}
	return true
}

// A take joins only a batch of takes, and each gets the decision about its own ID.
func TestBatchPermitsKeepIDsApart(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	limit := penstock.Limit{Algorithm: penstock.Concurrent, Count: 2, Period: time.Hour}
	request := func(key, id string, cost int64) penstock.Request {
		return penstock.Request{Key: key, Limit: limit, Cost: cost, ID: id}
	}
	grants := func(rs ...penstock.Request) (granted []int64) {
		ds, errs := store.TakeBatched(rs)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			granted = append(granted, d.Granted)
		}
		return granted
	}
	if got, want := grants(request("a", "1", 1), request("b", "1", 1), request("a", "2", 1), request("a", "3", 1), request("a", "1", 1)), []int64{1, 1, 1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("takes: granted %d, want %d", got, want)
	}
	if got, want := grants(request("a", "2", -1), request("b", "2", -1), request("a", "2", -1), request("a", "1", -1)), []int64{-1, 0, 0, -1}; !slices.Equal(got, want) {
		t.Errorf("releases: granted %d, want %d", got, want)
	}
	if got, want := grants(request("a", "4", 1), request("a", "5", 1), request("b", "4", 1), request("b", "5", 1)), []int64{1, 1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("takes after that: granted %d, want %d", got, want)
	}
}

// Takes under IDs share a script whatever they cost, and so do their settlements. Each is charged
// once, also if it is repeated.
func TestBatchSharesScriptUnderIDs(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store := openURL(t, "redis://"+server.Addr, longTimeout)
	l := penstock.PerHour(1_000_000).WithAlgorithm(penstock.FixedWindow)
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	calls, charged := 0, int64(0)
	for round := 0; calls == 0 || infoCounter(t, "cmdstat_evalsha", server) >= calls; round++ { // until some calls shared a script
		const callers, each = 32, 20
		var sum atomic.Int64
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for n := range each {
					r := penstock.Request{Key: "k", Limit: l, Cost: int64(1 + c%3), ID: fmt.Sprint(round, " ", c, " ", n)}
					settle := r
					settle.Cost, settle.Settle = int64(n%4), true
					for _, r := range []penstock.Request{r, r, settle, settle} {
						if d, err := store.Take(context.Background(), r); err != nil || d.Granted != r.Cost {
							t.Errorf("%+v: got %+v, %v", r, d, err)
							return
						}
					}
					sum.Add(settle.Cost)
				}
			})
		}
		wg.Wait()
		charged += sum.Load()
		calls += 4 * callers * each
		if t.Failed() {
			return
		}
	}
	if d := take(t, store, penstock.Request{Key: "k", Limit: l}); d.Remaining != l.Count-charged {
		t.Errorf("%d left, want %d", d.Remaining, l.Count-charged)
	}
}

func TestBatchSkipsCanceledCallers(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	here := context.Background()
	for _, l := range everyAlgorithm {
		rs := requestsFor(l, 1, "a", "b", "c")
		ds, errs := store.TakeBatched(rs, here, gone, here)
		if !errors.Is(errs[1], context.Canceled) || errors.Is(errs[1], penstock.ErrUnavailable) {
			t.Errorf("%s: got %+v, %v, want %v", l, ds[1], errs[1], context.Canceled)
		}
		for i, want := range []int64{9, 10, 9} {
			if d := take(t, store, penstock.Request{Key: rs[i].Key, Limit: l}); d.Remaining != want {
				t.Errorf("%s, key %s: %d left, want %d", l, rs[i].Key, d.Remaining, want)
			}
		}
		_, errs = store.TakeBatched(rs, gone, gone, gone)
		if slices.Contains(errs, nil) {
			t.Errorf("%s: all callers were canceled, and got %v", l, errs)
		}
	}
}

// A caller that is canceled while its batch waits for a slot is not charged.
func TestBatchSkipsCallersCanceledInQueue(t *testing.T) {
	server := startServer(t)
	store := openOptions(t, "redis://"+server.Addr, redisstore.Options{Timeout: longTimeout, MaxCalls: 1}.WithConnTimeout(longConnTimeout))
	l := slowLimits[0]
	take(t, store, penstock.Request{Key: "z", Limit: l})
	pauseServer(t, server)
	var wg sync.WaitGroup
	wg.Go(func() { take(t, store, penstock.Request{Key: "z", Limit: l}) })
	waitFor(t, "the call has the only slot", func() bool { return goroutineIn("redisstore.(*rueidisClient).Do(") })
	hurried, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		ds, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"), hurried)
		if !errors.Is(errs[0], context.Canceled) || errs[1] != nil || !ds[1].Allowed {
			t.Errorf("got %+v, %v, want only the first canceled", ds, errs)
		}
	})
	waitFor(t, "the batch waits for a slot", func() bool { return goroutineIn("redisstore.(*inflightLimiter).acquire(") })
	cancel()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if d := take(t, store, penstock.Request{Key: "a", Limit: l}); d.Remaining != burst {
		t.Errorf("%d left, want %d: it was canceled before the call was sent", d.Remaining, burst)
	}
}

// goroutineIn reports whether a goroutine is in a function.
func goroutineIn(function string) bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}

// A foreign value fails its own key only, and no key is charged twice.
func TestBatchForeignValueFailsOneKey(t *testing.T) {
	for _, foreign := range [][]string{{"SET", "", "hello"}, {"RPUSH", "", "a"}} {
		for _, l := range everyAlgorithm {
			prefix := newPrefix()
			store := openFakeClock(t, redisstore.Options{Prefix: prefix})
			take(t, store, penstock.Request{Key: "b", Limit: l, Cost: 1})
			name := keys(t, fakeClockServer, prefix)[0]
			foreign[1] = name
			for _, words := range [][]string{{"DEL", name}, foreign, {"PEXPIRE", name, "60000"}} {
				if _, err := fakeClockServer.Command(words...); err != nil {
					t.Fatal(err)
				}
			}
			ds, errs := store.TakeBatched(requestsFor(l, 3, "a", "b", "c"))
			if !errors.Is(errs[1], penstock.ErrUnavailable) || !strings.Contains(errs[1].Error(), name) {
				t.Errorf("%s, %q: got %+v, %v, want an error that names the key", l, foreign, ds[1], errs[1])
			}
			for i, key := range []string{0: "a", 2: "c"} {
				if key == "" {
					continue
				}
				peek := take(t, store, penstock.Request{Key: key, Limit: l})
				if errs[i] != nil || ds[i].Remaining != 7 || peek.Remaining != 7 {
					t.Errorf("%s, %q: got %+v, %v and then %+v, want 7 left of 10", l, foreign, ds[i], errs[i], peek)
				}
			}
		}
	}
}

// A caller with a wrong clock sends the wrong calendar window, and the batch is sent
// again.
func TestBatchUsesServerClock(t *testing.T) {
	store := openFakeClock(t, redisstore.Options{})
	fakeClockServer.Clock.Set(time.Date(2037, 5, 6, 7, 8, 9, 0, time.UTC)) // not what this process believes
	l := penstock.Limit{Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay}
	for range 2 {
		ds, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if want := 16*time.Hour + 51*time.Minute + 51*time.Second; ds[0].ResetAfter != want || ds[1].ResetAfter != want {
			t.Errorf("got %+v, want the windows to end in %v", ds, want)
		}
	}
	if d := take(t, store, penstock.Request{Key: "b", Limit: l}); d.Remaining != 8 {
		t.Errorf("%d left, want 8 of 10 after two takes", d.Remaining)
	}
}

// Each call in a batch ends with its own deadline.
func TestBatchHungServerHonorsEachDeadline(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	// A connection that is closed for its silence would end calls with another error.
	store := openOptions(t, "redis://"+server.Addr, redisstore.Options{Timeout: 500 * time.Millisecond}.WithConnTimeout(longConnTimeout))
	l := slowLimits[3]
	waitFor(t, "the store is warm", func() bool {
		_, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"))
		return errors.Join(errs...) == nil
	})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	hurried, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 200 {
		ctx, want := context.Background(), penstock.ErrUnavailable
		if i%2 == 0 {
			ctx, want = hurried, context.DeadlineExceeded
		}
		wg.Go(func() {
			if d, err := store.Take(ctx, penstock.Request{Key: fmt.Sprint(i), Limit: l, Cost: 1}); !errors.Is(err, want) {
				t.Errorf("caller %d: got %+v, %v, want %v", i, d, err, want)
			}
		})
	}
	wg.Wait()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the store recovers", func() bool {
		_, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"))
		return errors.Join(errs...) == nil
	})
}

// A caller whose context has ended when its batch fails gets the error of its context, as
// it would from a call of its own: the store is not to blame.
func TestBatchBlamesCallersThatHaveLeft(t *testing.T) {
	left, leave := context.WithCancel(context.Background())
	client := &failingClient{before: leave}
	store, err := redisstore.New(client, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // both the result of the batch and the end of the context are ready
		_, errs := store.TakeBatched(requestsFor(slowLimits[0], 1, "a", "b"), left)
		if !errors.Is(errs[0], context.Canceled) || errors.Is(errs[0], penstock.ErrUnavailable) {
			t.Errorf("the caller that has left: got %v, want %v", errs[0], context.Canceled)
		}
		if !errors.Is(errs[1], penstock.ErrUnavailable) || errors.Is(errs[1], context.Canceled) {
			t.Errorf("the other caller: got %v, want %v", errs[1], penstock.ErrUnavailable)
		}
		left, leave = context.WithCancel(context.Background())
		client.before = leave
	}
	leave()
}

// A failingClient does something and loses every reply.
type failingClient struct{ before func() }

func (c *failingClient) Do(_ context.Context, calls []redisstore.Call) {
	if isProbe(calls) {
		for i := range calls {
			calls[i].Reply = []int64{1}
		}
		return
	}
	c.before()
	for i := range calls {
		calls[i].Err = errors.New("the reply was lost")
	}
}

func (*failingClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"redis": "redis_version:7.0.0\r\n"}, nil
}

func (*failingClient) Sharded() bool { return false }

// One address can stand for several servers behind a proxy. Here it is a Cluster node,
// which returns the same errors.
func TestStoreProxiedClusterDisablesBatching(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--cluster-enabled", "yes")
	mustCommand(t, server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	waitFor(t, "the Cluster is up", func() bool {
		text, err := server.Command("CLUSTER", "INFO")
		return err == nil && strings.Contains(text, "cluster_state:ok")
	})
	store, err := redisstore.New(proxyClient{newAppClient(t, server), "redis_version:7.0.0"}, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for round := range int64(2) {
		ds, errs := store.TakeBatched(requestsFor(slowLimits[2], 1, "a", "b", "c"))
		for i, d := range ds {
			if errs[i] != nil || d.Remaining != burst-1-round {
				t.Errorf("round %d: got %+v, %v, want %d left", round, d, errs[i], burst-1-round)
			}
		}
	}
}

// A proxyClient reports its own INFO text.
type proxyClient struct {
	appClient
	info string
}

func (c proxyClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"proxy": c.info}, nil
}

// A user may lack permission for some keys. Calls for other keys succeed.
func TestBatchForbiddenKeyFailsOneKey(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	mustCommand(t, server, append([]string{"ACL", "SETUSER", "limiter", "on", ">secret", "~p{a}*", "~p{c}*", "~p:*", "-@all", "+info"}, requiredCommands...)...)
	store := openPrefix(t, "redis://limiter:secret@"+server.Addr, "p", longTimeout)
	for _, l := range slowLimits {
		ds, errs := store.TakeBatched(requestsFor(l, 1, "a", "b", "c"))
		for i, want := range []string{"", "NOPERM", ""} {
			if want == "" && (errs[i] != nil || ds[i].Remaining != burst-1) ||
				want != "" && (errs[i] == nil || !strings.Contains(errs[i].Error(), want)) {
				t.Errorf("%s, caller %d: got %+v, %v, want %q", l, i, ds[i], errs[i], want)
			}
		}
	}
}

func newAppClient(t *testing.T, server *redistest.Server) appClient {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr}, ForceSingleClient: true, DisableRetry: true, DisableCache: true,
		ConnWriteTimeout: longConnTimeout, Dialer: net.Dialer{Timeout: longConnTimeout},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return appClient{client}
}

// A script on many long states would block other clients, and could exceed the
// timeouts of its own calls.
func TestBatchLongStatesLimitBatchSize(t *testing.T) {
	t.Parallel()
	const callers, each = 64, 20
	for _, c := range []struct {
		limit penstock.Limit
		most  int64
	}{
		{penstock.Limit{Algorithm: penstock.RollingWindow, Count: 100, Period: time.Hour, Buckets: 1000}, 1},
		{penstock.Limit{Algorithm: penstock.RollingWindow, Count: 100, Period: time.Hour, Buckets: 10}, 16},
		{penstock.Limit{Algorithm: penstock.SlidingLog, Count: 10_000, Period: time.Hour}, 1},
		{penstock.Limit{Algorithm: penstock.SlidingLog, Count: 1_000, Period: time.Hour}, 9},
	} {
		client := &countingClient{appClient: newAppClient(t, liveServer)}
		store, err := redisstore.New(client, &redisstore.Options{Timeout: longTimeout, Prefix: newPrefix()})
		if err != nil {
			t.Fatal(err)
		}
		takeConcurrently(t, store, callers, each, ownKey(c.limit))
		if got := client.most.Load(); got > c.most {
			t.Errorf("%s: %d keys in one script, want at most %d", c.limit, got, c.most)
		}
	}
}

// takeConcurrently makes calls from several goroutines and returns the units granted.
func takeConcurrently(t *testing.T, store *redisstore.Store, callers, each int, request func(caller int) penstock.Request) int64 {
	t.Helper()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				d, err := store.Take(context.Background(), request(i))
				if err != nil {
					t.Error(err)
				}
				granted.Add(d.Granted)
			}
		})
	}
	wg.Wait()
	return granted.Load()
}

// ownKey gives each caller its own key.
func ownKey(l penstock.Limit) func(caller int) penstock.Request {
	return func(caller int) penstock.Request { return penstock.Request{Key: fmt.Sprint(caller), Limit: l, Cost: 1} }
}

// A countingClient records the largest number of keys in one script.
type countingClient struct {
	appClient
	most atomic.Int64
}

func (c *countingClient) Do(ctx context.Context, calls []redisstore.Call) {
	for i := range calls {
		n := int64(len(calls[i].Keys))
		if isProbe(calls) {
			n = 0
		}
		for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		}
	}
	c.appClient.Do(ctx, calls)
}

// In a crowd of callers the first call of a batch waits long for a processor. A call that comes much
// later sends its batch, and begins the next: sent alone, each would cost Redis as much as many of a batch.
func TestBatchLateCallBeginsTheNext(t *testing.T) {
	t.Parallel()
	store := open(t, liveServer, redisstore.Options{})
	request := penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1}
	for before, want := range map[time.Duration]bool{0: true, time.Millisecond: true, 2 * time.Millisecond: false} {
		if got, err := store.Joins(request, before); err != nil || got != want {
			t.Errorf("%v after the first: joins %t, %v, want %t", before, got, err, want)
		}
	}
}
