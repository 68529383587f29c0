package storetest

import (
	"context"
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

// Take decides one request. What AllowAll refuses has no meaning.
func (m *model) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if _, err := penstock.AllowAll.Take(ctx, r); err != nil {
		return penstock.Decision{}, err
	}
	if err := r.Limit.Validate(); err != nil {
		return penstock.Decision{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.take(m.clock.Now().UnixNano(), r), nil
}

// TakeAll decides requests as one.
func (m *model) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, ds); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(ds, m.ledger.takeAll(m.clock.Now().UnixNano(), rs))
	return nil
}
