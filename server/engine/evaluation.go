package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// A evaluation is a request while it is decided. Hearings are used again, for most
// of what a decision would allocate is the same every time.
type evaluation struct {
	engine  *Engine
	result  *Result
	limited []limitedDescriptor // the descriptors under a limit
	keys    []byte              // of the members, one behind the other

	asked     []int // the members that the store is being asked about
	requests  []penstock.Request
	decisions []penstock.Decision
}

// A limitedDescriptor is a descriptor that some limit applies to.
type limitedDescriptor struct {
	index    int // among the descriptors
	rule     *rules.Rule
	state    *ruleState
	cost     int64
	key, end int // in the hearing's keys
	request  penstock.Request
	decided  bool // whether it was taken or refused, and not just looked at
	refused  bool
}

var evaluations = sync.Pool{New: func() any { return &evaluation{} }}

// maxKeptKeyBytes is how many bytes of keys a hearing keeps room for.
const maxKeptKeyBytes = 64 << 10

// close forgets the request, and keeps the room that it took.
func (ev *evaluation) close() {
	clear(ev.limited)
	ev.engine, ev.result = nil, nil
	ev.limited, ev.keys = ev.limited[:0], ev.keys[:0]
	if cap(ev.keys) > maxKeptKeyBytes {
		ev.keys = nil
	}
	evaluations.Put(ev)
}

// open finds out which limits apply.
func (ev *evaluation) open(b *ruleTable, domain *rules.Domain, ds []Descriptor) error {
	for i := range ds {
		if err := ev.match(b, domain, i, &ds[i]); err != nil {
			return err
		}
	}
	ev.replace()
	ev.nameKeys()
	return nil
}

// match finds the limit for a descriptor, if there is one.
func (ev *evaluation) match(b *ruleTable, domain *rules.Domain, i int, d *Descriptor) error {
	m := limitedDescriptor{index: i, cost: d.Cost, key: len(ev.keys)}
	if d.Limit == (penstock.Limit{}) {
		ev.matchRule(&m, b, domain, d)
	} else if err := ev.matchOwn(&m, domain, d); err != nil {
		return fmt.Errorf("descriptor %d: %w", i, err)
	}
	if m.rule == nil {
		ev.keys = ev.keys[:m.key]
		return nil
	}
	ev.result.Statuses[i].Rule = m.rule
	ev.keys = ShortenKey(ev.keys, m.key)
	m.end = len(ev.keys)
	ev.limited = append(ev.limited, m)
	return nil
}

// matchRule finds the rule for a descriptor.
func (ev *evaluation) matchRule(m *limitedDescriptor, b *ruleTable, domain *rules.Domain, d *Descriptor) {
	m.rule, ev.keys = domain.Match(d.Entries, ev.keys)
	if m.rule != nil && !m.rule.Unlimited {
		m.state = &b.states[m.rule.Index]
		m.request = m.state.template
	}
}

// matchOwn makes a rule of the limit that a descriptor brings.
func (ev *evaluation) matchOwn(m *limitedDescriptor, domain *rules.Domain, d *Descriptor) error {
	m.rule = ev.result.overrideRule(d)
	m.state = &ev.engine.adHoc
	m.request = penstock.Request{Limit: m.rule.Limit}
	ev.keys = appendOwnKey(ev.keys, domain.Name, d.Entries)
	return m.rule.Limit.Validate()
}

// appendOwnKey appends the key of a descriptor with a limit of its own, which
// counts within its domain only.
func appendOwnKey(buf []byte, domain string, entries []rules.Entry) []byte {
	buf = rules.AppendKey(buf, []rules.Entry{{Key: domain}})
	buf = append(buf, '|')
	return rules.AppendKey(buf, entries)
}

// maxKey is the longest key that a store is asked about. The values of
// descriptors come from outside, and Envoy lets pass what is answered with an
// error: so a longer key goes by its hash, and is limited like any other.
const maxKey = 4 << 10

// ShortenKey puts a hash in the place of the key that begins at start, if that is too
// long. Who may choose the length of its key must not escape its limit by that. No
// other key that rules make begins with a bar.
func ShortenKey(keys []byte, start int) []byte {
	if len(keys)-start <= maxKey {
		return keys
	}
	sum := sha256.Sum256(keys[start:])
	keys = append(keys[:start], "|sha256:"...)
	return hex.AppendEncode(keys, sum[:])
}

// replace lets pass what is under rules that others in the request stand in
// for, even if those are replaced themselves. Then it drops the members that are
// under no limit.
func (ev *evaluation) replace() {
	for i := range ev.limited {
		for _, alias := range ev.limited[i].rule.Replaces {
			ev.release(alias)
		}
	}
	kept := ev.limited[:0]
	for i := range ev.limited {
		if ev.limited[i].state != nil {
			kept = append(kept, ev.limited[i])
		}
	}
	clear(ev.limited[len(kept):])
	ev.limited = kept
}

// release lets pass what is under rules of an alias. What is unlimited passes
// anyhow, and says so.
func (ev *evaluation) release(alias string) {
	for i := range ev.limited {
		if m := &ev.limited[i]; m.rule.Alias == alias && !m.rule.Unlimited {
			m.state = nil
			ev.result.Statuses[m.index].Rule = nil
		}
	}
}

// nameKeys gives every member its key. A Memory keeps nothing of a key, so it
// may see the bytes themselves, which are the next request's later on. Other
// stores may hold on to a key, as after a timeout, and get a copy.
func (ev *evaluation) nameKeys() {
	text := unsafe.String(unsafe.SliceData(ev.keys), len(ev.keys))
	if !ev.engine.transientKeys {
		text = string(ev.keys)
	}
	for i := range ev.limited {
		m := &ev.limited[i]
		m.request.Key = text[m.key:m.end]
	}
}

// decide reports whether the request is refused. If that cannot be decided,
// nothing stays charged, as far as is known.
func (ev *evaluation) decide(ctx context.Context, domain *rules.Domain) (over bool, err error) {
	if domain.CompatEnvoy {
		over, err = ev.decideAlone(ctx)
	} else {
		over, err = ev.decideTogether(ctx)
	}
	if err != nil {
		ev.undo(ctx)
	}
	return over, err
}

// ask adds a request about a member to those for the store.
func (ev *evaluation) ask(i int, cost int64) {
	ev.asked = append(ev.asked, i)
	r := ev.limited[i].request
	r.Cost = cost
	ev.requests = append(ev.requests, r)
	ev.decisions = append(ev.decisions, penstock.Decision{})
}

// takeEach has the store decide what it is asked, each by itself.
func (ev *evaluation) takeEach(ctx context.Context) (err error) {
	switch len(ev.requests) {
	case 0:
	case 1:
		ev.decisions[0], err = ev.engine.store.Take(ctx, ev.requests[0])
	default:
		err = penstock.TakeEach(ctx, ev.engine.store, ev.requests, ev.decisions)
	}
	if err != nil {
		ev.decided() // some were perhaps, and nothing is to be given back twice
	}
	return err
}

// decided notes what the store decided. Of a refused TakeAll those who did not
// stand in the way were only looked at, which their decisions say.
func (ev *evaluation) decided() {
	for n, i := range ev.asked {
		m := &ev.limited[i]
		m.decided, m.refused = true, !ev.decisions[n].Allowed
		ev.report(m, ev.decisions[n])
	}
	ev.forget()
}

// looked notes how keys stand under a request that is refused.
func (ev *evaluation) looked() {
	for n, i := range ev.asked {
		ev.decisions[n].Granted = 0 // what was given back is as if it had not been taken
		ev.report(&ev.limited[i], ev.decisions[n])
	}
	ev.forget()
}

func (ev *evaluation) report(m *limitedDescriptor, d penstock.Decision) {
	st := &ev.result.Statuses[m.index]
	st.Decision, st.OverLimit = d, m.over()
}

// forget drops what the store was asked.
func (ev *evaluation) forget() {
	clear(ev.requests)
	ev.asked, ev.requests, ev.decisions = ev.asked[:0], ev.requests[:0], ev.decisions[:0]
}

// count adds the outcome to the counts of the rules.
func (ev *evaluation) count(err error) {
	for i := range ev.limited {
		m := &ev.limited[i]
		counts, granted := m.state.counters, ev.result.Statuses[m.index].Decision.Granted
		switch {
		case err != nil:
			counts.Errors.Add(1)
		case m.cost <= 0:
		case m.refused:
			counts.countDenied(m.cost, m.rule.Shadow || ev.engine.shadow)
		case granted > 0:
			counts.countAllowed(granted)
		}
	}
}
