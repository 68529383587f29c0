package algorithmtest

import (
	"math/big"
)

// An entry of a history is so many units, admitted at one instant.
type entry struct {
	at    int64
	units int64
}

// A history is all that was admitted, and neither refunded nor dropped, oldest first.
type history []entry

// sum adds up the entries that count.
func (h history) sum(counts func(at int64) bool) (units int64) {
	for _, e := range h {
		if counts(e.at) {
			units += e.units
		}
	}
	return units
}

// removeNewest removes at most n units of those that count, newest first, and returns
// how many.
func (h history) removeNewest(n int64, counts func(at int64) bool) (removed int64) {
	for i := len(h) - 1; i >= 0; i-- {
		if counts(h[i].at) {
			some := min(n-removed, h[i].units)
			h[i].units -= some
			removed += some
		}
	}
	return removed
}

// removeOldest removes units from the oldest end.
func (h history) removeOldest(n int64, counts func(at int64) bool) {
	for i := range h {
		if counts(h[i].at) {
			some := min(n, h[i].units)
			h[i].units -= some
			n -= some
		}
	}
}

// A windowLedger counts the entries of its history for which counts holds. The sliding
// log is one, and so is the rolling window.
type windowLedger struct {
	history
	count     int64
	overdraft int64
	counts    func(t, at int64) bool
}

func (w *windowLedger) at(t int64) func(at int64) bool {
	return func(at int64) bool { return w.counts(t, at) }
}

func (w *windowLedger) max() int64 { return w.count }

func (w *windowLedger) fits(t, n, _ int64) bool { return n <= w.count-w.sum(w.at(t)) }

func (w *windowLedger) unused(t int64) bool { return w.sum(w.at(t)) == 0 }

func (w *windowLedger) delay(_, _ int64) int64 { return 0 }

func (w *windowLedger) charge(now, n int64) {
	w.history = append(w.history, entry{now, n})
}

func (w *windowLedger) room(t int64) int64 { return max(w.count-w.sum(w.at(t))+w.overdraft, 0) }

func (w *windowLedger) refund(now, n int64) int64 {
	return w.removeNewest(n, w.at(now))
}

func (w *windowLedger) truncate(int64) {}

func (w *windowLedger) change(l limit) { w.count, w.overdraft = l.count, l.overdraft }

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ceil returns the smallest whole number that is not below x.
func ceil(x *big.Rat) *big.Int {
	minus := new(big.Int).Neg(x.Num())
	return minus.Neg(minus.Div(minus, x.Denom())) // Div rounds down
}

// wholeTicks returns the smallest whole number of ticks that is not below d, in
// nanoseconds.
func wholeTicks(d *big.Rat, tick int64) *big.Int {
	ticks := ceil(new(big.Rat).Quo(d, whole(tick)))
	return ticks.Mul(ticks, big.NewInt(tick))
}
