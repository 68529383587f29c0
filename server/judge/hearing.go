package judge

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

// A hearing is a request while it is decided. Hearings are used again, for most
// of what a decision would allocate is the same every time.
type hearing struct {
	judge   *Judge
	verdict *Verdict
	members []member // the descriptors under a limit
	keys    []byte   // of the members, one behind the other

	asked     []int // the members that the store is being asked about
	requests  []penstock.Request
	decisions []penstock.Decision
}

// A member is a descriptor that some limit applies to.
type member struct {
	index    int // among the descriptors
	rule     *rules.Rule
	policy   *policy
	cost     int64
	key, end int // in the hearing's keys
	request  penstock.Request
	decided  bool // whether it was taken or refused, and not just looked at
	refused  bool
}

var hearings = sync.Pool{New: func() any { return &hearing{} }}

// maxKept is how many bytes of keys a hearing keeps room for.
const maxKept = 64 << 10

// close forgets the request, and keeps the room that it took.
func (h *hearing) close() {
	clear(h.members)
	h.judge, h.verdict = nil, nil
	h.members, h.keys = h.members[:0], h.keys[:0]
	if cap(h.keys) > maxKept {
		h.keys = nil
	}
	hearings.Put(h)
}

// open finds out which limits apply.
func (h *hearing) open(b *book, domain *rules.Domain, ds []Descriptor) error {
	for i := range ds {
		if err := h.match(b, domain, i, &ds[i]); err != nil {
			return err
		}
	}
	h.replace()
	h.nameKeys()
	return nil
}

// match finds the limit for a descriptor, if there is one.
func (h *hearing) match(b *book, domain *rules.Domain, i int, d *Descriptor) error {
	m := member{index: i, cost: d.Cost, key: len(h.keys)}
	if d.Limit == (penstock.Limit{}) {
		h.matchRule(&m, b, domain, d)
	} else if err := h.matchOwn(&m, domain, d); err != nil {
		return fmt.Errorf("descriptor %d: %w", i, err)
	}
	if m.rule == nil {
		h.keys = h.keys[:m.key]
		return nil
	}
	h.verdict.Statuses[i].Rule = m.rule
	h.keys = Shorten(h.keys, m.key)
	m.end = len(h.keys)
	h.members = append(h.members, m)
	return nil
}

// matchRule finds the rule for a descriptor.
func (h *hearing) matchRule(m *member, b *book, domain *rules.Domain, d *Descriptor) {
	m.rule, h.keys = domain.Match(d.Entries, h.keys)
	if m.rule != nil && !m.rule.Unlimited {
		m.policy = &b.policies[m.rule.Index]
		m.request = m.policy.request
	}
}

// matchOwn makes a rule of the limit that a descriptor brings.
func (h *hearing) matchOwn(m *member, domain *rules.Domain, d *Descriptor) error {
	m.rule = h.verdict.ownRule(d)
	m.policy = &h.judge.unruled
	m.request = penstock.Request{Limit: m.rule.Limit}
	h.keys = appendOwnKey(h.keys, domain.Name, d.Entries)
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

// Shorten puts a hash in the place of the key that begins at start, if that is too
// long. Who may choose the length of its key must not escape its limit by that. No
// other key that rules make begins with a bar.
func Shorten(keys []byte, start int) []byte {
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
func (h *hearing) replace() {
	for i := range h.members {
		for _, alias := range h.members[i].rule.Replaces {
			h.release(alias)
		}
	}
	kept := h.members[:0]
	for i := range h.members {
		if h.members[i].policy != nil {
			kept = append(kept, h.members[i])
		}
	}
	clear(h.members[len(kept):])
	h.members = kept
}

// release lets pass what is under rules of an alias. What is unlimited passes
// anyhow, and says so.
func (h *hearing) release(alias string) {
	for i := range h.members {
		if m := &h.members[i]; m.rule.Alias == alias && !m.rule.Unlimited {
			m.policy = nil
			h.verdict.Statuses[m.index].Rule = nil
		}
	}
}

// nameKeys gives every member its key. A Memory keeps nothing of a key, so it
// may see the bytes themselves, which are the next request's later on. Other
// stores may hold on to a key, as after a timeout, and get a copy.
func (h *hearing) nameKeys() {
	text := unsafe.String(unsafe.SliceData(h.keys), len(h.keys))
	if !h.judge.inMemory {
		text = string(h.keys)
	}
	for i := range h.members {
		m := &h.members[i]
		m.request.Key = text[m.key:m.end]
	}
}

// decide reports whether the request is refused. If that cannot be decided,
// nothing stays charged, as far as is known.
func (h *hearing) decide(ctx context.Context, domain *rules.Domain) (over bool, err error) {
	if domain.CompatEnvoy {
		over, err = h.decideAlone(ctx)
	} else {
		over, err = h.decideTogether(ctx)
	}
	if err != nil {
		h.undo(ctx)
	}
	return over, err
}

// ask adds a request about a member to those for the store.
func (h *hearing) ask(i int, cost int64) {
	h.asked = append(h.asked, i)
	r := h.members[i].request
	r.Cost = cost
	h.requests = append(h.requests, r)
	h.decisions = append(h.decisions, penstock.Decision{})
}

// takeEach has the store decide what it is asked, each by itself.
func (h *hearing) takeEach(ctx context.Context) (err error) {
	switch len(h.requests) {
	case 0:
	case 1:
		h.decisions[0], err = h.judge.store.Take(ctx, h.requests[0])
	default:
		err = penstock.TakeEach(ctx, h.judge.store, h.requests, h.decisions)
	}
	if err != nil {
		h.decided() // some were perhaps, and nothing is to be given back twice
	}
	return err
}

// decided notes what the store decided. Of a refused TakeAll those who did not
// stand in the way were only looked at, which their decisions say.
func (h *hearing) decided() {
	for n, i := range h.asked {
		m := &h.members[i]
		m.decided, m.refused = true, !h.decisions[n].Allowed
		h.report(m, h.decisions[n])
	}
	h.forget()
}

// looked notes how keys stand under a request that is refused.
func (h *hearing) looked() {
	for n, i := range h.asked {
		h.decisions[n].Granted = 0 // what was given back is as if it had not been taken
		h.report(&h.members[i], h.decisions[n])
	}
	h.forget()
}

func (h *hearing) report(m *member, d penstock.Decision) {
	st := &h.verdict.Statuses[m.index]
	st.Decision, st.Over = d, m.over()
}

// forget drops what the store was asked.
func (h *hearing) forget() {
	clear(h.requests)
	h.asked, h.requests, h.decisions = h.asked[:0], h.requests[:0], h.decisions[:0]
}

// count adds the outcome to the counts of the rules.
func (h *hearing) count(err error) {
	for i := range h.members {
		m := &h.members[i]
		counts, granted := m.policy.counts, h.verdict.Statuses[m.index].Decision.Granted
		switch {
		case err != nil:
			counts.Errors.Add(1)
		case m.cost <= 0:
		case m.refused:
			counts.refused(m.cost, m.rule.Shadow || h.judge.shadow)
		case granted > 0:
			counts.took(granted)
		}
	}
}
