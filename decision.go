package penstock

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Never is the RetryAfter of a cost that the limit can never grant, and of a request that is queued behind others of
// the same TakeAll beyond its MaxDelay, however empty the queue is.
const Never = time.Duration(math.MaxInt64)

// A Decision is the result of a [Request]. The zero Decision denies.
//
// With a limit of 10 per second and a key that has just used 8 of them, taking 1
// returns
//
//	{Allowed: true, Granted: 1, Limit: 10, Remaining: 1, ResetAfter: 900ms}
//
// and taking 4 returns
//
//	{Limit: 10, Remaining: 2, RetryAfter: 200ms, ResetAfter: 800ms}
//
// Allowed && Remaining == 0 means that the request took the last unit.
type Decision struct {
	// Allowed reports whether the request may proceed.
	Allowed bool

	// Granted is the number of units charged: the cost if allowed, or less with
	// [Request.AtMost] or [Request.Overdraw]; negative for a refund. For a retry
	// with the same [Request.ID] it is what was charged the first time.
	Granted int64

	// Limit is the [Limit.Capacity]: the burst of a bucket, the count of a
	// window.
	Limit int64

	// Remaining is the number of units that could be taken now; 0 while the key
	// owes.
	Remaining int64

	// RetryAfter is how long to wait until the same request passes, if no other
	// request comes first. One tick of the store's clock earlier, it would still
	// be denied. It is zero if allowed, and [Never] if the cost exceeds Limit.
	RetryAfter time.Duration

	// ResetAfter is how long until the key is idle: its bucket full, its window
	// empty.
	ResetAfter time.Duration

	// Delay is how long to hold an allowed request before acting on it. Only a
	// [LeakyBucket] or a [Request.MaxDelay] causes one. For a peek at a leaky
	// bucket it is the delay that one unit would get.
	Delay time.Duration

	// Source is the store or wrapper that decided.
	Source Source

	// Go 1.26 returns a struct of this size in registers, and the caller writes
	// them to memory at once. A struct that contains an array is returned in
	// memory, which saves a tenth of the cost of a decision.
	_ [2]byte
}

// set writes the outcome of an algorithm, and the balance of the key after it.
func (d *Decision) set(cl *compiledLimit, out algorithm.Outcome, bal algorithm.Balance) {
	d.Allowed = out.Allowed
	d.Granted = out.Granted
	d.Limit = cl.capacity
	d.Remaining = bal.Remaining
	d.RetryAfter = time.Duration(out.RetryAfter)
	d.ResetAfter = time.Duration(bal.ResetAfter)
	d.Delay = time.Duration(out.Delay)
}

// String returns the decision as text, such as
// "allowed granted=1 remaining=1/10 reset=900ms". Zero fields are left out.
func (d Decision) String() string {
	var b strings.Builder
	if d.Allowed {
		b.WriteString("allowed")
	} else {
		b.WriteString("denied")
	}
	if d.Granted != 0 {
		fmt.Fprintf(&b, " granted=%d", d.Granted)
	}
	fmt.Fprintf(&b, " remaining=%d/%d", d.Remaining, d.Limit)
	for _, part := range []struct {
		name string
		time time.Duration
	}{{"retry", d.RetryAfter}, {"reset", d.ResetAfter}, {"delay", d.Delay}} {
		switch part.time {
		case 0:
		case Never:
			fmt.Fprintf(&b, " %s=never", part.name)
		default:
			fmt.Fprintf(&b, " %s=%v", part.name, part.time)
		}
	}
	if d.Source != SourceStore {
		fmt.Fprintf(&b, " source=%v", d.Source)
	}
	return b.String()
}

// A Source says what made a [Decision]. The zero Source is the store itself.
type Source uint8

// The sources of decisions. Stores leave Source at zero; a wrapper or the daemon sets
// it if it decides without the store.
const (
	SourceStore     Source = iota // the store itself
	SourceLease                   // units that were taken in advance
	SourceDenyCache               // a remembered denial
	SourceFallback                // the second store, while the first is unavailable
	SourceOverride                // a ban, which the daemon decides without a store
)

var sourceNames = [...]string{
	SourceStore: "store", SourceLease: "lease", SourceDenyCache: "deny-cache", SourceFallback: "fallback", SourceOverride: "override",
}

// String returns the source's name as it appears in metrics.
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "unknown"
}
