package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/penstock-io/penstock"
)

// There are many short histories, because the time to check one grows quickly with its
// length.
const (
	clients  = 4
	rounds   = 4 // between which the clock moves
	perRound = 2 // operations of each client
)

func histories() int {
	if testing.Short() {
		return 40
	}
	return 150
}

// testLinearizability runs a few concurrent clients, and checks that the model gives
// the same results in some order in which each operation lies between its call and its
// return.
func testLinearizability(t *testing.T, open Open, supported []penstock.Algorithm) {
	for seed := range uint64(histories()) {
		h := newHistory(t, open, supported, seed)
		for range rounds {
			h.round(t)
		}
		if !porcupine.CheckOperations(ledgerModel, h.operations) {
			t.Fatalf("history %d: no order of these operations explains the results:\n%s", seed, h)
		}
	}
}

// ledgerModel is the model as porcupine needs it.
var ledgerModel = porcupine.Model{
	Init: func() any { return newLedger() },
	Step: func(state, input, output any) (bool, any) {
		l := state.(ledger).clone()
		op := input.(operation)
		return reflect.DeepEqual(l.apply(op), output), l
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
}

// An operation is one Take, or a TakeAll of several requests.
type operation struct {
	now      time.Time
	requests []penstock.Request
}

func (l *ledger) apply(op operation) []penstock.Decision {
	now := op.now.UnixNano()
	if len(op.requests) == 1 {
		d, err := l.take(now, op.requests[0])
		if err != nil {
			return nil
		}
		return []penstock.Decision{d}
	}
	ds, _ := l.takeAll(now, op.requests)
	return ds
}

// A history is the operations of a few clients, with their times.
type history struct {
	store      penstock.Store
	clock      *Clock
	rand       *rand.Rand
	limits     []penstock.Limit
	time       atomic.Int64 // counts calls and returns
	mu         sync.Mutex
	operations []porcupine.Operation
}

func newHistory(t *testing.T, open Open, supported []penstock.Algorithm, seed uint64) *history {
	h := &history{clock: &Clock{}, rand: rand.New(rand.NewPCG(seed, 0))}
	h.store = openAt(t, open, h.clock, noon)
	order := h.rand.Perm(len(supported))
	for i := range 2 {
		l := penstock.PerMinute(h.rand.Int64N(6) + 2).WithAlgorithm(supported[order[i%len(order)]])
		h.limits = append(h.limits, l.WithName(label(i)))
	}
	return h
}

// round runs all clients at once, and then moves the clock.
func (h *history) round(t *testing.T) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for client := range clients {
		ops := make([]operation, perRound)
		for i := range ops {
			ops[i] = h.anyOperation()
		}
		wg.Go(func() {
			<-start
			for _, op := range ops {
				h.run(t, client, op)
			}
		})
	}
	close(start)
	wg.Wait()
	pause := time.Duration(h.rand.Int64N(30_000)) * time.Millisecond
	if err := h.clock.set(h.clock.Now().Add(pause)); err != nil {
		t.Fatal(err)
	}
}

// run runs an operation, and records its results.
func (h *history) run(t *testing.T, client int, op operation) {
	ds := make([]penstock.Decision, len(op.requests))
	var err error
	call := h.time.Add(1)
	runtime.Gosched() // let other operations overlap
	if len(op.requests) == 1 {
		ds[0], err = h.store.Take(context.Background(), op.requests[0])
	} else {
		err = penstock.TakeAll(context.Background(), h.store, op.requests, ds)
	}
	returned := h.time.Add(1)
	if errors.Is(err, penstock.ErrUnknownID) {
		ds, err = nil, nil
	}
	if err != nil {
		t.Error(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: op, Call: call, Output: ds, Return: returned,
	})
}

// anyOperation draws an operation: a take, a refund, either of them under an ID, a
// settlement, a take that keeps units free, a charge, or a TakeAll of two requests, also under an ID. Under
// a concurrency limit it takes, renews or releases permits.
func (h *history) anyOperation() operation {
	op := operation{now: h.clock.Now(), requests: []penstock.Request{h.anyTake()}}
	r := &op.requests[0]
	if needsID(r.Limit) {
		return h.anyPermits(op)
	}
	switch h.rand.IntN(9) {
	case 0:
		r.Cost = -r.Cost
	case 1:
		r.ID = "x"
	case 2:
		r.ID, r.Cost = "x", -r.Cost
	case 8:
		r.ID, r.Cost, r.Settle = "x", h.rand.Int64N(5), true
	case 3, 4:
		if second := h.anyTake(); !needsID(second.Limit) {
			op.requests = append(op.requests, second)
		}
		if r := op.requests; len(r) == 2 && stateKeyOf(r[0]) != stateKeyOf(r[1]) && h.rand.IntN(2) == 0 {
			r[0].ID, r[1].ID = "x", "x"
		}
	case 6:
		r.KeepFree = h.rand.Int64N(4)
	case 5:
		r.Cost, r.Overdraw = 2*r.Cost, true
		if r.Validate() != nil { // a limit that cannot owe
			r.Overdraw = false
		}
	}
	return op
}

// anyPermits takes, renews or releases permits, or takes them together with others.
func (h *history) anyPermits(op operation) operation {
	r := &op.requests[0]
	r.ID = string(rune('x' + h.rand.IntN(3)))
	switch second := h.anyTake(); h.rand.IntN(4) {
	case 0, 1:
		r.Cost = -r.Cost
	case 2:
		r.KeepFree = h.rand.Int64N(3)
		second.ID = r.ID
		if stateKeyOf(second) != stateKeyOf(*r) {
			op.requests = append(op.requests, second)
		}
	default:
		r.KeepFree = h.rand.Int64N(3)
	}
	return op
}

func (h *history) anyTake() penstock.Request {
	return penstock.Request{
		Key:   string(rune('a' + h.rand.IntN(2))),
		Limit: h.limits[h.rand.IntN(len(h.limits))],
		Cost:  h.rand.Int64N(3) + 1,
	}
}

// String returns the history, one operation per paragraph.
func (h *history) String() string {
	var b strings.Builder
	for _, o := range h.operations {
		op := o.Input.(operation)
		fmt.Fprintf(&b, "client %d, from %d to %d, at %s\n", o.ClientId, o.Call, o.Return, op.now.Format(time.TimeOnly))
		if o.Output.([]penstock.Decision) == nil {
			fmt.Fprintf(&b, "    %s\n", unknownID)
		}
		for i, d := range o.Output.([]penstock.Decision) {
			c := call{request: op.requests[i]}
			fmt.Fprintf(&b, "    %s under %s => %s\n", c.text(), c.request.Limit, decisionText(d))
		}
	}
	return b.String()
}
