package observe

import (
	"context"
	"time"

	"github.com/penstock-io/penstock/server/engine"
)

// Options configure an [Observer].
type Options struct {
	// Name identifies the daemon among others. Optional.
	Name string

	// Version is the version of the program. Optional.
	Version string

	// Store returns the state of the store. Default: a memory store of which nothing is
	// known.
	Store func() Store

	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// An Observer answers queries about the traffic of an engine. It is safe for concurrent
// use.
type Observer struct {
	engine  *engine.Engine
	options Options
	started time.Time
}

// New returns an observer. Nil options are all defaults.
func New(e *engine.Engine, o *Options) *Observer {
	if o == nil {
		o = &Options{}
	}
	own := o.withDefaults()
	return &Observer{engine: e, options: own, started: own.Now()}
}

func (o Options) withDefaults() Options {
	if o.Store == nil {
		o.Store = func() Store {
			return Store{Kind: "memory", Reasons: []string{}, Shards: []Shard{}, StateLosses: []StateLoss{}}
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// A LiveQuery selects what a [Live] contains.
type LiveQuery struct {
	Scope  string
	Window Window
	Sort   string // one of SortNames
	Filter string // text in the names of the rules
	Rules  int    // at most so many rows
}

// SortNames are the orders of the rules in a [Live]: the largest number first, or by name.
var SortNames = []string{"decisions", "denied", "denied_share", "shadow_share", "errors", "name"}

// Windows are all windows.
var Windows = []Window{TwoMinutes, OneHour, OneDay}

// Live returns what the daemon does now.
func (o *Observer) Live(_ context.Context, q LiveQuery) *Live {
	return &Live{
		Time: o.options.Now().UTC(), Scope: q.Scope, Daemon: o.options.Name, Version: o.options.Version, Started: o.started.UTC(),
		Window: q.Window, Store: o.options.Store(), Listeners: []Listener{}, Rules: []RuleRow{},
	}
}

// A TopQuery selects keys.
type TopQuery struct {
	Scope string
	By    string
	Rule  *string // nil for all
	N     int     // at most so many keys
}

// Top returns the keys with the most decisions or denials.
func (o *Observer) Top(_ context.Context, q TopQuery) *Top {
	return &Top{Time: o.options.Now().UTC(), Scope: q.Scope, Daemon: o.options.Name, By: q.By, Keys: []TopKey{}}
}

// Seen returns what the daemon knows of a key, under each rule. The text is the key
// itself.
func (o *Observer) Seen(_ string) []SeenKey { return []SeenKey{} }
