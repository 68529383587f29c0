package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for linkname

	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/base"
	"github.com/alibaba/sentinel-golang/core/system"
	"github.com/alibaba/sentinel-golang/core/system_metric"
	"github.com/alibaba/sentinel-golang/logging"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/go-kratos/aegis/ratelimit"
	"github.com/go-kratos/aegis/ratelimit/bbr"
	"github.com/platinummonkey/go-concurrency-limits/core"
	"github.com/platinummonkey/go-concurrency-limits/limit"
	limits "github.com/platinummonkey/go-concurrency-limits/limiter"
	"github.com/platinummonkey/go-concurrency-limits/strategy"
	shedding "github.com/zeromicro/go-zero/core/load"
	"github.com/zeromicro/go-zero/core/logx"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/overload"
)

// The modules of the rivals, for their versions.
var modules = []string{
	"github.com/alibaba/sentinel-golang", "github.com/go-kratos/aegis", "github.com/zeromicro/go-zero",
	"github.com/failsafe-go/failsafe-go", "github.com/platinummonkey/go-concurrency-limits",
	"github.com/sony/gobreaker/v2", "github.com/afex/hystrix-go",
}

// A limiter admits calls to a server.
type limiter struct {
	enter  func(critical bool) (leave func(), ok bool)
	blocks bool                         // whether enter may wait
	cpu    func(tick int, busy float64) // is told every 250 ms; nil if it does not matter
}

// A library makes limiters.
type library struct {
	name string
	make func() *limiter
}

const (
	ours       = "penstock"
	noLimiter  = "none"
	refuseAll  = "most that is possible" // no library: what refusals leave
	cpuLimiter = " (CPU)"                // part of the name of limiters that go by the processor
)

// libraries are ours first, and last no limiter at all.
var libraries = []library{
	{ours, newGate},
	{"Envoy gradient", newEnvoyGradient},
	{"gradient2", func() *limiter { return newConcurrencyLimits(limit.NewDefaultGradient2Limit("", nil, nil)) }},
	{"Vegas", func() *limiter { return newConcurrencyLimits(limit.NewDefaultVegasLimit("", nil, nil)) }},
	{"failsafe-go", newFailsafe},
	{"go-zero" + cpuLimiter, newGoZero},
	{"aegis" + cpuLimiter, newAegis},
	{"Sentinel" + cpuLimiter, newSentinel},
	{noLimiter, func() *limiter {
		return &limiter{enter: func(bool) (func(), bool) { return func() {}, true }}
	}},
}

// newGate returns a gate without the waits of this machine's goroutines, of which virtual time knows nothing.
func newGate() *limiter { return newGateOf(&overload.GateOptions{Now: time.Now}) }

func newGateOf(o *overload.GateOptions) *limiter {
	g := overload.NewGate(o)
	ctx := context.Background()
	return &limiter{blocks: true, enter: func(critical bool) (func(), bool) {
		p := overload.Normal
		if critical {
			p = overload.Critical
		}
		pass, err := g.Enter(ctx, p)
		return func() { pass.Leave(overload.Success) }, err == nil
	}}
}

func newConcurrencyLimits(l core.Limit) *limiter {
	lim := harness.Must(limits.NewDefaultLimiter(l, 1e9, 1e9, 1e5, 100, strategy.NewSimpleStrategy(20), limit.NoopLimitLogger{}, core.EmptyMetricRegistryInstance))
	return &limiter{enter: func(bool) (func(), bool) {
		token, ok := lim.Acquire(context.Background())
		if !ok {
			return nil, false
		}
		return token.OnSuccess, true
	}}
}

func newFailsafe() *limiter {
	lim := adaptivelimiter.NewWithDefaults[any]()
	return &limiter{enter: func(bool) (func(), bool) {
		permit, ok := lim.TryAcquirePermit()
		if !ok {
			return nil, false
		}
		return permit.Record, true
	}}
}

// The processor's load as these packages know it, in thousandths.
//
//go:linkname goZeroCPU github.com/zeromicro/go-zero/core/stat.cpuUsage
var goZeroCPU int64

//go:linkname aegisCPU github.com/go-kratos/aegis/ratelimit/bbr.gCPU
var aegisCPU int64

// smooth is how both of them average the load.
func smooth(to *int64, average *float64, busy float64) {
	*average = 0.95**average + 0.05*1000*busy
	atomic.StoreInt64(to, int64(*average))
}

// silenceLogs is for go-zero, which also logs once a minute what the process uses.
func silenceLogs() {
	logx.Disable()
	shedding.DisableLog()
}

func newGoZero() *limiter {
	shedder := shedding.NewAdaptiveShedder()
	average := 0.0
	atomic.StoreInt64(&goZeroCPU, 0)
	return &limiter{
		cpu: func(_ int, busy float64) { smooth(&goZeroCPU, &average, busy) },
		enter: func(bool) (func(), bool) {
			promise, err := shedder.Allow()
			if err != nil {
				return nil, false
			}
			return promise.Pass, true
		},
	}
}

func newAegis() *limiter {
	lim := bbr.NewLimiter()
	average := 0.0
	atomic.StoreInt64(&aegisCPU, 0)
	return &limiter{
		cpu: func(tick int, busy float64) {
			if tick%2 == 0 {
				smooth(&aegisCPU, &average, busy)
			}
		},
		enter: func(bool) (func(), bool) {
			done, err := lim.Allow()
			if err != nil {
				return nil, false
			}
			return func() { done(ratelimit.DoneInfo{}) }, true
		},
	}
}

var names atomic.Int64

// newName returns a name for statistics that a process keeps.
func newName() string { return "bench" + strconv.FormatInt(names.Add(1), 10) }

func newSentinel() *limiter {
	logging.ResetGlobalLoggerLevel(logging.ErrorLevel)
	system_metric.SetSystemCpuUsage(0)
	harness.Must(system.LoadRules([]*system.Rule{{MetricType: system.CpuUsage, TriggerCount: 0.8, Strategy: system.BBR}}))
	resource := newName()
	return &limiter{
		cpu: func(tick int, busy float64) {
			if tick%4 == 0 {
				system_metric.SetSystemCpuUsage(busy)
			}
		},
		enter: func(bool) (func(), bool) {
			entry, blocked := sentinel.Entry(resource, sentinel.WithTrafficType(base.Inbound))
			if blocked != nil {
				return nil, false
			}
			return func() { entry.Exit() }, true
		},
	}
}

// cost compares entry and exit with their floor: one word and two readings of the clock.
func (b *bench) cost() {
	calls := b.Size(5000, 100)
	var all []*harness.Contender
	add := func(name string, call func()) {
		all = append(all, &harness.Contender{Name: name, Measure: func(c *harness.Contender) {
			begin := time.Now()
			for range calls {
				call()
			}
			c.Add("ns", float64(time.Since(begin))/float64(calls))
		}})
	}
	add("floor", floorCall())
	add(ours+", breaker", breakerCall())
	add(ours+", gate", gateCall())
	for _, l := range libraries[1 : len(libraries)-1] { // all but ours and none
		limiter := l.make()
		add(l.name, func() {
			if leave, ok := limiter.enter(false); ok {
				leave()
			}
		})
	}
	harness.TakeTurns(b.Size(400, 3), all...)
	t := b.Table("Entry and exit: the least of many rounds", "limiter", "ns", "to the floor")
	toFloor := map[string]float64{}
	for _, c := range all {
		least := slices.Min(c.Of("ns"))
		toFloor[c.Name] = least / slices.Min(all[0].Of("ns"))
		t.Row(c.Name, harness.Decimals(0)(least), harness.Times(toFloor[c.Name]))
	}
	gate, breaker := toFloor[ours+", gate"], toFloor[ours+", breaker"]
	b.Find("entry and exit of the gate", "≤ 1.6× the floor", gate <= 1.6, "%.2f×", gate)
	b.Find("entry and exit of the breaker", "≤ 1.3× the floor", breaker <= 1.3, "%.2f×", breaker)
}

func floorCall() func() {
	var word atomic.Uint64
	var sum time.Duration
	begin := time.Now()
	return func() {
		start := time.Since(begin)
		for {
			w := word.Load()
			if word.CompareAndSwap(w, w+1) {
				break
			}
		}
		word.Add(^uint64(0))
		sum += time.Since(begin) - start
	}
}

func breakerCall() func() {
	b := overload.NewBreaker(nil)
	return func() {
		if call, err := b.Allow(); err == nil {
			call.Done(overload.Success)
		}
	}
}

// gateCall is a call through a gate, without the function that other limiters need.
func gateCall() func() {
	g := overload.NewGate(nil)
	ctx := context.Background()
	return func() {
		if pass, err := g.Enter(ctx, overload.Normal); err == nil {
			pass.Leave(overload.Success)
		}
	}
}

// An envoyGradient is the gradient controller of Envoy's adaptive concurrency filter, after
// its documentation, with the values of its examples: the latency without load is measured
// with three requests at once, for fifty requests, about once a minute; every 100 ms the limit
// is multiplied by that latency, plus a quarter, over the present one.
type envoyGradient struct {
	mu       sync.Mutex
	limit    float64
	inFlight int
	samples  []time.Duration
	updateAt time.Time

	minRTT      time.Duration
	measuring   bool
	measureFrom time.Time
	saved       float64
}

const (
	envoyInterval = 100 * time.Millisecond
	envoyMeasure  = time.Minute
	envoyRequests = 50
	envoyLeast    = 3
	envoyMost     = 1000
	envoyBuffer   = 1.25
)

func newEnvoyGradient() *limiter {
	now := time.Now()
	e := &envoyGradient{limit: envoyLeast, saved: envoyLeast, measuring: true, measureFrom: now, updateAt: now.Add(envoyInterval)}
	return &limiter{enter: func(bool) (func(), bool) {
		start, ok := e.enter()
		return func() { e.leave(start) }, ok
	}}
}

func (e *envoyGradient) enter() (start time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	start = time.Now()
	e.update(start)
	if e.inFlight >= int(e.limit) {
		return start, false
	}
	e.inFlight++
	return start, true
}

func (e *envoyGradient) leave(start time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inFlight--
	if !e.measuring || !start.Before(e.measureFrom) {
		e.samples = append(e.samples, time.Since(start))
	}
	e.update(time.Now())
}

func (e *envoyGradient) update(now time.Time) {
	switch {
	case e.measuring && len(e.samples) >= envoyRequests:
		e.minRTT = e.median()
		e.measuring, e.limit = false, e.saved
		e.measureFrom = now.Add(envoyMeasure + rand.N(envoyMeasure/10)) //nolint:gosec // only jitter
		e.updateAt = now.Add(envoyInterval)
	case e.measuring:
	case !now.Before(e.measureFrom):
		e.measuring, e.saved, e.limit = true, e.limit, envoyLeast
		e.measureFrom, e.samples = now, e.samples[:0]
	case !now.Before(e.updateAt):
		e.updateAt = now.Add(envoyInterval)
		if len(e.samples) > 0 {
			e.steer()
		}
	}
}

func (e *envoyGradient) steer() {
	gradient := envoyBuffer * float64(e.minRTT) / float64(max(e.median(), 1))
	e.limit *= min(max(gradient, 0.5), 2)
	e.limit = min(max(e.limit+math.Sqrt(e.limit), envoyLeast), envoyMost)
}

// median returns the median of the samples, and forgets them.
func (e *envoyGradient) median() time.Duration {
	slices.Sort(e.samples)
	m := e.samples[len(e.samples)/2]
	e.samples = e.samples[:0]
	return m
}
