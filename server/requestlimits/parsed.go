package requestlimits

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock"
)

// parsedLimits caches parsed limits by their text, because clients keep sending the same few.
// It is direct-mapped with a seeded hash: a flood of different texts uses bounded memory, and at
// worst the limits of other clients are parsed again.
type parsedLimits struct {
	seed  maphash.Seed
	slots [1024]atomic.Pointer[parsedLimit]
}

type parsedLimit struct {
	text    string
	limiter *penstock.Limiter
	refusal *Refusal // for callers that are not exempt; nil if all may bring the limit
}

// RequestUnder returns a request for one unit, without a key, under a limit in the form of
// [penstock.ParseLimit]. APIs use it for every limit that a caller brings. It returns a
// [*Refusal] if the caller may not bring the limit, and calls mayRefund only if that matters.
func (p *Policy) RequestUnder(limit string, mayRefund func() bool) (penstock.Request, error) {
	parsed, err := p.parse(limit)
	if err == nil {
		err = p.Refuse(parsed.refusal, mayRefund)
	}
	if err != nil {
		return penstock.Request{}, err
	}
	return parsed.limiter.Request(""), nil
}

// ParseLimit is [penstock.ParseLimit] with a cache, for limits that callers bring.
func (p *Policy) ParseLimit(limit string) (penstock.Limit, error) {
	parsed, err := p.parse(limit)
	if err != nil {
		return penstock.Limit{}, err
	}
	return parsed.limiter.Limit(), nil
}

func (p *Policy) parse(text string) (*parsedLimit, error) {
	slot := &p.parsed.slots[maphash.String(p.parsed.seed, text)%uint64(len(p.parsed.slots))]
	if parsed := slot.Load(); parsed != nil && parsed.text == text {
		return parsed, nil
	}
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	limiter, err := penstock.New(p.store, Of(limit))
	if err == nil {
		err = p.Claim(limiter.Limit())
	}
	if err != nil {
		return nil, err
	}
	parsed := &parsedLimit{strings.Clone(text), limiter, p.Refusal(&limit)}
	slot.Store(parsed)
	return parsed, nil
}
