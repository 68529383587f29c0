package faults

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

var (
	soakTime = flag.Duration("faults.soak", 0, "how long to soak a daemon in faults")
	soakGap  = flag.Duration("faults.gap", 20*time.Second, "time between two faults of a soak")
	soakSeed = flag.Uint64("faults.seed", 0, "order of the faults of a soak; 0 for a new one")
)

// A soak is one daemon on one Redis, which go through fault after fault.
type soak struct {
	testing.TB
	daemon *daemon
	redis  *redistest.Server
	proxy  *redistest.Proxy // between the two
	doors  []penstock.Store
	base   resources
	rounds int // so far
	rows   []row
}

// Resources are what must be the same in the end.
type resources struct{ goroutines, files, heap int }

func (s *soak) resources() resources {
	return resources{
		goroutines: s.daemon.metric("go_goroutines", ""),
		files:      s.daemon.openFiles(),
		heap:       s.daemon.metric("go_memstats_heap_alloc_bytes", "") >> 20,
	}
}

func (u resources) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d MiB of heap", u.goroutines, u.files, u.heap)
}

// A dip is one of the faults.
type dip struct {
	what  string
	lives int64 // one, one of the fallback, and one for what is lost by either
	calm  bool
	make  func(*soak, *run)
}

var dips = []dip{
	{"Redis is killed and comes back empty", 3, true, (*soak).killRedis},
	{"Redis hangs", 2, true, (*soak).hangRedis},
	{"Redis is flushed", 3, true, (*soak).flushRedis},
	{"Redis forgets scripts", 2, true, (*soak).flushScripts},
	{"connections to Redis are cut", 2, true, (*soak).cutRedis},
	{"Redis is too slow", 2, true, (*soak).slowRedis},
	{"the daemon is killed", 3, false, (*soak).killDaemon},
	{"the daemon is restarted", 3, false, (*soak).restartDaemon},
	{"rules change", 2, true, (*soak).goodRules},
	{"rules are wrong", 2, true, (*soak).badRules},
}

func TestSoak(t *testing.T) {
	length, gap := *soakTime, *soakGap
	switch {
	case length == 0 && !*full:
		t.Skip("takes long: make soak")
	case length == 0:
		length, gap = 20*time.Second, 2*time.Second
	}
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("soaking for %v with -faults.seed=%d", length, seed)
	s := startSoak(t)
	order := rand.New(rand.NewPCG(seed, 0))
	var rest []int
	for began := time.Now(); time.Since(began) < length && !t.Failed(); {
		if len(rest) == 0 {
			rest = order.Perm(len(dips))
		}
		s.dip(dips[rest[0]], gap)
		rest = rest[1:]
	}
	s.sum(length)
}

func startSoak(t testing.TB) *soak {
	s := &soak{TB: t, redis: redistest.StartForTest(t, redistest.Options{})}
	s.proxy = redistest.StartProxy(t, s.redis.Addr)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, rules, doorRules)
	s.daemon = serve(t, &daemon{flags: []string{"--rules", rules, "--store", "redis://" + s.proxy.Addr, "--lease"}})
	s.doors = openDoors(t, s.daemon)
	s.dip(dip{"nothing", 2, true, (*soak).nothing}, time.Second) // so that connections are there
	s.base, s.rows = s.resources(), nil
	return s
}

// dip makes one fault under load, with keys that nobody has used before. What it
// may waste is not asked here: leases are lost with calls that nobody hears of.
func (s *soak) dip(d dip, gap time.Duration) {
	s.Helper()
	const keysOfOne = 20_000
	r := newRun(s, fault{
		name: "soak", what: d.what, on: behindDoors, still: true,
		promise: promise{layers: daemonic, lives: d.lives, calm: d.calm, limits: doorLimits, wasted: burst},
	})
	l := &load{run: r, nodes: s.doors, pace: time.Millisecond, close: func() {}, first: int64(s.rounds) % (perDoor / keysOfOne) * keysOfOne}
	r.load = l
	if l.first == 0 {
		redistest.MustCommand(s, s.redis, "FLUSHALL") // for all keys were used before
	}
	s.rounds++
	stood := standstill()
	l.start()
	l.answers(100)
	d.make(s, r)
	l.answers(100)
	time.Sleep(gap - time.Since(r.history.began))
	l.finish()
	if late := stood(); late > time.Second {
		fmt.Printf("the machine stood still for %s, so that calls may have failed for no other reason\n", roundly(late))
		r.calm = false
	}
	for _, complaint := range r.verdict() {
		s.Errorf("%s: %s", d.what, complaint)
	}
	s.rows = append(s.rows, r.row(time.Since(r.history.began)))
	fmt.Printf("%s: %s\n", d.what, s.rows[len(s.rows)-1].numbers())
	if s.base != (resources{}) {
		s.returns()
	}
}

// standstill begins to watch how late timers ring here, because the machine is busy
// with something else. What it returns ends that, and tells the latest.
func standstill() (latest func() time.Duration) {
	const gap = 20 * time.Millisecond
	stop, told := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			began := time.Now()
			select {
			case <-time.After(gap):
				most = max(most, time.Since(began)-gap)
			case <-stop:
				told <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-told
	}
}

// returns waits until the daemon, when nobody asks, has what it had in the
// beginning, give or take the connections of those who ask and what the collector
// of garbage has not come to.
func (s *soak) returns() {
	s.Helper()
	redistest.WaitFor(s, fmt.Sprintf("the daemon is back at %v, from %v", s.base, s.resources()), func() bool {
		now := s.resources()
		return now.goroutines <= s.base.goroutines+3*members && now.files <= s.base.files+3*members && now.heap <= s.base.heap+64
	})
}

// sum prints what became of it all.
func (s *soak) sum(length time.Duration) {
	var all row
	for _, w := range s.rows {
		all.calls, all.admitted, all.bound, all.unknown = all.calls+w.calls, all.admitted+w.admitted, all.bound+w.bound, all.unknown+w.unknown
		all.downtime = max(all.downtime, w.downtime)
	}
	fmt.Printf("soaked for %v: %d faults, %d calls, admitted %d, bound %d, unknown outcomes %d, longest downtime %s\nbefore: %v\nafter:  %v\n",
		length, len(s.rows), all.calls, all.admitted, all.bound, all.unknown, roundly(all.downtime), s.base, s.resources())
}

func (s *soak) nothing(r *run) { r.happened("nothing", 1) }

func (s *soak) killRedis(r *run) {
	s.redis.Kill()
	r.load.misses(50)
	r.restart(s.redis)
	r.happened("calls without Redis", r.history.count(&r.history.missed))
}

func (s *soak) hangRedis(r *run) {
	if err := s.redis.Pause(); err != nil {
		s.Fatal(err)
	}
	r.load.misses(50)
	if err := s.redis.Resume(); err != nil {
		s.Fatal(err)
	}
	r.happened("calls without Redis", r.history.count(&r.history.missed))
}

func (s *soak) flushRedis(r *run) {
	before := redistest.InfoCounter(s, "cmdstat_flushall", s.redis)
	redistest.MustCommand(s, s.redis, "FLUSHALL")
	r.happened("times that all was forgotten", redistest.InfoCounter(s, "cmdstat_flushall", s.redis)-before)
}

func (s *soak) flushScripts(r *run) {
	before := redistest.InfoCounter(s, "errorstat_NOSCRIPT", s.redis)
	redistest.MustCommand(s, s.redis, "SCRIPT", "FLUSH")
	r.load.answers(100)
	r.happened("calls of a script that was forgotten", redistest.InfoCounter(s, "errorstat_NOSCRIPT", s.redis)-before)
}

func (s *soak) cutRedis(r *run) { r.happened("connections that were cut", s.proxy.CutAll()) }

func (s *soak) slowRedis(r *run) {
	before := s.proxy.DelayedReplies()
	s.proxy.Delay(200 * time.Millisecond)
	r.load.misses(50)
	s.proxy.Delay(0)
	r.happened("replies that were held back", s.proxy.DelayedReplies()-before)
}

func (s *soak) killDaemon(r *run) {
	s.daemon.kill()
	r.happened("daemons killed by a signal", s.daemon.killedBySignal())
	s.daemon.start()
}

func (s *soak) restartDaemon(r *run) {
	s.daemon.signal(syscall.SIGTERM)
	s.daemon.wait()
	if s.daemon.command.ProcessState.Success() {
		r.happened("daemons that ended when they were told to", 1)
	}
	s.daemon.start()
}

func (s *soak) goodRules(r *run) {
	s.readRules(r, "success", doorRules+fmt.Sprintf("  - key: tenant\n    limit: \"%d/1m\"\n", 1+rand.IntN(1000)))
}

func (s *soak) badRules(r *run) {
	s.readRules(r, "failure", doorRules+"  - key: user\n    limit: \"many\"\n")
}

func (s *soak) readRules(r *run, result, rules string) {
	count := func() int { return s.daemon.metric("penstock_config_loads_total", `"`+result+`"`) }
	before := count()
	writeRules(s, s.daemon.rules(), rules)
	redistest.WaitFor(s, "the rules are read", func() bool { return count() > before })
	r.happened("times that rules were read", count()-before)
	if result == "failure" {
		writeRules(s, s.daemon.rules(), strings.TrimLeft(doorRules, "\n"))
	}
}
