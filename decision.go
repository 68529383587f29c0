package penstock

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Never is the RetryAfter of a cost that the limit can never grant.
const Never = time.Duration(math.MaxInt64)

// A Decision is a store's answer to a [Request]. The zero Decision denies.
//
// With a limit of 10 per second and a key that has used 8 of them just now,
// taking 1 answers {Allowed: true, Granted: 1, Limit: 10, Remaining: 1,
// ResetAfter: 900ms}, and taking 4 answers {Limit: 10, Remaining: 2,
// RetryAfter: 200ms, ResetAfter: 800ms}.
//
// "Allowed, and that was the last one" is Allowed && Remaining == 0.
type Decision struct {
	// Allowed says whether the request may go on.
	Allowed bool

	// Granted is how many units were charged: the cost when allowed, less
	// only for [Request.AtMost], negative when units were given back. Asked
	// again under the same [Request.ID], it is what was charged then.
	Granted int64

	// Limit is the most that could ever be granted at once: the burst of a
	// bucket, the count of a window.
	Limit int64

	// Remaining is how many units could be taken at this very moment.
	Remaining int64

	// RetryAfter is how long to wait until the same request, asked alone,
	// passes. It is zero when allowed and [Never] when the cost can never
	// fit. One tick of the store's clock earlier the request would still be
	// denied.
	RetryAfter time.Duration

	// ResetAfter is how long until the key is as good as new.
	ResetAfter time.Duration

	// Delay is how long to hold an allowed request before acting on it. Only
	// a [LeakyBucket], or a [Request.MaxDelay], gives one; a look at a leaky
	// bucket tells the delay that one unit would get.
	Delay time.Duration

	// Source says who decided.
	Source Source

	// Compilers return so many words in registers, and callers at once write
	// them back to memory. An array makes them leave the words where they are,
	// which is a tenth of what a decision costs.
	_ [2]byte
}

// set fills in what an algorithm decided, and how the key stands after it.
func (d *Decision) set(cl *compiledLimit, v algorithm.Verdict, st algorithm.Standing) {
	d.Allowed = v.Allowed
	d.Granted = v.Granted
	d.Limit = cl.capacity
	d.Remaining = st.Remaining
	d.RetryAfter = time.Duration(v.RetryAfter)
	d.ResetAfter = time.Duration(st.ResetAfter)
	d.Delay = time.Duration(v.Delay)
}

// String returns the decision for people to read, such as
// "allowed granted=1 remaining=1/10 reset=900ms". What is zero is left out.
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

// A Source says who made a [Decision]. The zero Source is the store itself.
type Source uint8

// The sources of decisions. Stores leave it at zero; wrappers that answer for
// one say so.
const (
	SourceStore     Source = iota // the store itself
	SourceLease                   // units taken ahead and spent locally
	SourceDenyCache               // a remembered denial
	SourceFallback                // the second store, while the first is away
)

// String returns the source's name as it appears in metrics.
func (s Source) String() string {
	switch s {
	case SourceStore:
		return "store"
	case SourceLease:
		return "lease"
	case SourceDenyCache:
		return "deny-cache"
	case SourceFallback:
		return "fallback"
	}
	return "unknown"
}
