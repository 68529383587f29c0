package overload_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/overload"
)

func TestRetryBudgetIsAShareOfSuccesses(t *testing.T) {
	b := overload.NewRetryBudget(&overload.RetryBudgetOptions{Share: 0.1, Burst: 5})
	take := func() (n int) {
		for b.Take() {
			n++
		}
		return n
	}
	if n := take(); n != 5 {
		t.Errorf("at the beginning: %d retries, want the burst of 5", n)
	}
	for range 25 {
		b.Succeeded()
	}
	if n := take(); n != 2 {
		t.Errorf("after 25 successes: %d retries, want 2", n)
	}
	for range 1000 {
		b.Succeeded()
	}
	if n := take(); n != 5 {
		t.Errorf("after 1000 successes: %d retries, want the burst of 5", n)
	}
}

func TestRetryBudgetIsExactForConcurrentCallers(t *testing.T) {
	const callers, calls = 8, 1000
	b := overload.NewRetryBudget(&overload.RetryBudgetOptions{Share: 0.25, Burst: callers * calls})
	for b.Take() {
	}
	var taken atomic.Int64
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range calls {
				b.Succeeded()
				if b.Take() {
					taken.Add(1)
				}
			}
		})
	}
	group.Wait()
	if n := taken.Load(); n != callers*calls/4 {
		t.Errorf("%d retries for %d successes, want a quarter", n, callers*calls)
	}
}
