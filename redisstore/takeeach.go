package redisstore

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
)

// TakeEach decides every request by itself, all of them in one trip. It is what
// [penstock.TakeEach] calls. When it returns an error, some of the requests may
// have been charged.
func (s *Store) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if len(ds) < len(rs) {
		return fmt.Errorf("redisstore: no room for the decisions: %d requests, %d places", len(rs), len(ds))
	}
	if len(rs) == 0 {
		return nil
	}
	d := deadlineAfter(ctx, s.timeout)
	defer d.stop()
	return s.takeEach(d, rs, ds)
}

func (s *Store) takeEach(d *deadline, rs []penstock.Request, ds []penstock.Decision) error {
	questions, calls := make([]compiledRequest, len(rs)), make([]Call, len(rs))
	for i := range rs {
		if err := s.encode(&questions[i], &calls[i], &rs[i], always); err != nil {
			return requestError(i, err)
		}
	}
	s.roundTrip(d, calls)
	for i := range rs {
		if calls[i].Err != nil {
			return requestError(i, s.callError(d, &calls[i]))
		}
		decision, ok, err := s.decode(&questions[i], &calls[i])
		if !ok { // nothing was decided, but now the server's clock is known
			decision, err = s.takeAlone(d, &rs[i], always)
		}
		if err != nil {
			return requestError(i, err)
		}
		ds[i] = decision
	}
	return nil
}

// requestError says which of several requests an error is about.
func requestError(i int, err error) error { return &penstock.RequestError{Index: i, Err: err} }
