package redisstore

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// What tests need that others must not have.

// SetWallClock makes this process take another time for that of the day.
func SetWallClock(ahead time.Duration) {
	wallClock = func() time.Time { return time.Now().Add(ahead) }
}

// Share returns another store that goes through the connections of the first, and
// ends with it.
func (s *Store) Share(o Options) (*Store, error) {
	opts, err := o.withDefaults()
	return newStore(s.client, opts), err
}

// Meet connects once more, as a store does before it goes over to the new
// connections, and then does not.
func (s *Store) Meet(ctx context.Context) error {
	client, err := s.client.(*builtIn).meet(ctx)
	if err == nil {
		client.Close()
	}
	return err
}

// TakeInCompany decides requests under one limit and for the same cost as if all
// had come at the same time. Contexts may be fewer than requests.
func (s *Store) TakeInCompany(rs []penstock.Request, ctxs ...context.Context) (ds []penstock.Decision, errs []error) {
	ds, errs = make([]penstock.Decision, len(rs)), make([]error, len(rs))
	c, trips := &coach{}, make([]*trip, len(rs))
	for i := range rs {
		t := newTrip()
		trips[i], t.began = t, time.Now()
		if errs[i] = s.name(&t.question, &t.calls[0], &rs[i], always); errs[i] != nil {
			continue
		}
		t.begin(contextOf(i, ctxs))
		c.trips = append(c.trips, t)
	}
	if len(c.trips) > 0 {
		s.drive(c)
	}
	for i, t := range trips {
		if errs[i] == nil {
			ds[i], errs[i] = s.arrive(contextOf(i, ctxs), t)
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

// Boards reports whether a request gets a seat beside one that came so long before.
func (s *Store) Boards(r penstock.Request, before time.Duration) (bool, error) {
	first, second := newTrip(), newTrip()
	for _, t := range []*trip{first, second} {
		if err := s.name(&t.question, &t.calls[0], &r, always); err != nil {
			return false, err
		}
	}
	second.began = first.began.Add(before)
	c, _ := first.board(context.Background())
	defer c.release()
	defer first.question.plan.depart(c)
	seat, _ := second.board(context.Background())
	return seat != nil, nil
}
