package algorithmtest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// On a clock that never steps back, every field of every result equals the oracle's, for
// any requests and changes of the limit.
func TestDecideMatchesOracle(t *testing.T) { checkKinds(t, everyKind(), decideMatchesOracle) }

func decideMatchesOracle(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	o := newOracle(tr.limit)
	agree := func(t *rapid.T, req algorithm.Request) {
		got, want := tr.decide(req), o.decide(tr.now, req)
		if got != want {
			t.Fatalf("%v at %d, %+v:\n got %+v\nwant %+v", tr.limit, tr.now, req, got, want)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"time passes": tr.timePasses,
		"take":        func(t *rapid.T) { agree(t, tr.drawTake(t)) },
		"ask":         func(t *rapid.T) { agree(t, tr.drawRequest(t)) },
		"charge":      func(t *rapid.T) { agree(t, tr.drawCharge(t)) },
		"limit changes": func(t *rapid.T) {
			tr.limitChanges(t)
			o.change(tr.limit)
		},
	})
}

// The same holds on a busy key, with small takes at nearly every tick.
func TestDecideMatchesOracleOnBusyKey(t *testing.T) {
	checkKinds(t, everyKind(), busyKeyMatchesOracle)
}

func busyKeyMatchesOracle(t *rapid.T, k kind) {
	l := drawSmallLimit(t, k)
	l.count = rapid.Int64Range(1, 40).Draw(t, "count")
	l.rate.Burst = l.count
	if l.windows == nil {
		l.period = rapid.Int64Range(1, 60).Draw(t, "ticks") * l.tick
		l.buckets = rapid.Int64Range(1, 20).Draw(t, "buckets")
	}
	tr, o := &trace{key: newKey(l), limit: l}, newOracle(l)
	for range 80 {
		if rapid.IntRange(0, 15).Draw(t, "limit changes at 15") == 15 {
			l.count = rapid.Int64Range(1, 40).Draw(t, "count")
			l.rate.Burst = l.count
			tr.limit = l
			tr.change(l)
			o.change(l)
		}
		tr.moveTo(tr.now + rapid.SampledFrom([]int64{0, 1, 2, 5}).Draw(t, "ticks")*l.tick)
		req := algorithm.Request{Cost: rapid.SampledFrom([]int64{1, 1, 1, 2, 3, -1}).Draw(t, "cost")}
		req.Overdraw = k.hasDebt() && req.Cost > 0 && rapid.IntRange(0, 3).Draw(t, "overdraws at 3") == 3
		if req.Cost > 0 && !req.Overdraw {
			req.AtMost = rapid.Bool().Draw(t, "at most")
			req.KeepFree = rapid.Int64Range(0, l.count).Draw(t, "keep free")
		}
		if got, want := tr.decide(req), o.decide(tr.now, req); got != want {
			t.Fatalf("%v at %d, %+v:\n got %+v\nwant %+v", tr.limit, tr.now, req, got, want)
		}
	}
}

// The products that a sliding window divides need more than 64 bits for large counts and
// long periods. Traces seldom get there, so this starts with such counts.
func TestSlidingWindowMatchesOracleForLargeProducts(t *testing.T) {
	rapid.Check(t, largeProductsMatchOracle)
}

func largeProductsMatchOracle(t *rapid.T) {
	const most = 1<<26 - 1
	for range 20 {
		l := limit{kind: slidingWindow, tick: rapid.SampledFrom([]int64{1, millisecond}).Draw(t, "tick")}
		l.count = rapid.Int64Range(most/16, most).Draw(t, "count")
		l.period = rapid.Int64Range(366*day/2/l.tick, 366*day/l.tick).Draw(t, "ticks") * l.tick
		previous := rapid.Int64Range(1, most).Draw(t, "previous")
		current := rapid.Int64Range(1, most).Draw(t, "current")
		tr, o := &trace{key: newKey(l), limit: l}, newOracle(l)
		tr.key.(*slidingKey).slide = algorithm.Slide{Previous: previous, Current: current, End: 2 * l.period}
		o.ledger.(*slidingLedger).history = history{{at: 0, units: previous}, {at: l.period, units: current}}
		tr.now = tr.onTick(rapid.Int64Range(l.period, 3*l.period-1).Draw(t, "now"))
		req := algorithm.Request{Cost: rapid.Int64Range(0, l.count).Draw(t, "cost")}
		if got, want := tr.decide(req), o.decide(tr.now, req); got != want {
			t.Fatalf("%v at %d, %d and %d used, %+v:\n got %+v\nwant %+v", l, tr.now, previous, current, req, got, want)
		}
	}
}

// Rounding such a product up may carry from its lower half into its upper one. That is
// rare in random traces; here it happens each time.
func TestSlidingWindowRoundingCarries(t *testing.T) {
	const count, period int64 = 1<<26 - 1, 366 * day
	for _, c := range []struct{ previous, rest, used int64 }{
		{46_248_729, 30_874_515_665_333_929, 45_154_926},
		{64_671_410, 24_533_606_026_123_597, 50_174_019},
		{10_790_502, 28_239_811_842_512_937, 9_636_263},
	} {
		w := algorithm.SlidingWindow{Count: count, Period: period, Tick: 1}
		s := algorithm.Slide{Previous: c.previous, End: 2 * period}
		if got, want := w.Balance(s, s.End-c.rest).Remaining, count-c.used; got != want {
			t.Errorf("%d units with %d of %d left leave %d of %d, want %d", c.previous, c.rest, period, got, count, want)
		}
	}
}

func everyKind() []kind { return kindsThat(func(kind) bool { return true }) }

func bucketKinds() []kind { return kindsThat(kind.isBucket) }

// debtKinds can be overdrawn.
func debtKinds() []kind { return kindsThat(kind.hasDebt) }

// kindsThat returns the kinds with a property, of those that the oracle decides.
func kindsThat(have func(kind) bool) (list []kind) {
	for k, r := range rows {
		if r.newLedger != nil && have(k) {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}

// checkKinds checks a property of some algorithms, one by one.
func checkKinds(t *testing.T, kinds []kind, property func(*rapid.T, kind)) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { property(t, k) })
		})
	}
}
