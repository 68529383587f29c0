package algorithmtest

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var rollingWindow = newKind("rolling-window", row{
	newKey: func() key { return &rollingKey{} }, newLedger: newRollingLedger,
	refill: func(l limit, _ int64) int64 { return (l.buckets + 1) * bucketLength(l) },
})

// A rollingKey has no ring until something is recorded in it.
type rollingKey struct {
	limit algorithm.RollingWindow
	ring  algorithm.Ring
}

func (k *rollingKey) decide(now int64, req algorithm.Request) result {
	k.limit.Normalize(&k.ring, now)
	v := k.limit.Decide(&k.ring, now, req)
	if v.Granted != 0 {
		if k.ring.Counts == nil {
			k.ring.Counts = make([]int64, k.limit.Buckets+1)
		}
		k.limit.Record(&k.ring, now, v.Granted)
	}
	return result{v, k.limit.Balance(&k.ring, now)}
}

func (k *rollingKey) refundDue(now, units, due int64) result {
	k.limit.Normalize(&k.ring, now)
	v := k.limit.RefundDue(&k.ring, now, units, due)
	return result{v, k.limit.Balance(&k.ring, now)}
}

func (k *rollingKey) change(l limit) {
	k.limit = algorithm.NewRollingWindow(l.count, l.period, l.buckets, l.tick)
}

func (k *rollingKey) fork() key {
	copied := *k
	copied.ring.Counts = slices.Clone(k.ring.Counts)
	return &copied
}

// state describes the buckets that still count, oldest first, each by its number.
func (k *rollingKey) state(now int64) string {
	var live []entry
	r, n := &k.ring, len(k.ring.Counts)
	for i := 1; i <= n; i++ {
		number := r.Newest - int64(n-i)
		units := r.Counts[(r.Head+i)%n]
		if units > 0 && now/k.limit.Length-number <= k.limit.Buckets {
			live = append(live, entry{number, units})
		}
	}
	return fmt.Sprintf("%+v, empty in %d", live, max(k.empty()-now, 0))
}

func (k *rollingKey) empty() int64 { return k.limit.Empty(&k.ring) }

func (k *rollingKey) valid(now int64) bool {
	total := int64(0)
	for _, units := range k.ring.Counts {
		if units < 0 {
			return false
		}
		total += units
	}
	return total == k.ring.Total && k.ring.Newest <= now/k.limit.Length
}

// newRollingLedger counts the bucket of the clock that an instant is in, and as
// many before it as there are in a period.
func newRollingLedger(l limit) ledger {
	length := bucketLength(l)
	return &windowLedger{count: l.count, counts: func(t, at int64) bool {
		return t/length-at/length <= l.buckets
	}}
}

// bucketLength returns the shortest whole number of ticks of which the limit's
// buckets cover its period.
func bucketLength(l limit) int64 {
	tooShort := last(0, l.period/l.tick+1, func(ticks int64) bool {
		covered := new(big.Int).Mul(big.NewInt(ticks*l.tick), big.NewInt(l.buckets))
		return covered.Cmp(big.NewInt(l.period)) < 0
	})
	return (tooShort + 1) * l.tick
}
