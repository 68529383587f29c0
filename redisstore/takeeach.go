package redisstore

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
)

// TakeEach decides every request independently, all of them in one round trip.
// [penstock.TakeEach] calls it. When it returns an error, some of the requests may
// have been charged.
func (s *Store) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	clear(ds[:min(len(rs), len(ds))]) // decisions beside an error must deny
	if len(ds) < len(rs) {
		return fmt.Errorf("redisstore: %d requests, but room for %d decisions", len(rs), len(ds))
	}
	if len(rs) == 0 {
		return nil
	}
	d := s.deadlineAfter(ctx, s.timeout)
	defer d.stop()
	return s.takeEach(d, rs, ds)
}

func (s *Store) takeEach(d *deadline, rs []penstock.Request, ds []penstock.Decision) error {
	qs, calls, err := s.sendEach(d, rs, 0)
	for i := 0; i < len(rs) && err == nil; i++ {
		if ds[i], err = s.receive(d, &qs[i], &calls[i], &rs[i], 0); err != nil {
			err = requestError(i, err)
		}
	}
	return err
}

// sendEach makes the calls of independent requests in one round trip. For recordTTL see
// encodeKeys.
func (s *Store) sendEach(d *deadline, rs []penstock.Request, recordTTL int64) ([]compiledRequest, []Call, error) {
	qs, calls := make([]compiledRequest, len(rs)), make([]Call, len(rs))
	for i := range rs {
		if err := s.encodeKeys(&qs[i], &calls[i], &rs[i], recordTTL); err != nil {
			return nil, nil, requestError(i, err)
		}
		s.encodeArgs(&qs[i], &calls[i])
	}
	s.roundTrip(d, calls)
	return qs, calls, nil
}

// receive returns the decision on a request that sendEach has sent.
func (s *Store) receive(d *deadline, q *compiledRequest, c *Call, r *penstock.Request, recordTTL int64) (penstock.Decision, error) {
	if c.Err != nil {
		return penstock.Decision{}, s.callError(d, c)
	}
	decision, ok, err := s.decode(q, c)
	if !ok { // not decided, but now Redis's clock is known
		return s.takeAlone(d, r, recordTTL)
	}
	return decision, err
}

// takeAlone decides one request of several within their common deadline, as Take
// does. For recordTTL see encodeKeys.
func (s *Store) takeAlone(d *deadline, r *penstock.Request, recordTTL int64) (penstock.Decision, error) {
	t := pendingTakePool.Get().(*pendingTake)
	if err := s.encodeKeys(&t.request, &t.calls[0], r, recordTTL); err != nil {
		return penstock.Decision{}, err
	}
	decision, err := s.sendAlone(d, t)
	if err == nil { // after an error, the client may still write into it
		pendingTakePool.Put(t)
	}
	return decision, err
}

func requestError(i int, err error) error { return &penstock.RequestError{Index: i, Err: err} }
