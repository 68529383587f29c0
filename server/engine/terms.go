package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
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

	// Hurried says that MaxDelay is a wish of the caller, and not how long the API can hold a request. Nobody is penalized
	// for denials by a wish.
	Hurried bool
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

// Requests by rules may have an ID: a repeated one is charged once. A caller may also
// take an estimate, and settle it under the same ID once the cost is known.
//
// The ID stands on every limit of the request, so that a repeated take is charged once, as
// a whole. Only rules with settle are settled: a limit on requests beside one on tokens
// stays as it was charged.

// setID sets the ID of the store's requests.
func (f *found) setID() error {
	if f.terms.ID != "" && len(f.limited) > 0 && f.limited[0].trial != nil { // candidates alone refuse no request
		clear(f.limited)
		f.limited = f.limited[:0]
	}
	if f.terms.ID == "" || len(f.limited) == 0 {
		return nil
	}
	first := f.limited[0].rule.Name
	switch {
	case f.compat:
		return fmt.Errorf("rule %s: %w: its hits are counted as Envoy's service counts them", first, ErrNoSettle)
	case f.terms.Settle && !f.hasSettle:
		return fmt.Errorf("rule %s: %w: it needs settle: true", first, ErrNoSettle)
	}
	// By all limits: quota rules are taken before the rules that deny. Would they remember the ID longer,
	// then a repetition that is denied would refund what the first request was granted.
	longest := time.Duration(0)
	for i := range f.limited {
		if d := &f.limited[i]; d.trial == nil {
			longest = max(longest, remembered(d))
		}
	}
	for i := range f.limited {
		d := &f.limited[i]
		switch {
		case d.rule.ChargeAlways:
			return fmt.Errorf("rule %s: %w: charge: always charges what was used already", d.rule.Name, ErrNoSettle)
		case d.cost < 0:
			return &penstock.FieldError{Field: "Cost", Problem: "must not be negative under an ID: settle it to 0", Kind: penstock.ErrBadCost}
		case !d.template.Limit.HasPermits(): // an entry names its permit
			d.id, d.hold = f.terms.ID, d.rule.Hold
			if longest > remembered(d) {
				d.hold = longest
			}
		}
	}
	return nil
}

// remembered returns how long the limit of a descriptor remembers an ID by itself.
func remembered(d *limitedDescriptor) time.Duration {
	return max(d.rule.Hold, requestlimits.IDLifetime(&d.template.Limit))
}

// Check returns the error of a request that the rules cannot decide, or settle, whatever the
// store holds: a permit without an ID, or an ID to settle under rules without settle. It is for APIs that
// decide several requests in turn, so that one that is invalid charges none of the others.
func (e *Engine) Check(ctx context.Context, domain string, terms Terms, ds []Descriptor) error {
	var r Result
	ev, err := e.open(domain, terms, ds, &r)
	if err != nil {
		return err
	}
	defer ev.release()
	if ev.domain == nil {
		return nil
	}
	if err := ev.find(ctx); err != nil {
		return err
	}
	if err := ev.checkShapes(); err != nil {
		return err
	}
	return ev.checkTogether()
}

// checkShapes returns an error if the store would reject the request of a descriptor.
func (f *found) checkShapes() error {
	for i := range f.limited {
		d := &f.limited[i]
		r := *d.template
		r.Key, r.Cost, r.ID, r.Hold, r.Settle = f.keyOf(d), d.cost, d.id, d.hold, d.way.settle
		if err := r.Validate(); err != nil {
			return fmt.Errorf("descriptor %d: %w", d.index, err)
		}
	}
	return nil
}

// checkTogether returns an error if the store would reject what is taken or settled all or nothing:
// an ID on two descriptors of one key, or a permit of another ID than that of the request.
func (ev *evaluation) checkTogether() error {
	defer ev.queue.clear()
	for i := range ev.limited {
		if d := &ev.limited[i]; d.trial == nil && (d.phase == phaseEnforced || d.phase == phaseSettle) {
			ev.ask(d)
		}
	}
	if len(ev.requests) < 2 {
		return nil
	}
	ev.makeRoom()
	return penstock.ValidateBatch(ev.requests, ev.decisions, true)
}
