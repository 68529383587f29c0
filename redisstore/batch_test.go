package redisstore_test

import (
	"context"
	"errors"
	"fmt"
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

// Requests that come together share a script. None of them is to notice. That they
// are decided as memory decides them, TestStoreAgreesWithMemory shows.

// requestsFor returns the same request about each of several keys.
func requestsFor(l penstock.Limit, cost int64, keys ...string) (rs []penstock.Request) {
	for _, key := range keys {
		rs = append(rs, penstock.Request{Key: key, Limit: l, Cost: cost})
	}
	return rs
}

func TestBatchConcurrentCallsShareScript(t *testing.T) {
	const callers, each = 64, 50
	for _, l := range slowLimits {
		server := startServer(t, redistest.Options{})
		store := openURL(t, "redis://"+server.Addr, generous)
		var asked, admitted int
		var mu sync.Mutex
		for asked == 0 || infoCounter(t, "cmdstat_evalsha", server) >= asked { // until some have met
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range each {
						d, err := store.Take(context.Background(), penstock.Request{Key: "k", Limit: l, Cost: 1})
						mu.Lock()
						asked, admitted = asked+1, admitted+int(d.Granted)
						mu.Unlock()
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		}
		if admitted != burst {
			t.Errorf("%s: %d admitted, want %d", l, admitted, burst)
		}
	}
}

// Who asks for more than those who are about to leave is charged for what it asks.
func TestBatchKeepsCostsApart(t *testing.T) {
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

func TestBatchSkipsCanceledCallers(t *testing.T) {
	store := open(t, liveServer, redisstore.Options{})
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
			t.Errorf("%s: nobody was there any more, and got %v", l, errs)
		}
	}
}

// Nor is who goes away while the others wait for their turn.
func TestBatchSkipsCallersCanceledInQueue(t *testing.T) {
	server := startServer(t, redistest.Options{})
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: generous, MaxCalls: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := slowLimits[0]
	take(t, store, penstock.Request{Key: "z", Limit: l})
	pauseServer(t, server)
	var wg sync.WaitGroup
	wg.Go(func() { take(t, store, penstock.Request{Key: "z", Limit: l}) })
	waitFor(t, "it has the only place", func() bool { return goroutineIn("redisstore.(*rueidisClient).Do(") })
	hurried, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		ds, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"), hurried)
		if !errors.Is(errs[0], context.Canceled) || errs[1] != nil || !ds[1].Allowed {
			t.Errorf("got %+v, %v, want one to be gone", ds, errs)
		}
	})
	waitFor(t, "the others wait", func() bool { return goroutineIn("redisstore.(*inflightLimiter).acquire(") })
	cancel()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if d := take(t, store, penstock.Request{Key: "a", Limit: l}); d.Remaining != burst {
		t.Errorf("%d left, want %d: it was gone before anybody was asked", d.Remaining, burst)
	}
}

// goroutineIn reports whether a function is under way.
func goroutineIn(function string) bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}

// What is wrong with one key is that one's error, and nobody is charged twice.
func TestBatchForeignValueFailsOneKey(t *testing.T) {
	for _, foreign := range [][]string{{"SET", "", "hello"}, {"RPUSH", "", "a"}} {
		for _, l := range everyAlgorithm {
			prefix := newPrefix()
			store := open(t, liveServer, redisstore.Options{Prefix: prefix})
			take(t, store, penstock.Request{Key: "b", Limit: l, Cost: 1})
			name := keys(t, liveServer, prefix)[0]
			foreign[1] = name
			for _, words := range [][]string{{"DEL", name}, foreign, {"PEXPIRE", name, "60000"}} {
				if _, err := liveServer.Command(words...); err != nil {
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
				look := take(t, store, penstock.Request{Key: key, Limit: l})
				if errs[i] != nil || ds[i].Remaining != 7 || look.Remaining != 7 {
					t.Errorf("%s, %q: got %+v, %v and then %+v, want 7 left of 10", l, foreign, ds[i], errs[i], look)
				}
			}
		}
	}
}

// A caller whose clock is wrong sends the wrong windows of a calendar.
func TestBatchUsesServerClock(t *testing.T) {
	store := open(t, fakeClockServer, redisstore.Options{})
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

// Whoever leaves early, or has less time than others, does not wait for them; and
// all are told in time.
func TestBatchHungServerHonorsEachDeadline(t *testing.T) {
	server := startServer(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, 500*time.Millisecond)
	l := slowLimits[3]
	waitFor(t, "it works", func() bool {
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
	wg.Wait() // for ever, if one is forgotten
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it works again", func() bool {
		_, errs := store.TakeBatched(requestsFor(l, 1, "a", "b"))
		return errors.Join(errs...) == nil
	})
}

// What looks like one server may be several behind a proxy. Here it is a node of a
// Cluster, which says so in the same words.
func TestStoreProxiedClusterDisablesBatching(t *testing.T) {
	server := startServer(t, redistest.Options{Args: []string{"--cluster-enabled", "yes"}})
	mustCommand(t, server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	waitFor(t, "it is a Cluster of one", func() bool {
		text, err := server.Command("CLUSTER", "INFO")
		return err == nil && strings.Contains(text, "cluster_state:ok")
	})
	store, err := redisstore.New(proxyClient{newAppClient(t, server), "redis_version:7.0.0"}, &redisstore.Options{Timeout: generous})
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

// A proxyClient says of the servers behind it what it likes.
type proxyClient struct {
	appClient
	info string
}

func (c proxyClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"proxy": c.info}, nil
}

// Some proxies send a script to wherever its first key is, and say nothing of the others.
// Who does not say in INFO what it is may be one.
func TestStoreUnknownServerDisablesBatching(t *testing.T) {
	const callers, each = 64, 20
	client := &countingClient{appClient: newAppClient(t, liveServer)}
	store, err := redisstore.New(&anonymousClient{client}, &redisstore.Options{Timeout: generous, Prefix: newPrefix()})
	if err != nil {
		t.Fatal(err)
	}
	takeConcurrently(t, store, slowLimits[0], callers, each)
	if got := client.most.Load(); got != 1 {
		t.Errorf("%d keys in one script, want 1", got)
	}
}

// A anonymousClient does not tell who is behind it.
type anonymousClient struct{ *countingClient }

func (anonymousClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"redis": ""}, nil
}

// A user may be denied some keys. Those who ask about others do not notice.
func TestBatchForbiddenKeyFailsOneKey(t *testing.T) {
	server := startServer(t, redistest.Options{})
	mustCommand(t, server, append([]string{"ACL", "SETUSER", "limiter", "on", ">secret", "~p{a}*", "~p{c}*", "-@all", "+info"}, requiredCommands...)...)
	store := openPrefix(t, "redis://limiter:secret@"+server.Addr, "p", generous)
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
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return appClient{client}
}

// A script about many long states would keep everybody else waiting, and perhaps take
// longer than any of those have who wait for it.
func TestBatchLongStatesLimitBatchSize(t *testing.T) {
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
		store, err := redisstore.New(client, &redisstore.Options{Timeout: generous, Prefix: newPrefix()})
		if err != nil {
			t.Fatal(err)
		}
		takeConcurrently(t, store, c.limit, callers, each)
		if got := client.most.Load(); got > c.most {
			t.Errorf("%s: %d keys in one script, want at most %d", c.limit, got, c.most)
		}
	}
}

// takeConcurrently has callers take at the same time, each from a key of its own.
func takeConcurrently(t *testing.T, store *redisstore.Store, l penstock.Limit, callers, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				if _, err := store.Take(context.Background(), penstock.Request{Key: fmt.Sprint(i), Limit: l, Cost: 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A countingClient remembers how many keys a script was about at most.
type countingClient struct {
	appClient
	most atomic.Int64
}

func (c *countingClient) Do(ctx context.Context, calls []redisstore.Call) {
	for i := range calls {
		n := int64(len(calls[i].Keys))
		for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		}
	}
	c.appClient.Do(ctx, calls)
}

// Those in a coach share the deadline of the first, so none boards who came long
// after it.
func TestBatchRejectsLateCalls(t *testing.T) {
	store := open(t, liveServer, redisstore.Options{})
	request := penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1}
	for before, want := range map[time.Duration]bool{0: true, time.Millisecond: true, 2 * time.Millisecond: false} {
		if got, err := store.Joins(request, before); err != nil || got != want {
			t.Errorf("%v after the first: boards %t, %v, want %t", before, got, err, want)
		}
	}
}
