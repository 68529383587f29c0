package observe

import "time"

// A Live is the response of GET /v1/live: what a daemon does now and did lately.
type Live struct {
	Time    time.Time `json:"time"`
	Scope   string    `json:"scope"`  // ScopeDaemon or ScopeAll
	Daemon  string    `json:"daemon"` // the name of the daemon that answers
	Version string    `json:"version"`
	Started time.Time `json:"started"`

	// Totals count since the daemon has started, and equal /metrics. Counts are those
	// within the window, Rates the mean over the last ten seconds.
	Totals    Counts `json:"totals"`
	Unmatched uint64 `json:"unmatched"` // requests that no rule matched, since the start
	Banned    uint64 `json:"banned"`    // of those denied, requests of banned keys, since the start
	Counts    Counts `json:"counts"`
	Rates     Rates  `json:"rates"`

	Window Window `json:"window"`
	Series Series `json:"series"`

	Listeners []Listener `json:"listeners"`
	Store     Store      `json:"store"`
	Process   Process    `json:"process"`

	// Rules are the rows that the query selects. RulesMatching is how many rules its
	// filter matches, which may be more.
	Rules         []RuleRow `json:"rules"`
	RulesMatching int       `json:"rules_matching"`

	// Daemons are all daemons on the same Redis, with the scope ScopeAll.
	Daemons []Daemon `json:"daemons,omitempty"`
}

// The scopes of a query.
const (
	ScopeDaemon = "daemon" // the daemon that answers
	ScopeAll    = "all"    // every daemon on the same Redis, as far as they were heard of lately
)

// A Window is a span of time until now that history is kept for.
type Window string

// The windows, with steps of 1 s, 10 s and 5 minutes.
const (
	TwoMinutes Window = "2m"
	OneHour    Window = "1h"
	OneDay     Window = "1d"
)

// Counts are numbers of decisions by outcome. A shadowed decision was allowed, and would
// have been denied outside shadow mode.
type Counts struct {
	Allowed  uint64 `json:"allowed"`
	Denied   uint64 `json:"denied"`
	Shadowed uint64 `json:"shadowed"`
	Errors   uint64 `json:"errors"`
}

// Rates are decisions a second by outcome. Decisions is their sum.
type Rates struct {
	Decisions float64 `json:"decisions"`
	Allowed   float64 `json:"allowed"`
	Denied    float64 `json:"denied"`
	Shadowed  float64 `json:"shadowed"`
	Errors    float64 `json:"errors"`
}

// A Series is the history of counts: one number for each step, the oldest first. The last
// step is the present one.
type Series struct {
	From     int64    `json:"from"` // when the first step began, in Unix seconds
	Step     int      `json:"step"` // seconds
	Last     int      `json:"last"` // how many seconds of the last step have passed
	Allowed  []uint64 `json:"allowed"`
	Denied   []uint64 `json:"denied"`
	Shadowed []uint64 `json:"shadowed"`
	Errors   []uint64 `json:"errors"`
}

// A Listener is the state of a listener. Calls are the gRPC calls, HTTP requests and RESP
// pipelines within the window that asked for decisions, each for one or more. The latency is
// theirs, in seconds, estimated from a histogram; null if there were none.
type Listener struct {
	Name        string   `json:"name"`
	Connections int      `json:"connections"`
	Refused     uint64   `json:"refused"` // connections over the connection limit, since the start
	Calls       uint64   `json:"calls"`
	P50         *float64 `json:"p50"`
	P90         *float64 `json:"p90"`
	P99         *float64 `json:"p99"`

	buckets []uint64 // of the histogram
}

// A Store is the state of the store.
type Store struct {
	Kind     string   `json:"kind"` // memory, redis, postgresql, mysql or sqlite
	Degraded bool     `json:"degraded"`
	Reasons  []string `json:"reasons"` // why it is degraded

	// Shards are the parts of a store on Redis with their own failures.
	Shards      []Shard     `json:"shards"`
	StateLosses []StateLoss `json:"state_losses"`
	Errors      uint64      `json:"errors"`   // calls that failed because it was unavailable
	Refusals    uint64      `json:"refusals"` // calls that it refused, though it was available

	Memory *Memory `json:"memory,omitempty"` // of a memory store
	Home   *Home   `json:"home,omitempty"`   // of a daemon with global limits, and of no other, whatever the scope
}

// A Home is the state of the home region, and what limits over all regions cost the daemon since its start.
type Home struct {
	Down    bool   `json:"down"`    // it does not answer
	Spent   uint64 `json:"spent"`   // units, from pools of this region
	Waited  uint64 `json:"waited"`  // requests that home decided, or what replaced it
	Lots    uint64 `json:"lots"`    // that home was asked for
	Short   uint64 `json:"short"`   // … and had too little for
	Failed  uint64 `json:"failed"`  // … and that got no answer
	Granted uint64 `json:"granted"` // units of the lots
	Lost    uint64 `json:"lost"`    // … that were charged and cannot be spent

	LotAge float64 `json:"lot_age"` // seconds since a pool got its last lot when the next one was asked for, on average
}

// A Shard is a part of a store on Redis.
type Shard struct {
	Shard int    `json:"shard"`
	State string `json:"state"` // up or down
	Error string `json:"error,omitempty"`
}

// A StateLoss is how often the store lost state for a reason.
type StateLoss struct {
	Reason string `json:"reason"` // keys_gone or new_run
	Count  uint64 `json:"count"`
}

// Memory is what a memory store holds.
type Memory struct {
	Keys             int64  `json:"keys"`
	MaxKeys          int    `json:"max_keys"`
	RequestLimitKeys int64  `json:"request_limit_keys"` // under limits that requests brought
	Bytes            int64  `json:"bytes"`              // of sliding logs and rolling windows
	MaxBytes         int64  `json:"max_bytes"`
	Overflow         uint64 `json:"overflow"` // decisions by an overflow bucket
}

// A Process is what the daemon uses of the machine.
type Process struct {
	HeapBytes  uint64 `json:"heap_bytes"`  // of live and not yet collected objects
	TotalBytes uint64 `json:"total_bytes"` // that the Go runtime holds
	Goroutines int    `json:"goroutines"`
	Processors int    `json:"processors"`
}

// A RuleRow is a rule in a [Live]. Limits that requests bring share one row, whose name is
// empty; so do the rules beyond those that history is kept for, as OtherRules.
type RuleRow struct {
	Name  string `json:"name"`
	Limit string `json:"limit,omitempty"`
	Mode  string `json:"mode"` // enforce or shadow

	Totals Counts  `json:"totals"` // since the start
	Counts Counts  `json:"counts"` // within the window
	Rate   float64 `json:"rate"`   // decisions a second over the last ten seconds

	// DeniedShare and ShadowShare are the parts of the window's decisions that were
	// denied, or would have been: 0 to 1.
	DeniedShare float64 `json:"denied_share"`
	ShadowShare float64 `json:"shadow_share"`

	// Decisions and DeniedOrShadowed are for sparklines: the window in 60 equal steps,
	// 48 of half an hour for a day, the oldest first. They are empty in a rule's first
	// second.
	Decisions        []uint64 `json:"decisions"`
	DeniedOrShadowed []uint64 `json:"denied_or_shadowed"`

	Permits *Permits `json:"permits,omitempty"` // of a concurrent limit
}

// Permits are what became of the permits of a concurrent limit, since the start. How many are
// held, only the store knows, for each key.
type Permits struct {
	Granted  uint64 `json:"granted"`  // permits, renewals included
	Released uint64 `json:"released"` // permits

	// NotHeld counts the releases that found no permit under their ID: it had expired, or
	// was never granted. Envoy sends such a release for each request that was denied.
	NotHeld uint64 `json:"not_held"`

	// HeldIDs counts the requests that were denied only because their ID held a permit
	// already.
	HeldIDs uint64 `json:"held_ids"`
}

func (p *Permits) add(other *Permits) {
	p.Granted += other.Granted
	p.Released += other.Released
	p.NotHeld += other.NotHeld
	p.HeldIDs += other.HeldIDs
}

// OtherRules is the name of the row of all rules beyond the first 1,000.
const OtherRules = "(other rules)"

// A Daemon is a daemon on the same Redis.
type Daemon struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Updated time.Time `json:"updated"` // when it last wrote its summary
	Missing bool      `json:"missing"` // it has not written one for too long
	Rates   Rates     `json:"rates"`
}
