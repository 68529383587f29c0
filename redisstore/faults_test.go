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

// Each of these tests breaks a real server or the network, checks that the fault
// happened, and counts the units admitted.

func TestStoreEmptyRestartAdmitsOneMoreBurst(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	c := startLoad(t, openURL(t, "redis://"+server.Addr, shortTimeout))
	c.waitAnswers(t, 3000)
	before := killAndRestart(t, c, server)
	c.closeAndDrain(t)
	c.check(t, 0, 2*burst)
	if after := infoField(t, server, "run_id"); after == before || c.failed.Load() == 0 || infoCounter(t, "errorstat_NOSCRIPT", server) == 0 {
		t.Errorf("run id %s, then %s; %d calls failed; %d NOSCRIPT errors: the server was not restarted empty",
			before, after, c.failed.Load(), infoCounter(t, "errorstat_NOSCRIPT", server))
	}
	checkExpiry(t, server)
}

// killAndRestart kills a server under load and starts it again.
func killAndRestart(t *testing.T, c *load, server *redistest.Server) (id string) {
	t.Helper()
	id = infoField(t, server, "run_id")
	server.Kill()
	failed := c.failed.Load()
	waitFor(t, "calls fail", func() bool { return c.failed.Load() > failed })
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	c.waitAnswers(t, 1000)
	return id
}

// With any other fsync policy Redis may answer before it has written, or wait for the
// disk; a killed process loses nothing that it has written.
func TestStoreAOFRestartLosesNothing(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--appendonly", "yes", "--appendfsync", "no")
	c := startLoad(t, openURL(t, "redis://"+server.Addr, shortTimeout))
	c.waitAnswers(t, 3000)
	before := killAndRestart(t, c, server)
	c.closeAndDrain(t)
	c.check(t, 0, burst)
	if after := infoField(t, server, "run_id"); after == before {
		t.Errorf("run id %s before and after: the server was not killed", after)
	}
	checkExpiry(t, server)
}

// Calls wait within their deadlines while a restarted server is loading, and no
// state is lost.
func TestStoreWaitsForLoadingServer(t *testing.T) {
	t.Parallel()
	// Loading takes two minutes unless the test shortens the delay for each key, and
	// the server answers after each key.
	server := startServer(t,
		"--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
	url, prefix := "redis://"+server.Addr, newPrefix()
	quick, patient := openPrefix(t, url, prefix, 500*time.Millisecond), openPrefix(t, url, prefix, longTimeout)
	r := penstock.Request{Key: "k", Limit: slowLimits[2], Cost: 10, ID: "before"}
	before := take(t, patient, r)
	mustCommand(t, server, "EVAL", "for i = 1, 12000 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	mustCommand(t, server, "SAVE")
	server.Kill()
	restarted := make(chan error, 1)
	go func() { restarted <- server.Restart() }()

	waitFor(t, "an error says LOADING", func() bool {
		_, err := quick.Take(t.Context(), takeOne)
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("a server that is loading: got %v, want %v", err, penstock.ErrUnavailable)
		}
		return strings.Contains(err.Error(), "LOADING") && strings.Contains(err.Error(), server.Addr)
	})
	finishLoading := func() { mustCommand(t, server, "CONFIG", "SET", "key-load-delay", "0") }
	r.ID = "after"
	if d := takeWhileRejected(t, patient, server, "LOADING", r, finishLoading); d.Remaining != before.Remaining-r.Cost {
		t.Errorf("after waiting for the server %d remain, want %d", d.Remaining, before.Remaining-r.Cost)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the other store recovers", func() bool { _, err := quick.Take(t.Context(), takeOne); return err == nil })
	checkExpiry(t, server)
}

// takeWhileRejected starts a call, waits until the server has rejected calls with an
// error, ends the fault and returns the decision.
func takeWhileRejected(t *testing.T, store *redisstore.Store, server *redistest.Server, code string, r penstock.Request, end func()) penstock.Decision {
	t.Helper()
	before := infoCounter(t, "errorstat_"+code, server)
	decided := make(chan penstock.Decision, 1)
	go func() {
		d, err := store.Take(context.Background(), r)
		if err != nil {
			t.Error(err)
		}
		decided <- d
	}()
	waitFor(t, "calls are rejected", func() bool { return infoCounter(t, "errorstat_"+code, server) > before })
	end()
	return <-decided
}

// hangTime is how long callers keep calling a hung server: a second, or PENSTOCK_HANG,
// for instance 1m.
func hangTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PENSTOCK_HANG")
	if text == "" {
		return time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Calls to a hung server end with their timeout. A call that waited for the
// connection instead would take connTimeout, far beyond the bound checked here.
func TestStoreHungServerHonorsTimeout(t *testing.T) {
	const callers, timeout, connTimeout = 2000, 50 * time.Millisecond, time.Hour
	const slack = connTimeout / 2
	server := startServer(t)
	store := openOptions(t, "redis://"+server.Addr, redisstore.Options{Timeout: timeout}.WithConnTimeout(connTimeout))
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1 << 40, Period: 24 * time.Hour}, Cost: 1}
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	mustCommand(t, server, "CONFIG", "RESETSTAT")
	before := runtime.NumGoroutine()
	pauseServer(t, server)
	stats := callHungServer(store, r, callers, hangTime(t))
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the store recovers", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	t.Logf("hung for %v: %d calls, %d granted, slowest %v, at most %d goroutines (%d before)", hangTime(t),
		stats.calls.Load(), stats.granted.Load(), time.Duration(stats.slowest.Load()), stats.goroutines.Load(), before)
	if stats.granted.Load() != 0 {
		t.Errorf("%d calls were granted by a hung server", stats.granted.Load())
	}
	if got := time.Duration(stats.slowest.Load()); got > timeout+slack {
		t.Errorf("slowest call: %v, want at most the timeout of %v and %v for a busy machine", got, timeout, slack)
	}
	// Callers, their timers when all fire at once, batches, and the calls in flight.
	if got, want := stats.goroutines.Load(), int64(before+3*callers+2048+100); got > want {
		t.Errorf("%d goroutines at once, want at most %d", got, want)
	}
	waitFor(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+20 })
	executed := infoCounter(t, "cmdstat_evalsha", server)
	if bound := int(stats.calls.Load()) + 100; executed > bound {
		t.Errorf("%d calls were executed late, of %d: some were repeated", executed, bound)
	}
}

// hangStats are measurements of many callers of a hung server.
type hangStats struct {
	calls, granted, slowest, goroutines atomic.Int64
}

func callHungServer(store *redisstore.Store, r penstock.Request, callers int, howLong time.Duration) *hangStats {
	h := &hangStats{}
	ctx, cancel := context.WithTimeout(context.Background(), howLong)
	defer cancel()
	var wg sync.WaitGroup
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

// storeMax raises a maximum.
func storeMax(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

func TestStoreSlowServerWithinTimeout(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, longTimeout)
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

// A call may take longer than an idle connection may be silent, both when the caller
// reads the reply itself and when replies are read in the background.
func TestStoreTimeoutOutlastsSilentConnection(t *testing.T) {
	for name, c := range map[string]struct {
		callers int // more than one make the client read replies in the background
		delay   time.Duration
	}{"one call": {1, 1500 * time.Millisecond}, "pipelined calls": {64, 3500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startServer(t).Addr)
			store := openOptions(t, "redis://"+p.Addr, redisstore.Options{Timeout: longTimeout})
			p.Delay(20 * time.Millisecond) // so that the calls overlap
			takeConcurrently(t, store, c.callers, 1, ownLimit)
			p.Delay(c.delay)
			take(t, store, takeOne)
		})
	}
}

// The replies come after all calls have timed out, and the store recovers.
func TestStoreSlowServerBeyondTimeoutFails(t *testing.T) {
	t.Parallel()
	const timeout, delay = 50 * time.Millisecond, time.Hour
	server := startServer(t)
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
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, shortTimeout)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1}
	waitFor(t, "a connection is frozen", func() bool { // on a busy machine the last one may have been closed
		p.Thaw()
		_, err := store.Take(t.Context(), r)
		return err == nil && p.Freeze() > 0
	})
	if _, err := store.Take(t.Context(), r); err == nil {
		t.Error("a call on a half-open connection was answered")
	}
	p.Thaw()
	waitFor(t, "the store reconnects", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

// A server may hang in the middle of a handshake.
func TestStoreHalfAnsweredHandshakeHonorsTimeout(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openOptions(t, "redis://"+p.Addr, redisstore.Options{Timeout: 100 * time.Millisecond})
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1, ID: "x"}
	p.Rewrite(func(b []byte) []byte { return b[:1] })
	p.CutAll()
	ended := make(chan error)
	go func() {
		_, err := store.Take(t.Context(), r)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("got %v, want %v", err, penstock.ErrUnavailable)
		}
	case <-time.After(longTimeout):
		t.Fatal("the call waits for a server that has answered the first byte of a handshake")
	}
	p.Rewrite(nil)
	waitFor(t, "a new connection is made", func() bool {
		_, err := store.Take(t.Context(), r)
		return err == nil
	})
}

// The connection is cut after each byte of the reply. The store cannot know whether
// the call was executed and must not repeat it.
func TestStoreCutReplyChargesAtMostOnce(t *testing.T) {
	t.Parallel()
	checkCuts(t, "", func(t *testing.T, k int, err error, evals int, d penstock.Decision) {
		if err == nil {
			t.Errorf("cut after %d bytes: got %+v, want an error", k, d)
		}
		if evals != 1 {
			t.Errorf("cut after %d bytes: the script ran %d times, want once", k, evals)
		}
	})
}

// A call with an ID is repeated and charged once.
func TestStoreCutReplyWithIDIsRetried(t *testing.T) {
	t.Parallel()
	checkCuts(t, "id", func(t *testing.T, k int, err error, evals int, d penstock.Decision) {
		if err != nil || !d.Allowed || d.Granted != 3 {
			t.Errorf("cut after %d bytes: got %+v, %v, want 3 granted", k, d, err)
		}
		if evals != 2 {
			t.Errorf("cut after %d bytes: the script ran %d times, want twice", k, evals)
		}
	})
}

// A TakeAll whose reply is lost is charged for all keys or none.
func TestStoreCutReplyTakeAllIsAtomic(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, longTimeout)
	store.KeepSpread()
	ds := make([]penstock.Decision, 2)
	call := func(key string, cost int64) error {
		rs := []penstock.Request{{Key: key, Limit: slowLimits[0], Cost: cost}, {Key: key, Limit: slowLimits[2], Cost: cost}}
		return penstock.TakeAll(t.Context(), store, rs, ds)
	}
	for _, key := range []string{"loads the script", "measures the reply"} {
		if err := call(key, 3); err != nil {
			t.Fatal(err)
		}
	}
	whole := p.ReplyLength()
	for k := range whole {
		mustCommand(t, server, "CONFIG", "RESETSTAT")
		p.CutReplyAfter(k, false)
		if err := call(strconv.Itoa(k), 3); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("cut after %d bytes: got error %v, want %v", k, err, penstock.ErrUnavailable)
		}
		if n := infoCounter(t, "cmdstat_evalsha", server); n != 1 {
			t.Errorf("cut after %d bytes: the script ran %d times, want once", k, n)
		}
		if err := call(strconv.Itoa(k), 0); err != nil || ds[0].Remaining != ds[1].Remaining || ds[0].Remaining < burst-3 {
			t.Errorf("cut after %d bytes: %+v, %v, want both charged or none", k, ds, err)
		}
	}
	if n := p.Cuts(); n != whole || whole == 0 {
		t.Errorf("%d connections were cut, want %d", n, whole)
	}
}

// checkCuts cuts connections with FIN and with RST.
func checkCuts(t *testing.T, id string, check func(*testing.T, int, error, int, penstock.Decision)) {
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cutEverywhere(t, reset, id, check)
		})
	}
}

// cutEverywhere makes a call for each byte of its reply and cuts the connection
// there.
func cutEverywhere(t *testing.T, reset bool, id string, check func(*testing.T, int, error, int, penstock.Decision)) {
	t.Helper()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openPrefix(t, "redis://"+p.Addr, "cut", longTimeout)
	store.KeepSpread()
	direct := openPrefix(t, "redis://"+server.Addr, "cut", longTimeout)
	charged, tried := 0, 0
	for i, limit := range slowLimits {
		whole := replyLength(t, p, store, penstock.Request{Key: "warm", Limit: limit, Cost: 3, ID: id})
		for k := range whole {
			r := penstock.Request{Key: strconv.Itoa(i) + "-" + strconv.Itoa(k), Limit: limit, Cost: 3, ID: id}
			mustCommand(t, server, "CONFIG", "RESETSTAT")
			p.CutReplyAfter(k, reset)
			d, err := store.Take(t.Context(), r)
			check(t, k, err, infoCounter(t, "cmdstat_evalsha", server), d)
			peek := penstock.Request{Key: r.Key, Limit: limit}
			// The next call must not get the rest of the last reply.
			now, err := store.Take(t.Context(), peek)
			if err != nil {
				t.Fatalf("after a cut at byte %d: %v", k, err)
			}
			if want, err := direct.Take(t.Context(), peek); err != nil || now.Remaining != want.Remaining || now.Remaining < burst-3 {
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

// replyLength returns the length of the reply to a request whose script is loaded.
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
	t.Parallel()
	server := startServer(t)
	c := startLoad(t, openURL(t, "redis://"+server.Addr, longTimeout))
	for range 50 {
		flushScripts(t, server)
		c.waitAnswers(t, 2*loadClients)
	}
	c.closeAndDrain(t)
	c.checkNoFailures(t)
	checkExpiry(t, server)
}

func TestStoreOutOfMemoryServerStillDenies(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory-policy", "noeviction")
	store := openURL(t, "redis://"+server.Addr, longTimeout)
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
			t.Errorf("%s: a peek without memory: got %+v, %v, want %d remaining", l, d, err, burst/2)
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
		t.Error("the server was never out of memory")
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
