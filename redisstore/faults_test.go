package redisstore_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// Each of these tests does something to a real server or to the way there, shows
// that it happened, and counts what was admitted.

// generous is a deadline that no healthy server misses, however busy the machine.
const generous = 10 * time.Second

func TestStoreEmptyRestartAdmitsOneMoreBurst(t *testing.T) {
	server := startServer(t, redistest.Options{})
	c := startLoad(t, openURL(t, "redis://"+server.Addr, 50*time.Millisecond))
	c.waitAnswers(t, 3000)
	before := killAndRestart(t, c, server)
	c.closeAndDrain(t)
	c.check(t, 0, 2*burst)
	if after := infoField(t, server, "run_id"); after == before || c.failed.Load() == 0 || infoCounter(t, "errorstat_NOSCRIPT", server) == 0 {
		t.Errorf("run id %s, then %s; %d calls failed; %d scripts were unknown: the server was not lost",
			before, after, c.failed.Load(), infoCounter(t, "errorstat_NOSCRIPT", server))
	}
	checkExpiry(t, server)
}

// killAndRestart kills a server and starts it again, while a crowd asks.
func killAndRestart(t *testing.T, c *load, server *redistest.Server) (id string) {
	t.Helper()
	id = infoField(t, server, "run_id")
	server.Kill()
	failed := c.failed.Load()
	waitFor(t, "callers notice", func() bool { return c.failed.Load() > failed })
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	c.waitAnswers(t, 1000)
	return id
}

func TestStoreAOFRestartLosesNothing(t *testing.T) {
	server := startServer(t, redistest.Options{Args: []string{"--appendonly", "yes"}})
	c := startLoad(t, openURL(t, "redis://"+server.Addr, 50*time.Millisecond))
	c.waitAnswers(t, 3000)
	before := killAndRestart(t, c, server)
	c.closeAndDrain(t)
	c.check(t, 0, burst)
	if after := infoField(t, server, "run_id"); after == before {
		t.Errorf("run id %s before and after: the server was not killed", after)
	}
	checkExpiry(t, server)
}

// A server with much to remember says LOADING for a while when it comes back.
// Callers wait for it within their deadlines, and nothing is lost.
func TestStoreWaitsForLoadingServer(t *testing.T) {
	server := startServer(t, redistest.Options{Args: []string{
		// A second for a thousand keys, and somebody is answered after each of them.
		"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no",
	}})
	url, prefix := "redis://"+server.Addr, newPrefix()
	quick := openPrefix(t, url, prefix, 50*time.Millisecond)
	r := penstock.Request{Key: "k", Limit: slowLimits[2], Cost: 10}
	waitFor(t, "some is taken", func() bool { _, err := quick.Take(t.Context(), r); return err == nil })
	before := take(t, openPrefix(t, url, prefix, generous), r)
	mustCommand(t, server, "EVAL", "for i = 1, 1500 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	mustCommand(t, server, "SAVE")
	server.Kill()
	restarted := make(chan error)
	go func() { restarted <- server.Restart() }()

	waitFor(t, "callers are told why", func() bool {
		_, err := quick.Take(t.Context(), r)
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("a server that is loading: got %v, want %v", err, penstock.ErrUnavailable)
		}
		return strings.Contains(err.Error(), "LOADING") && strings.Contains(err.Error(), server.Addr)
	})
	if d := take(t, openPrefix(t, url, prefix, generous), r); d.Remaining != before.Remaining-r.Cost {
		t.Errorf("a caller who waited for the server has %d left, want %d", d.Remaining, before.Remaining-r.Cost)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the others recover by themselves", func() bool { _, err := quick.Take(t.Context(), r); return err == nil })
	if n := infoCounter(t, "errorstat_LOADING", server); n == 0 {
		t.Error("nobody met a server that was loading")
	}
	checkExpiry(t, server)
}

// hangTime is how long the server hangs: three seconds, or as PENSTOCK_HANG says,
// for instance 1m.
func hangTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PENSTOCK_HANG")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestStoreHungServerHonorsTimeout(t *testing.T) {
	const callers, timeout, slack = 2000, 50 * time.Millisecond, time.Second
	server := startServer(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, timeout)
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1 << 40, Period: 24 * time.Hour}, Cost: 1}
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	before := runtime.NumGoroutine()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	load := callHungServer(store, r, callers, hangTime(t))
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the store recovers by itself", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	t.Logf("hung for %v: %d calls, %d granted, slowest %v, at most %d goroutines (%d before)", hangTime(t),
		load.calls.Load(), load.granted.Load(), time.Duration(load.slowest.Load()), load.goroutines.Load(), before)
	if load.granted.Load() != 0 {
		t.Errorf("%d calls were granted by a server that hangs", load.granted.Load())
	}
	late := time.Duration(load.timerDelay.Load())
	if got := time.Duration(load.slowest.Load()); got > timeout+slack+4*late {
		t.Errorf("slowest call: %v, want at most the deadline of %v and some for a machine on which timers ring %v late", got, timeout, late)
	}
	// Callers, their timers when all ring at once, and the calls that may be under
	// way.
	if got, want := load.goroutines.Load(), int64(before+2*callers+2048+100); got > want {
		t.Errorf("%d goroutines at once, want at most %d", got, want)
	}
	waitFor(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+20 })
	ghosts := infoCounter(t, "cmdstat_evalsha", server)
	if bound := int(load.calls.Load()) + 100; ghosts > bound {
		t.Errorf("%d calls were carried out late, of %d: some were repeated", ghosts, bound)
	}
}

// A hangStats is many callers of a server that does not answer.
type hangStats struct {
	calls, granted, slowest, goroutines atomic.Int64
	timerDelay                          atomic.Int64 // rang timers that nobody hindered
}

func callHungServer(store *redisstore.Store, r penstock.Request, callers int, howLong time.Duration) *hangStats {
	h := &hangStats{}
	ctx, cancel := context.WithTimeout(context.Background(), howLong)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { h.measureTimerDelay(ctx) })
	}
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				d, err := store.Take(context.Background(), r)
				storeMax(&h.slowest, int64(time.Since(began)))
				storeMax(&h.goroutines, int64(runtime.NumGoroutine()))
				if h.calls.Add(1); err == nil {
					h.granted.Add(d.Granted)
				}
			}
		})
	}
	wg.Wait()
	return h
}

// measureTimerDelay measures how late timers ring, because the machine is busy.
func (h *hangStats) measureTimerDelay(ctx context.Context) {
	const gap = 20 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		<-time.After(gap)
		storeMax(&h.timerDelay, int64(time.Since(began)-gap))
	}
}

// storeMax raises a maximum.
func storeMax(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

func TestStoreSlowServerWithinTimeout(t *testing.T) {
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, generous)
	c := startLoad(t, store)
	c.waitAnswers(t, 200)
	p.Delay(30 * time.Millisecond)
	c.waitAnswers(t, 200)
	c.closeAndDrain(t)
	if c.slowest < 30*time.Millisecond {
		t.Errorf("the slowest call took %v: the proxy did not delay it", c.slowest)
	}
	c.checkNoFailures(t)
}

func TestStoreSlowServerBeyondTimeoutFails(t *testing.T) {
	const timeout, delay = 50 * time.Millisecond, 400 * time.Millisecond
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, timeout)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1}
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	p.Delay(delay)
	for range 5 {
		if _, err := store.Take(t.Context(), r); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("a reply after %v: got error %v, want one after %v", delay, err, timeout)
		}
	}
	p.Delay(0)
	waitFor(t, "the store recovers", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

func TestStoreDropsHalfOpenConnection(t *testing.T) {
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, 50*time.Millisecond)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1}
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	if p.Freeze() == 0 {
		t.Fatal("no connection to freeze")
	}
	if _, err := store.Take(t.Context(), r); err == nil {
		t.Error("a call on a connection that is half open was answered")
	}
	p.Thaw()
	waitFor(t, "the store connects again", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

// The connection is cut after each byte of the reply. Whether the call was carried
// out is then not known, and it must not be repeated.
func TestStoreCutReplyChargesAtMostOnce(t *testing.T) {
	for _, reset := range []bool{false, true} {
		cutEverywhere(t, reset, "", func(t *testing.T, k int, err error, evals int, d penstock.Decision) {
			if err == nil {
				t.Errorf("cut after %d bytes: got %+v, want an error", k, d)
			}
			if evals != 1 {
				t.Errorf("cut after %d bytes: the script ran %d times, want once", k, evals)
			}
		})
	}
}

// With an ID it is repeated, and still charged once.
func TestStoreCutReplyWithIDIsRetried(t *testing.T) {
	for _, reset := range []bool{false, true} {
		cutEverywhere(t, reset, "id", func(t *testing.T, k int, err error, evals int, d penstock.Decision) {
			if err != nil || !d.Allowed || d.Granted != 3 {
				t.Errorf("cut after %d bytes: got %+v, %v, want 3 granted", k, d, err)
			}
			if evals != 2 {
				t.Errorf("cut after %d bytes: the script ran %d times, want twice", k, evals)
			}
		})
	}
}

// Several together are charged all or none, also when nobody hears of it.
func TestStoreCutReplyTakeAllIsAtomic(t *testing.T) {
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, generous)
	ds := make([]penstock.Decision, 2)
	ask := func(key string, cost int64) error {
		rs := []penstock.Request{{Key: key, Limit: slowLimits[0], Cost: cost}, {Key: key, Limit: slowLimits[2], Cost: cost}}
		return penstock.TakeAll(t.Context(), store, rs, ds)
	}
	for _, key := range []string{"one that makes the script known", "one whose reply is measured"} {
		if err := ask(key, 3); err != nil {
			t.Fatal(err)
		}
	}
	whole := p.ReplyLength()
	for k := range whole {
		mustCommand(t, server, "CONFIG", "RESETSTAT")
		p.CutReplyAfter(k, false)
		if err := ask(strconv.Itoa(k), 3); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("cut after %d bytes: got error %v, want %v", k, err, penstock.ErrUnavailable)
		}
		if n := infoCounter(t, "cmdstat_evalsha", server); n != 1 {
			t.Errorf("cut after %d bytes: the script ran %d times, want once", k, n)
		}
		if err := ask(strconv.Itoa(k), 0); err != nil || ds[0].Remaining != ds[1].Remaining || ds[0].Remaining < burst-3 {
			t.Errorf("cut after %d bytes: %+v, %v, want both charged or none", k, ds, err)
		}
	}
	if n := p.Cuts(); n != whole || whole == 0 {
		t.Errorf("%d connections were cut, want %d", n, whole)
	}
}

// cutEverywhere makes a call for each byte of its reply, and cuts the connection
// there.
func cutEverywhere(t *testing.T, reset bool, id string, check func(*testing.T, int, error, int, penstock.Decision)) {
	t.Helper()
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openPrefix(t, "redis://"+p.Addr, "cut", generous)
	direct := openPrefix(t, "redis://"+server.Addr, "cut", generous)
	charged, tried := 0, 0
	for i, limit := range slowLimits {
		whole := replyLength(t, p, store, penstock.Request{Key: "warm", Limit: limit, Cost: 3, ID: id})
		for k := range whole {
			r := penstock.Request{Key: strconv.Itoa(i) + "-" + strconv.Itoa(k), Limit: limit, Cost: 3, ID: id}
			mustCommand(t, server, "CONFIG", "RESETSTAT")
			p.CutReplyAfter(k, reset)
			d, err := store.Take(t.Context(), r)
			check(t, k, err, infoCounter(t, "cmdstat_evalsha", server), d)
			look := penstock.Request{Key: r.Key, Limit: limit}
			// The next call must not get what was left of the last one's reply.
			now, err := store.Take(t.Context(), look)
			if err != nil {
				t.Fatalf("after a cut at byte %d: %v", k, err)
			}
			if want, err := direct.Take(t.Context(), look); err != nil || now.Remaining != want.Remaining || now.Remaining < burst-3 {
				t.Errorf("cut after %d bytes: %+v by the same store, %+v by another (%v), want at most one charge", k, now, want, err)
			}
			charged, tried = charged+int(burst-now.Remaining), tried+1
		}
	}
	if n := p.Cuts(); n != tried {
		t.Errorf("%d connections were cut, want %d", n, tried)
	}
	t.Logf("%d replies cut, reset %v, id %q: charged %d, bound %d", tried, reset, id, charged, 3*tried)
}

// replyLength returns how many bytes answer a request, once its script is known.
func replyLength(t *testing.T, p *redistest.Proxy, store *redisstore.Store, r penstock.Request) int {
	t.Helper()
	for i := range 2 {
		r.Key += strconv.Itoa(i)
		if _, err := store.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return p.ReplyLength()
}

func TestStoreReloadsFlushedScripts(t *testing.T) {
	server := startServer(t, redistest.Options{})
	c := startLoad(t, openURL(t, "redis://"+server.Addr, generous))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 50 {
		<-tick.C
		mustCommand(t, server, "SCRIPT", "FLUSH")
	}
	c.waitCalls(t, 100)
	c.closeAndDrain(t)
	c.checkNoFailures(t)
	if n := infoCounter(t, "errorstat_NOSCRIPT", server); n < 50 {
		t.Errorf("%d calls met an unknown script, want some for each of 50 flushes", n)
	}
	checkExpiry(t, server)
}

func TestStoreOutOfMemoryServerStillDenies(t *testing.T) {
	server := startServer(t, redistest.Options{Args: []string{"--maxmemory-policy", "noeviction"}})
	store := openURL(t, "redis://"+server.Addr, generous)
	take := func(key string, l penstock.Limit, cost int64, id string) (penstock.Decision, error) {
		return store.Take(t.Context(), penstock.Request{Key: key, Limit: l, Cost: cost, ID: id})
	}
	for _, l := range slowLimits {
		for key, cost := range map[string]int64{"used up": burst, "half": burst / 2} {
			if d, err := take(key, l, cost, ""); err != nil || !d.Allowed {
				t.Fatalf("%s: %+v, %v", l, d, err)
			}
		}
	}
	mustCommand(t, server, "CONFIG", "SET", "maxmemory", "1")
	for _, l := range slowLimits {
		if d, err := take("used up", l, 1, ""); err != nil || d.Allowed || d.RetryAfter == 0 {
			t.Errorf("%s: a denial without memory: got %+v, %v", l, d, err)
		}
		if d, err := take("half", l, 0, ""); err != nil || d.Remaining != burst/2 {
			t.Errorf("%s: a look without memory: got %+v, %v, want %d remaining", l, d, err, burst/2)
		}
		for _, id := range []string{"", "id"} {
			for _, key := range []string{"half", "new"} {
				if d, err := take(key, l, 1, id); err == nil || !strings.Contains(err.Error(), "OOM") {
					t.Errorf("%s: a take without memory, id %q: got %+v, %v, want an error that says OOM", l, id, d, err)
				}
			}
		}
	}
	if n := infoCounter(t, "errorstat_OOM", server); n == 0 {
		t.Error("the server never was out of memory")
	}
	mustCommand(t, server, "CONFIG", "SET", "maxmemory", "0")
	for _, l := range slowLimits {
		for key, want := range map[string]int64{"used up": 0, "half": burst / 2, "new": burst} {
			if d, err := take(key, l, 0, ""); err != nil || d.Remaining != want {
				t.Errorf("%s: %s key, when there is memory again: got %+v, %v, want %d remaining", l, key, d, err, want)
			}
		}
	}
	checkExpiry(t, server)
}
