// Package algorithmtest has two models of each algorithm, in one file: a key, which decides by package algorithm as a
// store does, and a ledger, by which a slow oracle decides. Tests of this package compare them. Package storetest
// compares stores with a key.
package algorithmtest

import "github.com/penstock-io/penstock/internal/algorithm"

// A Limit is a limit with its defaults filled in. Times are nanoseconds.
type Limit struct {
	Algorithm                  string
	Count, Period, Burst, Debt int64
	Buckets, Tick              int64
	Windows                    Windows // of fixed windows
}

// Windows are where fixed windows lie. They can be compared, as states are.
type Windows interface {
	Window(now int64) algorithm.Window
}

// A State is the state of a key. It is a value: what changes it returns another one. The zero State
// is full under any limit.
type State struct{ key key }

// Decide returns the new state and the decision.
func (s State) Decide(l Limit, now int64, req algorithm.Request) (State, algorithm.Outcome, algorithm.Balance) {
	k := s.keyOf(l)
	r := k.decide(now, req)
	return State{k}, r.Outcome, r.Balance
}

// RefundDue returns the state and the decision after a refund of units that time will have paid back at due.
func (s State) RefundDue(l Limit, now, units, due int64) (State, algorithm.Outcome, algorithm.Balance) {
	k := s.keyOf(l)
	r := k.refundDue(now, units, due)
	return State{k}, r.Outcome, r.Balance
}

// Holds reports whether permits are held under an ID.
func (s State) Holds(id uint64, now int64) bool {
	k, ok := s.key.(*permitKey)
	return ok && k.permits.Holds(id, now)
}

// keyOf returns a copy of the key, under a limit.
func (s State) keyOf(l Limit) key {
	own := limit{
		kind: kind(l.Algorithm), tick: l.Tick, count: l.Count, period: l.Period,
		windows: storeWindows{l.Windows}, buckets: l.Buckets, overdraft: l.Debt,
	}
	if own.kind.isBucket() {
		own.rate, _ = algorithm.NewRate(l.Count, l.Period, l.Burst, l.Debt, l.Tick)
	}
	if s.key == nil {
		return newKey(own)
	}
	k := s.key.fork()
	k.change(own)
	return k
}
