package simulation

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

var ctx = context.Background()

func limiter(t testing.TB, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// A lossyStore is a store behind a network that refuses connections while it is down, and whose
// responses take a while, or are lost.
type lossyStore struct {
	store         penstock.Store
	down          atomic.Bool
	responseDelay time.Duration
	loseResponse  func() bool
	onRequest     func(rs ...penstock.Request)
}

func (s *lossyStore) Take(ctx context.Context, r penstock.Request) (d penstock.Decision, err error) {
	err = s.send(func() (err error) {
		d, err = s.store.Take(ctx, r)
		return err
	}, r)
	return d, err
}

func (s *lossyStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.send(func() error { return penstock.TakeEach(ctx, s.store, rs, ds) }, rs...)
}

func (s *lossyStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.send(func() error { return penstock.TakeAll(ctx, s.store, rs, ds) }, rs...)
}

func (s *lossyStore) send(take func() error, rs ...penstock.Request) error {
	if s.down.Load() {
		return fmt.Errorf("lossy: %w: connection refused", penstock.ErrUnavailable)
	}
	if s.onRequest != nil {
		s.onRequest(rs...)
	}
	err := take()
	<-time.After(s.responseDelay)
	if s.loseResponse != nil && s.loseResponse() {
		return fmt.Errorf("lossy: %w: connection reset", penstock.ErrUnavailable)
	}
	return err
}
