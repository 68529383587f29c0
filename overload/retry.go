package overload

import (
	"cmp"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/defaults"
)

// RetryBudgetOptions are the settings of a [RetryBudget]. A number of zero or less means its default.
type RetryBudgetOptions struct {
	// Share is how many retries there are for each call that succeeded. Default: 0.1.
	Share float64

	// Burst is how many retries are saved up, and how many there are at the beginning. Default: 10.
	Burst int
}

const (
	defaultRetryShare = 0.1
	defaultRetryBurst = 10

	oneRetry = 1_000_000 // of the unit in which a budget counts
)

// A RetryBudget bounds retries to a share of the calls that succeed, so that clients of a service that
// fails send it hardly more than without retries: it is a bucket that successes fill. It is safe for
// concurrent use, and must not be copied.
type RetryBudget struct {
	left        atomic.Int64
	share, most int64
}

// NewRetryBudget returns a full budget. Nil options mean all defaults.
func NewRetryBudget(o *RetryBudgetOptions) *RetryBudget {
	o = cmp.Or(o, &RetryBudgetOptions{})
	share, burst := min(defaults.Or(o.Share, defaultRetryShare), 1000), defaults.Or(o.Burst, defaultRetryBurst)
	b := &RetryBudget{share: max(int64(share*oneRetry), 1), most: int64(burst) * oneRetry}
	b.left.Store(b.most)
	return b
}

// Succeeded adds the share of a call that succeeded.
func (b *RetryBudget) Succeeded() {
	for {
		left := b.left.Load()
		if left >= b.most || b.left.CompareAndSwap(left, min(left+b.share, b.most)) {
			return
		}
	}
}

// Take takes a retry from the budget, or returns false if there is none.
func (b *RetryBudget) Take() bool {
	for {
		left := b.left.Load()
		if left < oneRetry {
			return false
		}
		if b.left.CompareAndSwap(left, left-oneRetry) {
			return true
		}
	}
}
