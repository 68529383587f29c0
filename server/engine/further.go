package engine

import (
	"context"
	"slices"

	"github.com/penstock-io/penstock/rules"
)

// A rule may have further limits on the same keys, each of them a rule of its own. A descriptor is
// added once for each, and has the status of the tightest in the end.

// addFurther adds the descriptors once more under the further limits of their rules. They are plain if
// all of these are.
func (f *found) addFurther(ctx context.Context) (plain bool, err error) {
	n := len(f.limited)
	if most := n * rules.MaxAlso; cap(f.further) < most { // the statuses must not move
		f.further = make([]Status, 0, most)
	}
	plain = true
	for i := range n {
		if first := f.limited[i]; !first.own && !first.rule.Unlimited {
			for also := first.rule.Also; also != nil && err == nil; also = also.Also {
				isPlain := false
				isPlain, err = f.addUnder(ctx, &first, also)
				plain = plain && isPlain
			}
		}
	}
	return plain, err
}

// addUnder adds a descriptor under a further limit of its rule.
func (f *found) addUnder(ctx context.Context, first *limitedDescriptor, also *rules.Rule) (plain bool, err error) {
	f.further = append(f.further, Status{})
	f.limited = append(f.limited, limitedDescriptor{
		further: true, index: first.index, status: &f.further[len(f.further)-1], rule: also,
		cost: first.cost, key: first.key, end: first.end, denyInDebt: first.denyInDebt, quota: first.quota,
	})
	l := &f.limited[len(f.limited)-1]
	start := len(f.keys)
	if f.keys[l.key] == '|' { // rules.ShortenKey has shortened it; overrides are found by the whole key
		_, f.keys = f.domain.Match(f.ds[l.index].Entries, f.keys)
		l.key, l.end = start, len(f.keys)
	}
	plain, err = f.useRule(ctx, l, &f.ds[l.index])
	f.keys, l.key, l.end = f.keys[:start], first.key, first.end
	l.status.Rule, l.status.Quota = l.rule, l.quota
	return plain, err
}

// denyBeside reports whether another limit of the rule denies a descriptor.
func (all limitedDescriptors) denyBeside(d *limitedDescriptor) bool {
	return slices.ContainsFunc(all, func(o limitedDescriptor) bool { return o.index == d.index && o.denied && o.trial == nil })
}

// returnPartial refunds what descriptors took from some limits of a quota or shadow rule, of which another
// denied them: they are decided one by one, and take from all limits or none.
func (ev *evaluation) returnPartial(ctx context.Context) error {
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.trial == nil && ev.mayReturn(d) && !d.denied && ev.limited.denyBeside(d) {
			d.returned = true
			ev.add(d, -d.granted())
		}
	}
	return ev.call(context.WithoutCancel(ctx), false)
}

// mergeFurther gives each descriptor the status of its tightest limit, and the longest delay of all.
func (f *found) mergeFurther() {
	for i := range f.limited {
		if d := &f.limited[i]; d.further {
			f.result.Statuses[d.index].merge(d.status)
		}
	}
}

// merge takes over the status of another limit if that is tighter, and the longer delay of both.
func (s *Status) merge(o *Status) (tighter bool) {
	delay := max(s.Decision.Delay, o.Decision.Delay)
	if tighter = o.isTighter(s); tighter {
		*s = *o
	}
	if s.Decision.Allowed {
		s.Decision.Delay = delay
	}
	return tighter
}

// isTighter reports whether a status says more about what is left than that of another limit.
func (s *Status) isTighter(o *Status) bool {
	if s.OverLimit != o.OverLimit {
		return s.OverLimit
	}
	return s.Decision.TighterThan(o.Decision)
}
