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
	soakTime = flag.Duration("faults.soak", 0, "how long to run the soak test")
	soakGap  = flag.Duration("faults.gap", 20*time.Second, "time between two faults of a soak")
	soakSeed = flag.Uint64("faults.seed", 0, "seed of the order of the faults of a soak; 0 for a random one")
)

// A soak injects one fault after another into one daemon and its Redis.
type soak struct {
	testing.TB
	daemon *daemon
	redis  *redistest.Server
	proxy  *redistest.Proxy // between the two
	apis   []penstock.Store
	base   resources
	rounds int // so far
	rows   []row
}

// Resources are what a daemon must have released after each fault.
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

// A soakFault is a fault of the soak test.
type soakFault struct {
	name     string
	bursts   int64 // one, one of the fallback, and one if Redis or the daemon loses state
	noErrors bool
	inject   func(*soak, *run)
}

var soakFaults = []soakFault{
	{"Redis is killed and comes back empty", 3, true, (*soak).killRedis},
	{"Redis hangs", 2, true, (*soak).hangRedis},
	{"Redis is flushed", 3, true, (*soak).flushRedis},
	{"scripts are flushed", 2, true, (*soak).flushScripts},
	{"connections to Redis are cut", 2, true, (*soak).cutRedis},
	{"Redis is too slow", 2, true, (*soak).slowRedis},
	{"the daemon is killed", 3, false, (*soak).killDaemon},
	{"the daemon is restarted", 3, false, (*soak).restartDaemon},
	{"rules change", 2, true, (*soak).goodRules},
	{"rules are invalid", 2, true, (*soak).badRules},
}

// runSoak runs for -faults.soak, or for 20 seconds without that.
func runSoak(t *testing.T) {
	length, gap := *soakTime, *soakGap
	if length == 0 {
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
	for start := time.Now(); time.Since(start) < length && !t.Failed(); {
		if len(rest) == 0 {
			rest = order.Perm(len(soakFaults))
		}
		s.inject(soakFaults[rest[0]], gap)
		rest = rest[1:]
	}
	s.printSummary(length)
}

func startSoak(t testing.TB) *soak {
	s := &soak{TB: t, redis: redistest.StartForTest(t, redistest.Options{})}
	s.proxy = redistest.StartProxy(t, s.redis.Addr)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, rules, apiRules)
	s.daemon = serve(t, &daemon{flags: []string{"--rules", rules, "--store", "redis://" + s.proxy.Addr, "--lease"}})
	s.apis = openAPIs(t, s.daemon)
	s.inject(soakFault{"nothing", 2, true, (*soak).noFault}, time.Second) // opens the connections
	s.base, s.rows = s.resources(), nil
	return s
}

// inject injects one fault under load, on unused keys. Lost units are not checked:
// unanswered calls can lose whole leases.
func (s *soak) inject(d soakFault, gap time.Duration) {
	s.Helper()
	const keysPerFault = 20_000
	r := newRun(s, fault{
		id: "soak", name: d.name, topology: daemonTopology, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: d.bursts, noErrors: d.noErrors, limits: apiLimits, maxLost: burst},
	})
	l := &load{run: r, nodes: s.apis, pause: time.Millisecond, close: func() {}, firstKey: int64(s.rounds) % (keysPerAPI / keysPerFault) * keysPerFault}
	r.load = l
	if l.firstKey == 0 {
		redistest.MustCommand(s, s.redis, "FLUSHALL") // all keys were used before
	}
	s.rounds++
	longestStall := watchStalls()
	l.start()
	l.awaitAnswers(100)
	d.inject(s, r)
	l.awaitAnswers(100)
	time.Sleep(gap - time.Since(r.history.start))
	l.finish()
	if late := longestStall(); late > time.Second {
		fmt.Printf("the machine stalled for %s, which alone may have failed calls\n", rounded(late))
		r.noErrors = false
	}
	for _, problem := range r.problems() {
		s.Errorf("%s: %s", d.name, problem)
	}
	s.rows = append(s.rows, r.row(time.Since(r.history.start)))
	fmt.Printf("%s: %s\n", d.name, s.rows[len(s.rows)-1].summary())
	if s.base != (resources{}) {
		s.awaitResources()
	}
}

// watchStalls measures how late timers fire because the machine is busy. The returned
// function stops that and returns the longest delay.
func watchStalls() (latest func() time.Duration) {
	const gap = 20 * time.Millisecond
	stop, result := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			start := time.Now()
			select {
			case <-time.After(gap):
				most = max(most, time.Since(start)-gap)
			case <-stop:
				result <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-result
	}
}

// awaitResources waits until the idle daemon has no more than at the start, apart from
// the callers' connections and garbage that is not yet collected.
func (s *soak) awaitResources() {
	s.Helper()
	redistest.WaitFor(s, fmt.Sprintf("the daemon is back at %v, from %v", s.base, s.resources()), func() bool {
		now := s.resources()
		return now.goroutines <= s.base.goroutines+3*callers && now.files <= s.base.files+3*callers && now.heap <= s.base.heap+64
	})
}

// printSummary prints the totals of all faults.
func (s *soak) printSummary(length time.Duration) {
	var all row
	for _, w := range s.rows {
		all.calls, all.admitted, all.bound, all.unknown = all.calls+w.calls, all.admitted+w.admitted, all.bound+w.bound, all.unknown+w.unknown
		all.downtime = max(all.downtime, w.downtime)
	}
	fmt.Printf("soaked for %v: %d faults, %d calls, admitted %d, bound %d, unknown outcomes %d, longest downtime %s\nbefore: %v\nafter:  %v\n",
		length, len(s.rows), all.calls, all.admitted, all.bound, all.unknown, rounded(all.downtime), s.base, s.resources())
}

func (s *soak) noFault(r *run) { r.prove("nothing", 1) }

func (s *soak) killRedis(r *run) {
	s.redis.Kill()
	r.load.awaitMisses(50)
	r.restart(s.redis)
	r.prove("calls without Redis", r.history.count(&r.history.missed))
}

func (s *soak) hangRedis(r *run) {
	if err := s.redis.Pause(); err != nil {
		s.Fatal(err)
	}
	r.load.awaitMisses(50)
	if err := s.redis.Resume(); err != nil {
		s.Fatal(err)
	}
	r.prove("calls without Redis", r.history.count(&r.history.missed))
}

func (s *soak) flushRedis(r *run) {
	before := redistest.InfoCounter(s, "cmdstat_flushall", s.redis)
	redistest.MustCommand(s, s.redis, "FLUSHALL")
	r.prove("flushes of all keys", redistest.InfoCounter(s, "cmdstat_flushall", s.redis)-before)
}

func (s *soak) flushScripts(r *run) {
	before := redistest.InfoCounter(s, "errorstat_NOSCRIPT", s.redis)
	redistest.MustCommand(s, s.redis, "SCRIPT", "FLUSH")
	r.load.awaitAnswers(100)
	r.prove("calls of a flushed script", redistest.InfoCounter(s, "errorstat_NOSCRIPT", s.redis)-before)
}

func (s *soak) cutRedis(r *run) { r.prove("cut connections", s.proxy.CutAll()) }

func (s *soak) slowRedis(r *run) {
	before := s.proxy.DelayedReplies()
	s.proxy.Delay(200 * time.Millisecond)
	r.load.awaitMisses(50)
	s.proxy.Delay(0)
	r.prove("delayed replies", s.proxy.DelayedReplies()-before)
}

func (s *soak) killDaemon(r *run) {
	s.daemon.kill()
	r.prove("daemons killed by a signal", s.daemon.killedBySignal())
	s.daemon.start()
}

func (s *soak) restartDaemon(r *run) {
	s.daemon.signal(syscall.SIGTERM)
	s.daemon.wait()
	if s.daemon.command.ProcessState.Success() {
		r.prove("daemons that shut down", 1)
	}
	s.daemon.start()
}

func (s *soak) goodRules(r *run) {
	s.loadRules(r, "success", apiRules+fmt.Sprintf("  - key: tenant\n    limit: \"%d/1m\"\n", 1+rand.IntN(1000)))
}

func (s *soak) badRules(r *run) {
	s.loadRules(r, "failure", apiRules+"  - key: user\n    limit: \"many\"\n")
}

func (s *soak) loadRules(r *run, result, rules string) {
	count := func() int { return s.daemon.metric("penstock_config_loads_total", `"`+result+`"`) }
	before := count()
	writeRules(s, s.daemon.rulesPath(), rules)
	redistest.WaitFor(s, "the rules are loaded", func() bool { return count() > before })
	r.prove("loads of the rules", count()-before)
	if result == "failure" {
		writeRules(s, s.daemon.rulesPath(), strings.TrimLeft(apiRules, "\n"))
	}
}
