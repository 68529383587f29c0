package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Whatever cold and warm processes take and refund, what is in use has been paid for.
func TestWarmUpNeverUsesMoreThanWasPaid(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 1))
	for range fixedseed.FewerUnderRace(3000) {
		count, ops := 1+rng.Int64N(12), make([]warmUpOp, 1+rng.IntN(12))
		for i := range ops {
			ops[i] = newWarmUpOp(rng)
		}
		synctest.Test(t, func(t *testing.T) {
			if problem := runWarmUp(count, ops); problem != "" {
				t.Fatalf("%d/1h: %s", count, problem)
			}
		})
	}
}

// A warmUpOp is one call of a process.
type warmUpOp struct {
	kind     string
	warm     bool
	hidden   bool // the process has a wrapper that hides TakeAll
	cost     int64
	other    int64 // the cost of a second request, or what is refunded
	id       string
	keepFree int64
}

func newWarmUpOp(rng *rand.Rand) warmUpOp {
	kinds := []string{"take", "take", "at most", "all", "each", "refund", "refund", "settle", "sleep"}
	return warmUpOp{
		kind: kinds[rng.IntN(len(kinds))], warm: rng.IntN(2) == 0, hidden: rng.IntN(2) == 0,
		cost: 1 + rng.Int64N(6), other: 1 + rng.Int64N(6),
		id: []string{"", "a", "b"}[rng.IntN(3)], keepFree: max(rng.Int64N(6)-3, 0),
	}
}

// runWarmUp makes the calls, and returns what is wrong.
func runWarmUp(count int64, ops []warmUpOp) string {
	memory := penstock.NewMemory(nil)
	cold := penstock.WithWarmUp(memory, 30*time.Second)
	limit := penstock.Limit{Algorithm: penstock.FixedWindow, Count: count, Period: time.Hour, Debt: 100}
	used := map[string]int64{} // by ID
	sum := func() (n int64) {
		for _, units := range used {
			n += units
		}
		return n
	}
	for i, op := range ops {
		var store penstock.Store = cold
		if op.warm {
			store = memory
		}
		if op.hidden {
			store = penstock.StoreFunc(store.Take)
		}
		problem := op.run(store, limit, used)
		d, err := memory.Take(context.Background(), penstock.Request{Key: "key", Limit: limit})
		if err != nil {
			return err.Error()
		}
		if paid := d.Limit - d.Remaining; problem == "" && sum() > paid && sum() <= count {
			problem = fmt.Sprintf("%d units are in use, and %d are paid", sum(), paid)
		}
		if problem != "" {
			return fmt.Sprintf("op %d of %+v: %s", i, ops, problem)
		}
	}
	return ""
}

func (op *warmUpOp) run(store penstock.Store, limit penstock.Limit, used map[string]int64) string {
	r := penstock.Request{Key: "key", Limit: limit, Cost: op.cost, ID: op.id, KeepFree: op.keepFree}
	rs, ds := []penstock.Request{r, r}, make([]penstock.Decision, 2)
	rs[1].Cost = op.other
	var err error
	switch op.kind {
	case "sleep":
		time.Sleep(10 * time.Second)
	case "take", "at most":
		r.AtMost = op.kind == "at most"
		if ds[0], err = store.Take(context.Background(), r); err == nil && ds[0].Allowed {
			op.grant(used, ds[0].Granted)
		}
	case "all", "each":
		rs[0].ID, rs[1].ID, op.id = "", "", ""
		take := penstock.TakeAll
		if op.kind == "each" {
			take = penstock.TakeEach
		}
		if err = take(context.Background(), store, rs, ds); err == nil {
			op.grant(used, ds[0].Granted+ds[1].Granted)
		}
	case "refund":
		r.Cost = -min(op.other, used[op.id])
		if r.Cost < 0 {
			if ds[0], err = store.Take(context.Background(), r); err == nil {
				used[op.id] += r.Cost
			}
		}
	case "settle":
		r.Settle = true
		if op.id != "" && used[op.id] > 0 {
			if ds[0], err = store.Take(context.Background(), r); err == nil {
				used[op.id] = ds[0].Granted
			}
		}
	}
	if err != nil && !errors.Is(err, penstock.ErrUnknownID) && !errors.Is(err, penstock.ErrBadCost) {
		return err.Error()
	}
	return ""
}

// grant records what was granted. A retry under an ID is granted the same again.
func (op *warmUpOp) grant(used map[string]int64, units int64) {
	if op.id != "" {
		used[op.id] = max(used[op.id], units)
		return
	}
	used[""] += units
}
