package penstock

import (
	"errors"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// A PreparedTake asks a [PreparedStore] for units of one key, as a [Request] does, under the
// limit of the [Limiter] that prepared it. That limit is valid and compiled, and no caller can
// change it, so that the store has nothing to check. A PreparedTake can be used again, for
// any key, but not by two calls at once.
type PreparedTake struct {
	// Key is what is limited. Any bytes, but not empty. Required.
	Key string

	// Cost is the number of units. Above 0 takes, 0 peeks.
	Cost int64

	// Decision is where the store writes its decision. Required.
	Decision *Decision

	limit              *compiledLimit
	maxDelay, keepFree int64

	// What a Memory knows about the key while it decides.
	hash  uint64
	shard *shard
	table *hashtable.Table
	at    uint64    // position of the slot in its table
	old   [2]uint64 // the words of the slot after the hash, before the charge
}

// Prepare returns a take of one unit for a [PreparedStore], without a key.
func (l *Limiter) Prepare() PreparedTake {
	return PreparedTake{Cost: 1, limit: l.compiled, keepFree: l.template.KeepFree}
}

// errNoDecision is returned for a [PreparedTake] without a Decision.
var errNoDecision = errors.New("penstock: no Decision to write to")

// request returns the take as a request.
func (t *PreparedTake) request() Request {
	r := Request{Key: t.Key, Cost: t.Cost, KeepFree: t.keepFree}
	if t.limit != nil {
		r.Limit, r.compiled = t.limit.limit, t.limit
	}
	return r
}

// forAlgorithm returns the part of the take that the algorithms need.
func (t *PreparedTake) forAlgorithm() algorithm.Request {
	return algorithm.Request{Cost: t.Cost, MaxDelay: t.maxDelay, KeepFree: t.keepFree}
}
