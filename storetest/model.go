package storetest

import (
	"context"
	"math"
	"sync"

	"github.com/penstock-io/penstock"
)

// A model is the store that other stores are compared with: the pure algorithms over
// two maps, under one lock. It is simple and never deletes expired state.
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
	return m.ledger.take(m.clock.Now().UnixNano(), r)
}

// TakeAll decides requests all or nothing. AllowAll validates them.
func (m *model) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, ds); err != nil {
		return err
	}
	total := map[stateKey]int64{}
	for _, r := range rs {
		if r.Cost > math.MaxInt64-total[stateKeyOf(r)] {
			clear(ds)
			return &penstock.FieldError{Field: "Cost", Problem: "adds up to more than fits", Kind: penstock.ErrBadCost}
		}
		total[stateKeyOf(r)] += r.Cost
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	decisions, err := m.ledger.takeAll(m.clock.Now().UnixNano(), rs)
	if err != nil {
		clear(ds)
		return err
	}
	copy(ds, decisions)
	return nil
}
