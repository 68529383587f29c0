package storetest

import (
	"context"
	"math"
	"sync"

	"github.com/penstock-io/penstock"
)

// A model is the store that other stores are compared with: the pure steps of
// the algorithms over two maps, under one lock. It never forgets anything, and
// nothing in it is clever.
type model struct {
	mu     sync.Mutex
	clock  *Clock
	ledger ledger
}

func newModel(clock *Clock) *model {
	return &model{clock: clock, ledger: newLedger()}
}

// Take decides one request.
func (m *model) Take(_ context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := r.Validate(); err != nil {
		return penstock.Decision{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.take(m.clock.Now().UnixNano(), r), nil
}

// TakeAll decides requests as one. What AllowAll refuses has no meaning.
func (m *model) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, ds); err != nil {
		return err
	}
	total := map[holder]int64{}
	for _, r := range rs {
		if r.Cost > math.MaxInt64-total[holderOf(r)] {
			return &penstock.FieldError{Field: "Cost", Problem: "adds up to more than fits", Kind: penstock.ErrBadCost}
		}
		total[holderOf(r)] += r.Cost
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(ds, m.ledger.takeAll(m.clock.Now().UnixNano(), rs))
	return nil
}
