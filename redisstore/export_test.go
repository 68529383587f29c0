package redisstore

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// What tests need that others must not have.

// SetClock makes the store take the local time to be ahead by so much.
func (s *Store) SetClock(ahead time.Duration) {
	s.now = func() time.Time { return time.Now().Add(ahead) }
}

// Share returns another store that goes through the connections of the first, and
// ends with it.
func (s *Store) Share(o Options) (*Store, error) {
	opts, err := o.withDefaults()
	return newStore(s.client, opts), err
}

// Connect connects once more, as a store does before it goes over to the new
// connections, and then does not.
func (s *Store) Connect(ctx context.Context) error {
	client, err := s.client.(*rueidisClient).connectAndInspect(ctx)
	if err == nil {
		client.Close()
	}
	return err
}

// TakeBatched decides requests under one limit and for the same cost as if all
// had come at the same time. Contexts may be fewer than requests.
func (s *Store) TakeBatched(rs []penstock.Request, ctxs ...context.Context) (ds []penstock.Decision, errs []error) {
	ds, errs = make([]penstock.Decision, len(rs)), make([]error, len(rs))
	c, trips := &batch{}, make([]*pendingTake, len(rs))
	for i := range rs {
		t := newPendingTake()
		trips[i], t.start = t, time.Now()
		if errs[i] = s.encodeKeys(&t.request, &t.calls[0], &rs[i], always); errs[i] != nil {
			continue
		}
		t.prepare(contextOf(i, ctxs))
		c.takes = append(c.takes, t)
	}
	if len(c.takes) > 0 {
		s.flush(c)
	}
	for i, t := range trips {
		if errs[i] == nil {
			ds[i], errs[i] = s.await(contextOf(i, ctxs), t)
		}
	}
	return ds, errs
}

func contextOf(i int, ctxs []context.Context) context.Context {
	if i < len(ctxs) {
		return ctxs[i]
	}
	return context.Background()
}

// Joins reports whether a request gets a seat beside one that came so long before.
func (s *Store) Joins(r penstock.Request, before time.Duration) (bool, error) {
	first, second := newPendingTake(), newPendingTake()
	for _, t := range []*pendingTake{first, second} {
		if err := s.encodeKeys(&t.request, &t.calls[0], &r, always); err != nil {
			return false, err
		}
	}
	second.start = first.start.Add(before)
	c, _ := first.join(context.Background())
	defer c.release()
	defer first.request.limit.seal(c)
	seat, _ := second.join(context.Background())
	return seat != nil, nil
}
