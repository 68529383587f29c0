package redisstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// TakeEach decides every request independently, all of them in one round trip.
// [penstock.TakeEach] calls it. When it returns an error, some of the requests may
// have been charged. A [penstock.KeyError] is about the first key that holds a value that
// no limit wrote; the requests on other keys are decided.
//
// Concurrent calls without IDs and refunds, for two to five different keys under limits
// of the same algorithms, share a script, except in a Cluster.
func (s *Store) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	clear(ds[:min(len(rs), len(ds))]) // decisions beside an error must deny
	if len(ds) < len(rs) {
		return fmt.Errorf("redisstore: %d requests, but room for %d decisions", len(rs), len(ds))
	}
	if len(rs) == 1 { // it can join a batch of takes
		return s.takeSingle(ctx, rs, ds)
	}
	start := time.Now()
	if decided, err := s.takeEachInGroup(ctx, start, rs, ds); decided || err != nil {
		return err
	}
	d := s.deadlineAfter(ctx, start, s.timeout)
	defer d.stop()
	return s.takeEach(d, rs, ds)
}

// takeSingle decides a call that has one request.
func (s *Store) takeSingle(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (err error) {
	if ds[0], err = s.Take(ctx, rs[0]); err != nil {
		return requestError(0, err)
	}
	return nil
}

// takeEachInGroup decides the requests in one script, or in a batch. It decides nothing if
// they have no group, or if a key holds a value that no limit wrote: sent one by one, the
// others are decided.
func (s *Store) takeEachInGroup(
	ctx context.Context, start time.Time, rs []penstock.Request, ds []penstock.Decision,
) (decided bool, err error) {
	if s.sharded() || len(rs) > script.MaxUnrolled || slices.ContainsFunc(rs, mustGoAlone) {
		return len(rs) == 0, nil
	}
	t := groupTakePool.Get().(*groupTake)
	if t.items, err = s.compileItems(t.items[:0], rs); err != nil {
		return false, err
	}
	if t.group = s.groupOf(t.items, rs, true); t.group == nil {
		t.release()
		return false, nil
	}
	switch err = s.submitGroup(ctx, start, t, ds); {
	case err != nil && (isKeyError(err) || crossesSlots(err)):
		return false, nil // the client may still write into t
	case err != nil:
		return false, err // likewise
	}
	t.release()
	return true, nil
}

// mustGoAlone reports whether a request needs a script of its own.
func mustGoAlone(r penstock.Request) bool { return r.ID != "" || r.Cost < 0 }

// isKeyError reports whether an error is about the value of one key. A script that fails so has
// charged nothing.
func isKeyError(err error) bool { return isA[*penstock.KeyError](err) }

// takeEach decides every request by a script of its own. A value that no limit wrote fails
// only the request on its key; any other error ends the call.
func (s *Store) takeEach(d *deadline, rs []penstock.Request, ds []penstock.Decision) error {
	qs, calls, err := s.sendEach(d, rs, 0)
	if err != nil {
		return err
	}
	var foreign error
	for i := range rs {
		ds[i], err = s.receive(d, &qs[i], calls[i:i+1])
		switch {
		case err == nil:
		case !isKeyError(err):
			return requestError(i, err)
		case foreign == nil:
			foreign = requestError(i, err)
		}
	}
	return foreign
}

// sendEach makes the calls of independent requests in one round trip. For recordTTL see
// compile.
func (s *Store) sendEach(d *deadline, rs []penstock.Request, recordTTL int64) ([]compiledRequest, []Call, error) {
	qs, calls := make([]compiledRequest, len(rs)), roomyCalls(len(rs))
	for i := range rs {
		if err := s.compile(&qs[i], &rs[i], recordTTL); err != nil {
			return nil, nil, requestError(i, err)
		}
		calls[i].Keys = qs[i].appendKeys(calls[i].Keys)
		s.encodeArgs(&qs[i], &calls[i])
	}
	keepOrder(calls)
	s.roundTrip(d, calls)
	return qs, calls, nil
}

// keepOrder sends scripts by their texts where one key has several, with an ID and without: a script that the server
// does not have would be executed after the calls behind it.
func keepOrder(calls []Call) {
	if !slices.ContainsFunc(calls, func(c Call) bool { return len(c.Keys) != len(calls[0].Keys) }) {
		return
	}
	first := make(map[string]int, len(calls))
	for i := range calls {
		j, again := first[calls[i].Keys[0]]
		if !again {
			first[calls[i].Keys[0]] = i
		} else if calls[i].Script != calls[j].Script {
			calls[i].Text, calls[j].Text = true, true
		}
	}
}

// roomyCalls returns calls with room for what nearly all of them hold.
func roomyCalls(n int) []Call {
	const keys, args, numbers = 2, 10, 4
	calls := make([]Call, n)
	texts, replies := make([]string, n*(keys+args)), make([]int64, n*numbers)
	for i := range calls {
		own := texts[i*(keys+args):]
		calls[i] = Call{
			Keys: own[:0:keys], argsBuf: own[keys : keys : keys+args],
			Reply: replies[i*numbers : i*numbers : (i+1)*numbers],
		}
	}
	return calls
}

// receive returns the decision on a request that sendEach has sent, by the only one of the calls.
func (s *Store) receive(d *deadline, q *compiledRequest, calls []Call) (penstock.Decision, error) {
	if calls[0].Err != nil {
		return penstock.Decision{}, s.callError(d, &calls[0])
	}
	decision, ok, err := s.decode(q, &calls[0])
	if !ok { // not decided, but now Redis's clock is known
		return s.sendAlone(d, q, calls)
	}
	return decision, err
}

func requestError(i int, err error) error { return &penstock.RequestError{Index: i, Err: err} }
