package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// Odd requests among others that could share their scripts: each alone gets its error, and
// the others do not notice.
func TestStoreOddRequestsFailAlone(t *testing.T) {
	t.Parallel()
	prefix := newPrefix()
	checkOddRequests(t, open(t, liveServer, redisstore.Options{Prefix: prefix}), prefix, liveServer)
}

// oddLimits are the limits of all calls, in this order, so that they can share scripts.
var oddLimits = []penstock.Limit{
	{Count: oddCount, Period: oddPeriod, Name: "odd"},
	{Algorithm: penstock.FixedWindow, Count: oddCount, Period: oddPeriod, Name: "odd"},
	{Algorithm: penstock.SlidingWindow, Count: oddCount, Period: oddPeriod, Name: "odd"},
}

const (
	oddCount  = 10_000
	oddPeriod = 365 * 24 * time.Hour // a bucket gains no unit meanwhile
	oddCalls  = 10                   // of each caller
)

// An oddCaller makes calls, and tells what is wrong with their results.
type oddCaller struct {
	name     string
	each     bool // TakeEach instead of TakeAll
	requests func(call int) []penstock.Request
	problem  func(ds []penstock.Decision, err error) string
	charged  func(key string) int64 // of its keys, when it has ended
	keys     []string
}

// checkOddRequests makes odd and plain calls at the same time.
func checkOddRequests(t *testing.T, store *redisstore.Store, prefix string, servers ...*redistest.Server) {
	callers := []oddCaller{manyDescriptors(), equalKeys(), newKeys(), emptyKey(), foreignValue(t, store, prefix, false, servers), foreignValue(t, store, prefix, true, servers)}
	for i := range 4 {
		callers = append(callers, plainCaller(fmt.Sprint("plain", i, "-"), false), plainCaller(fmt.Sprint("each", i, "-"), true))
	}
	var wg sync.WaitGroup
	for _, c := range callers {
		wg.Go(func() { c.run(t, store) })
	}
	wg.Wait()
	for _, c := range callers {
		for i, key := range c.keys {
			l := oddLimits[i%len(oddLimits)]
			if d := take(t, store, penstock.Request{Key: key, Limit: l}); d.Remaining != oddCount-c.charged(key) {
				t.Errorf("%s, key %s under %s: %d charged, want %d", c.name, key, l, oddCount-d.Remaining, c.charged(key))
			}
		}
	}
}

func (c *oddCaller) run(t *testing.T, store *redisstore.Store) {
	take := store.TakeAll
	if c.each {
		take = store.TakeEach
	}
	for call := range oddCalls {
		rs := c.requests(call)
		ds := make([]penstock.Decision, len(rs))
		if problem := c.problem(ds, take(context.Background(), rs, ds)); problem != "" {
			t.Errorf("%s: %s", c.name, problem)
		}
	}
}

// oddRequests returns a request for each key, under the limits in turn.
func oddRequests(keys ...string) (rs []penstock.Request) {
	for i, key := range keys {
		rs = append(rs, penstock.Request{Key: key, Limit: oddLimits[i%len(oddLimits)], Cost: 1})
	}
	return rs
}

// wantGranted tells what is wrong unless all requests are granted.
func wantGranted(ds []penstock.Decision, err error) string {
	if err != nil || !allAllowed(ds) {
		return fmt.Sprintf("got %+v, %v, want all granted", ds, err)
	}
	return ""
}

func plainCaller(name string, each bool) oddCaller {
	keys := []string{name + "0", name + "1", name + "2"}
	return oddCaller{
		name: name, each: each, keys: keys, problem: wantGranted,
		requests: func(int) []penstock.Request { return oddRequests(keys...) },
		charged:  func(string) int64 { return oddCalls },
	}
}

func manyDescriptors() oddCaller {
	var keys []string
	for i := range 64 {
		keys = append(keys, fmt.Sprint("many", i))
	}
	return oddCaller{
		name: "64 descriptors", keys: keys, problem: wantGranted,
		requests: func(int) []penstock.Request { return oddRequests(keys...) },
		charged:  func(string) int64 { return oddCalls },
	}
}

// equalKeys has a key twice, under the same limit.
func equalKeys() oddCaller {
	return oddCaller{
		name: "equal keys", keys: []string{"twice", "once"}, problem: wantGranted,
		requests: func(int) []penstock.Request {
			rs := oddRequests("twice", "once", "")
			rs[2] = rs[0]
			return rs
		},
		charged: func(key string) int64 { return map[string]int64{"twice": 2, "once": 1}[key] * oddCalls },
	}
}

// newKeys has a key in each call that no call had before.
func newKeys() oddCaller {
	return oddCaller{
		name: "new keys", keys: []string{"old"},
		requests: func(call int) []penstock.Request { return oddRequests("old", fmt.Sprint("new", call)) },
		problem: func(ds []penstock.Decision, err error) string {
			if err == nil && ds[1].Remaining != oddCount-1 {
				return fmt.Sprintf("a new key: got %+v, want one unit charged", ds[1])
			}
			return wantGranted(ds, err)
		},
		charged: func(string) int64 { return oddCalls },
	}
}

// emptyKey has a key that is not valid, so that nothing is charged.
func emptyKey() oddCaller {
	return oddCaller{
		name: "an empty key", keys: []string{"beside"},
		requests: func(int) []penstock.Request { return oddRequests("beside", "") },
		problem: func(_ []penstock.Decision, err error) string {
			if !errors.Is(err, penstock.ErrBadKey) {
				return fmt.Sprintf("got %v, want %v", err, penstock.ErrBadKey)
			}
			return ""
		},
		charged: func(string) int64 { return 0 },
	}
}

// foreignValue has a key with a value that no limit wrote. It charges the others only if they
// are independent of it.
func foreignValue(t *testing.T, store *redisstore.Store, prefix string, each bool, servers []*redistest.Server) oddCaller {
	t.Helper()
	name := fmt.Sprintf("foreign-%t-", each)
	keys := []string{name + "0", name + "1", name + "2"}
	take(t, store, penstock.Request{Key: keys[1], Limit: oddLimits[1], Cost: 1})
	stored := overwrite(t, prefix, keys[1], servers)
	return oddCaller{
		name: name, each: each, keys: keys[:1],
		requests: func(int) []penstock.Request { return oddRequests(keys...) },
		problem: func(_ []penstock.Decision, err error) string {
			if k := new(penstock.KeyError); !errors.As(err, &k) || !strings.Contains(err.Error(), stored) {
				return fmt.Sprintf("got %v, want an error about %s", err, stored)
			}
			return ""
		},
		charged: func(string) int64 {
			if each {
				return oddCalls
			}
			return 0
		},
	}
}

// overwrite replaces the state of a key by a foreign value, and returns its name in Redis.
func overwrite(t *testing.T, prefix, key string, servers []*redistest.Server) string {
	t.Helper()
	for _, server := range servers {
		if names := strings.Fields(mustCommand(t, server, "KEYS", prefix+"{"+key+"}*")); len(names) > 0 {
			mustCommand(t, server, "SET", names[0], "hello", "PX", "6000000")
			return names[0]
		}
	}
	t.Fatalf("key %s has no state", key)
	return ""
}

// A blockedClient holds its first call until it is released, and reports the others.
type blockedClient struct {
	appClient
	calls    atomic.Int64
	blocked  chan struct{} // closed when the first call has come
	released chan struct{}
	keys     atomic.Int64 // of the calls after the first
}

func (c *blockedClient) Do(ctx context.Context, calls []redisstore.Call) {
	if isProbe(calls) {
		c.appClient.Do(ctx, calls)
		return
	}
	if c.calls.Add(1) == 1 {
		close(c.blocked)
		<-c.released
	} else {
		for i := range calls {
			c.keys.Add(int64(len(calls[i].Keys)))
		}
	}
	c.appClient.Do(ctx, calls)
}

// Calls do not wait for a script in flight, only for the one that they share: no call waits for
// more than one script longer than alone.
func TestBatchDoesNotWaitForScriptInFlight(t *testing.T) {
	const others = 20
	rs := oddRequests("a", "b", "c")
	for name, take := range map[string]func(*redisstore.Store) error{
		"Take": func(s *redisstore.Store) error { _, err := s.Take(context.Background(), rs[0]); return err },
		"TakeAll": func(s *redisstore.Store) error {
			return s.TakeAll(context.Background(), rs, make([]penstock.Decision, len(rs)))
		},
		"TakeEach": func(s *redisstore.Store) error {
			return s.TakeEach(context.Background(), rs, make([]penstock.Decision, len(rs)))
		},
	} {
		client := &blockedClient{appClient: newAppClient(t, liveServer), blocked: make(chan struct{}), released: make(chan struct{})}
		store, err := redisstore.New(client, &redisstore.Options{Prefix: newPrefix(), Timeout: longTimeout})
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 1+others)
		go func() { errs <- take(store) }()
		<-client.blocked
		for range others {
			go func() { errs <- take(store) }()
		}
		for range others {
			if err := <-errs; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if client.keys.Load() == 0 {
			t.Errorf("%s: no other call was made", name)
		}
		close(client.released)
		if err := <-errs; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No script has more than 64 steps, however many keys its calls have, so that none blocks
// others for longer.
func TestTakeAllBatchesHaveBoundedScripts(t *testing.T) {
	t.Parallel()
	client := &countingClient{appClient: newAppClient(t, liveServer)}
	store, err := redisstore.New(client, &redisstore.Options{Prefix: newPrefix(), Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for caller := range 100 {
		wg.Go(func() {
			name := fmt.Sprint(caller, "-")
			rs := oddRequests(name+"0", name+"1", name+"2", name+"3", name+"4")
			for range 5 {
				if err := store.TakeAll(context.Background(), rs, make([]penstock.Decision, len(rs))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most := client.most.Load(); most > 64 {
		t.Errorf("a script has %d keys, want at most 64", most)
	}
}
