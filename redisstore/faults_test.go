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

func TestEmptyRestartGivesOneMoreBurst(t *testing.T) {
	server := launch(t, redistest.Options{})
	c := gather(t, openURL(t, "redis://"+server.Addr, 50*time.Millisecond))
	c.answered(t, 3000)
	before := crash(t, c, server)
	c.disperse(t)
	c.judge(t, 0, 2*burst)
	if after := field(t, server, "run_id"); after == before || c.failed.Load() == 0 || stat(t, "errorstat_NOSCRIPT", server) == 0 {
		t.Errorf("run id %s, then %s; %d calls failed; %d scripts were unknown: the server was not lost",
			before, after, c.failed.Load(), stat(t, "errorstat_NOSCRIPT", server))
	}
	mortal(t, server)
}

// crash kills a server and starts it again, while a crowd asks.
func crash(t *testing.T, c *crowd, server *redistest.Server) (id string) {
	t.Helper()
	id = field(t, server, "run_id")
	server.Kill()
	failed := c.failed.Load()
	await(t, "callers notice", func() bool { return c.failed.Load() > failed })
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	c.answered(t, 1000)
	return id
}

func TestRestartWithAOFLosesNothing(t *testing.T) {
	server := launch(t, redistest.Options{Args: []string{"--appendonly", "yes"}})
	c := gather(t, openURL(t, "redis://"+server.Addr, 50*time.Millisecond))
	c.answered(t, 3000)
	before := crash(t, c, server)
	c.disperse(t)
	c.judge(t, 0, burst)
	if after := field(t, server, "run_id"); after == before {
		t.Errorf("run id %s before and after: the server was not killed", after)
	}
	mortal(t, server)
}

// A server with much to remember says LOADING for a while when it comes back.
// Callers wait for it within their deadlines, and nothing is lost.
func TestLoadingServerIsWaitedFor(t *testing.T) {
	server := launch(t, redistest.Options{Args: []string{
		// A second for a thousand keys, and somebody is answered after each of them.
		"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no",
	}})
	url, prefix := "redis://"+server.Addr, newPrefix()
	quick := openPrefix(t, url, prefix, 50*time.Millisecond)
	r := penstock.Request{Key: "k", Limit: slowLimits[2], Cost: 10}
	await(t, "some is taken", func() bool { _, err := quick.Take(t.Context(), r); return err == nil })
	before := take(t, openPrefix(t, url, prefix, generous), r)
	tell(t, server, "EVAL", "for i = 1, 1500 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	tell(t, server, "SAVE")
	server.Kill()
	restarted := make(chan error)
	go func() { restarted <- server.Restart() }()

	await(t, "callers are told why", func() bool {
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
	await(t, "the others recover by themselves", func() bool { _, err := quick.Take(t.Context(), r); return err == nil })
	if n := stat(t, "errorstat_LOADING", server); n == 0 {
		t.Error("nobody met a server that was loading")
	}
	mortal(t, server)
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

func TestHangKeepsNobodyWaiting(t *testing.T) {
	const callers, timeout, slack = 2000, 50 * time.Millisecond, time.Second
	server := launch(t, redistest.Options{})
	store := openURL(t, "redis://"+server.Addr, timeout)
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1 << 40, Period: 24 * time.Hour}, Cost: 1}
	await(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	tell(t, server, "CONFIG", "RESETSTAT")
	before := runtime.NumGoroutine()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	crowd := hang(store, r, callers, hangTime(t))
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, "the store recovers by itself", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	t.Logf("hung for %v: %d calls, %d granted, slowest %v, at most %d goroutines (%d before)", hangTime(t),
		crowd.calls.Load(), crowd.granted.Load(), time.Duration(crowd.slowest.Load()), crowd.goroutines.Load(), before)
	if crowd.granted.Load() != 0 {
		t.Errorf("%d calls were granted by a server that hangs", crowd.granted.Load())
	}
	late := time.Duration(crowd.late.Load())
	if got := time.Duration(crowd.slowest.Load()); got > timeout+slack+4*late {
		t.Errorf("slowest call: %v, want at most the deadline of %v and some for a machine on which timers ring %v late", got, timeout, late)
	}
	// Callers, their timers when all ring at once, and the calls that may be under
	// way.
	if got, want := crowd.goroutines.Load(), int64(before+2*callers+2048+100); got > want {
		t.Errorf("%d goroutines at once, want at most %d", got, want)
	}
	await(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+20 })
	ghosts := stat(t, "cmdstat_evalsha", server)
	if bound := int(crowd.calls.Load()) + 100; ghosts > bound {
		t.Errorf("%d calls were carried out late, of %d: some were repeated", ghosts, bound)
	}
}

// A hung is many callers of a server that does not answer.
type hung struct {
	calls, granted, slowest, goroutines atomic.Int64
	late                                atomic.Int64 // rang timers that nobody hindered
}

func hang(store *redisstore.Store, r penstock.Request, callers int, howLong time.Duration) *hung {
	h := &hung{}
	ctx, cancel := context.WithTimeout(context.Background(), howLong)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { h.listen(ctx) })
	}
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				d, err := store.Take(context.Background(), r)
				atMost(&h.slowest, int64(time.Since(began)))
				atMost(&h.goroutines, int64(runtime.NumGoroutine()))
				if h.calls.Add(1); err == nil {
					h.granted.Add(d.Granted)
				}
			}
		})
	}
	wg.Wait()
	return h
}

// listen measures how late timers ring, because the machine is busy.
func (h *hung) listen(ctx context.Context) {
	const gap = 20 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		<-time.After(gap)
		atMost(&h.late, int64(time.Since(began)-gap))
	}
}

// atMost raises a maximum.
func atMost(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

func TestSlowRedisAnswersWithinTheDeadline(t *testing.T) {
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, generous)
	c := gather(t, store)
	c.answered(t, 200)
	p.Delay(30 * time.Millisecond)
	c.answered(t, 200)
	c.disperse(t)
	if c.slowest < 30*time.Millisecond {
		t.Errorf("the slowest call took %v: the proxy did not delay it", c.slowest)
	}
	c.judgeCalm(t)
}

func TestTooSlowRedisIsAnError(t *testing.T) {
	const timeout, delay = 50 * time.Millisecond, 400 * time.Millisecond
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, timeout)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1}
	await(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	p.Delay(delay)
	for range 5 {
		if _, err := store.Take(t.Context(), r); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("a reply after %v: got error %v, want one after %v", delay, err, timeout)
		}
	}
	p.Delay(0)
	await(t, "the store recovers", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

func TestHalfOpenConnectionIsGivenUp(t *testing.T) {
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, 50*time.Millisecond)
	r := penstock.Request{Key: "k", Limit: penstock.PerHour(burst), Cost: 1}
	await(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	if p.Freeze() == 0 {
		t.Fatal("no connection to freeze")
	}
	if _, err := store.Take(t.Context(), r); err == nil {
		t.Error("a call on a connection that is half open was answered")
	}
	p.Thaw()
	await(t, "the store connects again", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

// The connection is cut after each byte of the reply. Whether the call was carried
// out is then not known, and it must not be repeated.
func TestCutReplyIsChargedOnceAtMost(t *testing.T) {
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
func TestCutReplyWithAnIDIsAnswered(t *testing.T) {
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
func TestCutReplyOfSeveralIsChargedForAllOrNone(t *testing.T) {
	server := launch(t, redistest.Options{})
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
		tell(t, server, "CONFIG", "RESETSTAT")
		p.CutReplyAfter(k, false)
		if err := ask(strconv.Itoa(k), 3); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("cut after %d bytes: got error %v, want %v", k, err, penstock.ErrUnavailable)
		}
		if n := stat(t, "cmdstat_evalsha", server); n != 1 {
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
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openPrefix(t, "redis://"+p.Addr, "cut", generous)
	direct := openPrefix(t, "redis://"+server.Addr, "cut", generous)
	charged, tried := 0, 0
	for i, limit := range slowLimits {
		whole := replyLength(t, p, store, penstock.Request{Key: "warm", Limit: limit, Cost: 3, ID: id})
		for k := range whole {
			r := penstock.Request{Key: strconv.Itoa(i) + "-" + strconv.Itoa(k), Limit: limit, Cost: 3, ID: id}
			tell(t, server, "CONFIG", "RESETSTAT")
			p.CutReplyAfter(k, reset)
			d, err := store.Take(t.Context(), r)
			check(t, k, err, stat(t, "cmdstat_evalsha", server), d)
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

func TestFlushedScriptsAreNoError(t *testing.T) {
	server := launch(t, redistest.Options{})
	c := gather(t, openURL(t, "redis://"+server.Addr, generous))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 50 {
		<-tick.C
		tell(t, server, "SCRIPT", "FLUSH")
	}
	c.goOn(t, 100)
	c.disperse(t)
	c.judgeCalm(t)
	if n := stat(t, "errorstat_NOSCRIPT", server); n < 50 {
		t.Errorf("%d calls met an unknown script, want some for each of 50 flushes", n)
	}
	mortal(t, server)
}

func TestFullRedisStillDenies(t *testing.T) {
	server := launch(t, redistest.Options{Args: []string{"--maxmemory-policy", "noeviction"}})
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
	tell(t, server, "CONFIG", "SET", "maxmemory", "1")
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
	if n := stat(t, "errorstat_OOM", server); n == 0 {
		t.Error("the server never was out of memory")
	}
	tell(t, server, "CONFIG", "SET", "maxmemory", "0")
	for _, l := range slowLimits {
		for key, want := range map[string]int64{"used up": 0, "half": burst / 2, "new": burst} {
			if d, err := take(key, l, 0, ""); err != nil || d.Remaining != want {
				t.Errorf("%s: %s key, when there is memory again: got %+v, %v, want %d remaining", l, key, d, err, want)
			}
		}
	}
	mortal(t, server)
}
