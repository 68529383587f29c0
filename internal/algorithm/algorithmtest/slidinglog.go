package algorithmtest

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var slidingLog = newKind("sliding-log", row{newKey: func() key { return &logKey{} }, newLedger: newLogLedger})

// A logKey grows its ring when needed.
type logKey struct {
	limit algorithm.SlidingLog
	log   algorithm.Log
}

func (k *logKey) decide(now int64, req algorithm.Request) result {
	k.limit.Normalize(&k.log, now)
	v := k.limit.Decide(&k.log, now, req)
	if v.Granted != 0 {
		k.grow(k.limit.Room(&k.log, now, max(v.Granted, 0)))
		k.limit.Record(&k.log, now, v.Granted)
	}
	return result{v, k.limit.Balance(&k.log, now)}
}

func (k *logKey) grow(need int) {
	if need <= len(k.log.Times) {
		return
	}
	room := max(need, k.log.Len) // the log may hold more than is needed, and CopyTo copies all
	longer := algorithm.Log{Times: make([]int64, room)}
	k.log.CopyTo(&longer)
	k.log = longer
}

func (k *logKey) refundDue(now, units, due int64) result {
	k.limit.Normalize(&k.log, now)
	v := k.limit.RefundDue(&k.log, now, units, due)
	return result{v, k.limit.Balance(&k.log, now)}
}

func (k *logKey) change(l limit) {
	k.limit = algorithm.SlidingLog{Count: l.count, Period: l.period, Tick: l.tick}
}

// fork copies the log into a ring of another length, which must not matter.
func (k *logKey) fork() key {
	copied := &logKey{limit: k.limit, log: algorithm.Log{Times: make([]int64, k.log.Len+1)}}
	k.log.CopyTo(&copied.log)
	return copied
}

// state describes the units that still count.
func (k *logKey) state(now int64) string {
	var live []int64
	for i := range k.log.Len {
		at := k.log.Times[(k.log.Head+i)%len(k.log.Times)]
		if now-at < k.limit.Period {
			live = append(live, at)
		}
	}
	return fmt.Sprintf("%d, empty in %d", live, max(k.empty()-now, 0))
}

func (k *logKey) empty() int64 { return k.limit.Empty(&k.log) }

func (k *logKey) valid(now int64) bool {
	latest := int64(0)
	for i := range k.log.Len {
		at := k.log.Times[(k.log.Head+i)%len(k.log.Times)]
		if at < latest {
			return false
		}
		latest = at
	}
	return latest <= now && (k.log.Len == 0 || k.log.Newest == latest)
}

func newLogLedger(l limit) ledger {
	return &windowLedger{count: l.count, counts: func(t, at int64) bool { return t-at < l.period }}
}
