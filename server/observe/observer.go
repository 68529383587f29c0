package observe

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/history"
)

// Options configure an [Observer].
type Options struct {
	// Name identifies the daemon among others. Optional.
	Name string

	// Version is the version of the program. Optional.
	Version string

	// TopKeys are the keys that the engine counts. Default: none.
	TopKeys *topkeys.Tracker

	// Listeners returns the state of the listeners. Their latencies are counted in
	// buckets with these upper bounds, in seconds. Default: no listeners.
	Listeners     func() []ListenerState
	LatencyBounds []float64

	// Store returns the state of the store. Default: a memory store of which nothing is
	// known.
	Store func() Store

	// Board is where daemons leave their summaries for each other. [Observer.Publish]
	// leaves this one's. Default: the daemon is alone.
	Board Board

	// OnDaemons is called with how many daemons there are, after each summary that was left.
	// Optional.
	OnDaemons func(n int)

	// Log receives failures of the board. Default: discarded.
	Log *slog.Logger

	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// A ListenerState is what a listener counts.
type ListenerState struct {
	Name        string
	Connections int
	Refused     uint64

	// Latency is how many calls with decisions had a latency within each bound and above those
	// before it, since the start. The last number is those above all bounds.
	Latency []uint64
}

// An Observer answers queries about the traffic of an engine. [Observer.Run] fills its
// history. It is safe for concurrent use.
type Observer struct {
	engine  *engine.Engine
	options Options
	started time.Time
	rules   *history.History // of each rule, with the columns of Counts
	latency *history.History // of each listener, with a column for each bucket
	fleet   fleet
}

// The columns of the rules' history.
const (
	allowedColumn = iota
	deniedColumn
	shadowedColumn
	errorsColumn
	columns
)

// New returns an observer. Nil options are all defaults.
func New(e *engine.Engine, o *Options) *Observer {
	o = cmp.Or(o, &Options{})
	own := o.withDefaults()
	observer := &Observer{
		engine: e, options: own, started: own.Now(),
		rules: history.New(columns), latency: history.New(len(own.LatencyBounds) + 1),
		fleet: fleet{ignored: map[string]bool{}},
	}
	observer.begin()
	return observer
}

// begin has the histories begin now: before its first second, one would begin before 1970, which
// other daemons do not believe.
func (o *Observer) begin() {
	for _, h := range []*history.History{o.rules, o.latency} {
		h.TickSome(o.options.Now().Unix()-1, func(func(string, []uint64)) {})
	}
}

func (o Options) withDefaults() Options {
	if o.Listeners == nil {
		o.Listeners = func() []ListenerState { return nil }
	}
	if o.Store == nil {
		o.Store = func() Store {
			return Store{Kind: "memory", Reasons: []string{}, Shards: []Shard{}, StateLosses: []StateLoss{}}
		}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Run records history at the end of each second, until ctx ends.
func (o *Observer) Run(ctx context.Context) {
	for {
		now := o.options.Now()
		if monotime.Sleep(ctx, now.Truncate(time.Second).Add(time.Second).Sub(now)) != nil {
			return
		}
		o.Tick()
	}
}

// Tick records what has happened since the last call, as that of the second that has just
// ended.
func (o *Observer) Tick() {
	second := o.options.Now().Unix() - 1
	tick := o.rules.Tick
	if o.engine.Rules() == nil {
		tick = o.rules.TickSome // those over xDS may arrive later, and go on then
	}
	tick(second, func(record func(string, []uint64)) {
		for _, c := range o.engine.RuleStats() {
			n := CountsOf(c)
			record(c.Rule, []uint64{n.Allowed, n.Denied, n.Shadowed, n.Errors})
		}
	})
	o.latency.Tick(second, func(record func(string, []uint64)) {
		for _, l := range o.options.Listeners() {
			if l.Latency != nil {
				record(l.Name, l.Latency)
			}
		}
	})
}

// CountsOf returns the counters of a rule.
func CountsOf(c *engine.RuleStats) Counts {
	return Counts{Allowed: c.Allowed(), Denied: c.Denied.Load(), Shadowed: c.Shadowed.Load(), Errors: c.Errors.Load()}
}
