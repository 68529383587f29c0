package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
)

// Terms are what a caller asks for beside units. They hold for all descriptors of a request.
type Terms struct {
	// ID makes a request safe to repeat: it is charged once. Units that were taken under it stay
	// charged after an error, because a repetition is granted the same. Optional.
	ID string

	// Settle makes what was charged under the ID equal to the costs of the descriptors, under
	// their rules with settle; if none has it, the error is [ErrNoSettle]. All rules that can
	// deny the request are settled or none is: an ID that is not remembered is
	// [penstock.ErrUnknownID]. A shadow or quota rule, which may have granted nothing to an
	// allowed request, is settled if it remembers the ID. Other rules are only peeked at.
	Settle bool

	// AtMost takes what is left under all limits if that is less than the cost, which is the same
	// for all descriptors. The request is denied only if one of them has nothing left. Beside other
	// limits, a few units may be taken for a moment that are refunded then.
	AtMost bool

	// KeepFree is how many units must remain, where that is more than the rule says.
	KeepFree int64

	// MaxDelay is the longest delay under rules whose limit is a queue. Others never delay.
	// Default: as long as the queue.
	MaxDelay time.Duration
}

// NoDelay is the MaxDelay of APIs that cannot hold a request: it is shorter than the tick of any
// store, so a queue allows only what needs no delay.
const NoDelay = time.Nanosecond

// isPlain reports whether requests are decided by their limits alone. Limits with a queue are not
// plain by themselves.
func (t *Terms) isPlain() bool { return t.ID == "" && !t.Settle && !t.AtMost && t.KeepFree == 0 }

// ErrNoAtMost means that a request can only be granted as a whole.
var ErrNoAtMost = errors.New("the descriptors cannot be granted in part")

// checkTerms returns an error if the limits that were found cannot be decided on the terms.
func (f *found) checkTerms() error {
	switch t := &f.terms; {
	case t.KeepFree < 0:
		return badTerm("KeepFree", strconv.FormatInt(t.KeepFree, 10)+": must not be negative")
	case t.MaxDelay < 0:
		return badTerm("MaxDelay", t.MaxDelay.String()+": must not be negative")
	case !t.AtMost:
		return nil
	case t.Settle:
		return badTerm("AtMost", "cannot be combined with a settlement")
	}
	for i := range f.limited {
		if err := f.checkAtMost(&f.limited[i]); err != nil {
			return err
		}
	}
	return nil
}

func badTerm(field, problem string) error {
	return &penstock.FieldError{Field: field, Problem: problem, Kind: penstock.ErrBadCost}
}

// checkAtMost returns an error if a descriptor cannot be granted in part.
func (f *found) checkAtMost(d *limitedDescriptor) error {
	problem := ""
	switch several := len(f.limited) > 1; {
	case d.cost < 0:
		return badTerm("AtMost", "cannot be combined with a refund")
	case d.cost != f.limited[0].cost:
		return badTerm("AtMost", "wants the same cost for all descriptors")
	case f.compat:
		problem = "its hits are counted as Envoy's service counts them"
	case d.rule.ChargeAlways:
		problem = "charge: always charges what was used already"
	case d.quota && several:
		problem = "it is one of several limits, and a quota, which need not grant anything"
	case several && (f.terms.ID != "" || d.rule.ID != ""):
		problem = "what several limits grant under an ID cannot be made equal"
	default:
		return nil
	}
	return fmt.Errorf("rule %s: %w: %s", d.rule.Name, ErrNoAtMost, problem)
}

// levelGrants refunds what limits granted beyond the least grant, which is that of the request.
// Shadow rules count as much.
func (ev *evaluation) levelGrants(ctx context.Context) error {
	least := int64(math.MaxInt64)
	for i := range ev.limited {
		if d := &ev.limited[i]; d.phase == phaseAtMost {
			least = min(least, d.granted())
		}
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		switch {
		case d.phase != phaseAtMost:
			d.cost = min(d.cost, least)
		case d.granted() > least:
			ev.add(d, least-d.granted())
		}
	}
	return ev.call(context.WithoutCancel(ctx), false)
}
