// Package engine decides what the doors are asked: by the rules, or under a limit
// that the request names. It knows no protocol, so every door gives the same
// answer from the same counters.
package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// The reasons for which a request goes undecided, besides the store's.
var (
	ErrNoRules            = errors.New("no rate limit configuration loaded")
	ErrNoDomain           = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors      = errors.New("rate limit descriptor list must not be empty")
	ErrTooManyDescriptors = errors.New("too many descriptors")
)

// Options configure a Judge.
type Options struct {
	// Token lets callers from elsewhere give units back and reset keys.
	// Default: only callers on this machine may.
	Token string

	// Shadow denies nothing, but counts what would have been denied.
	Shadow bool

	// MaxDescriptors is the most that one request may hold. Default: 64.
	MaxDescriptors int
}

const defaultMaxDescriptors = 64

// A Engine decides requests. It is safe for concurrent use.
type Engine struct {
	store          penstock.Store
	transientKeys  bool // whether the store is a penstock.TransientKeyStore
	shadow         bool
	maxDescriptors int // descriptors in a request

	token    [sha256.Size]byte
	hasToken bool

	loading sync.Mutex // so that rules are replaced one set after the other
	table   atomic.Pointer[ruleTable]
	adHoc   ruleState // what requests without rules are counted by
}

// New returns a judge without rules. The store is required; nil options are all
// defaults.
func New(store penstock.Store, o *Options) *Engine {
	if o == nil {
		o = &Options{}
	}
	_, transient := store.(penstock.TransientKeyStore)
	e := &Engine{
		store:          store,
		transientKeys:  transient,
		shadow:         o.Shadow,
		maxDescriptors: defaultMaxDescriptors,
		token:          sha256.Sum256([]byte(o.Token)),
		hasToken:       o.Token != "",
		adHoc:          ruleState{counters: &RuleCounters{Counters: &Counters{}}},
	}
	if o.MaxDescriptors > 0 {
		e.maxDescriptors = o.MaxDescriptors
	}
	return e
}

// Store returns the store that the judge asks.
func (e *Engine) Store() penstock.Store { return e.store }

// MaxDescriptors returns the most descriptors that a request may hold, so that
// doors need not make room for more.
func (e *Engine) MaxDescriptors() int { return e.maxDescriptors }

// SetRules replaces the rules. Requests being decided keep those they began with.
// A rule that the old set had as well, by name, goes on counting where it was.
func (e *Engine) SetRules(s *rules.Set) {
	e.loading.Lock()
	defer e.loading.Unlock()
	e.table.Store(newRuleTable(e.store, s, e.table.Load()))
}

// Rules returns the rules in force, or nil.
func (e *Engine) Rules() *rules.Set {
	if b := e.table.Load(); b != nil {
		return b.set
	}
	return nil
}

// ThrottleLimitPrefix is what the names of the limits of CL.THROTTLE begin with. They
// belong to the door that speaks it, whose keys nobody else may loosen.
const ThrottleLimitPrefix = "cl.throttle"

// OverridesRule says whether to take under a limit may undo what a rule has counted: it
// goes by the rule's name, and so counts where the rule does, but is another. What
// is owed is clamped to the lower of both.
func (e *Engine) OverridesRule(l penstock.Limit) bool {
	switch b := e.table.Load(); {
	case l.Name == "":
		return false
	case l.Name == OverrideLimitName, strings.HasPrefix(l.Name, ThrottleLimitPrefix):
		return true
	case b != nil:
		rule, ok := b.limits[l.Name]
		return ok && rule != l.Normal()
	}
	return false
}

// MayRefund says whether a caller may give units back or reset keys: from this
// machine, or with the token. Whoever comes by a unix socket comes from here.
func (e *Engine) MayRefund(from netip.Addr, token string) bool {
	return from.IsLoopback() || e.ValidToken(token)
}

// HasToken says whether there is a token for callers from elsewhere.
func (e *Engine) HasToken() bool { return e.hasToken }

// ValidToken says whether a token is the one for callers from elsewhere.
func (e *Engine) ValidToken(token string) bool {
	given := sha256.Sum256([]byte(token)) // hashes are of one length, which a comparison gives away
	return e.hasToken && subtle.ConstantTimeCompare(given[:], e.token[:]) == 1
}
