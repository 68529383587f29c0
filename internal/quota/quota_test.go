package quota

import (
	"sync"
	"testing"
)

// A share cannot exceed its own bound, nor take what the parent does not have.
func TestShareIsBoundedByItselfAndParent(t *testing.T) {
	whole := New(10, nil)
	share := New(5, whole)
	for _, step := range []struct {
		q           *Quota
		n           int64
		ok          bool
		whole, part int64
	}{
		{share, 4, true, 4, 4},
		{share, 2, false, 4, 4},
		{whole, 5, true, 9, 4},
		{share, 1, true, 10, 5},
		{whole, 1, false, 10, 5},
	} {
		if ok := step.q.Acquire(step.n); ok != step.ok || whole.Used() != step.whole || share.Used() != step.part {
			t.Fatalf("acquiring %d: got %t, %d and %d used, want %+v", step.n, ok, whole.Used(), share.Used(), step)
		}
	}
	share.Release(2)
	if whole.Used() != 8 || share.Used() != 3 || !share.Available() {
		t.Errorf("after a release: %d and %d used, available: %t", whole.Used(), share.Used(), share.Available())
	}
	whole.Acquire(2)
	if share.Available() || share.Acquire(1) || share.Used() != 3 {
		t.Error("the share takes more than its parent has")
	}
}

func TestWithMaxSharesCounter(t *testing.T) {
	q := New(1, nil)
	more := q.WithMax(2)
	if !q.Acquire(1) || q.Available() || !more.Acquire(1) || q.Used() != 2 || q.Max() != 1 || more.Max() != 2 {
		t.Errorf("got %d used of %d and %d", q.Used(), q.Max(), more.Max())
	}
}

// A call that is refused disturbs no other: as long as there is room for one, each of
// those for one succeeds.
func TestRefusedAcquireIsInvisible(t *testing.T) {
	q := New(2, nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				q.Acquire(3)
			}
		}
	})
	for range 100_000 {
		if !q.Acquire(1) || q.Used() > q.Max() {
			t.Errorf("refused, or over the bound: %d used", q.Used())
			break
		}
		q.Release(1)
	}
	close(stop)
	wg.Wait()
}
