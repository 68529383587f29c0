package redisstore

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock"
)

// An identityTable detects different limits that have the same identity by
// coincidence, and would share state. It holds trusted limits only: identities of
// untrusted limits are long enough that none coincide.
type identityTable struct {
	mu     sync.Mutex
	checks map[string]uint64 // by identity.text
}

// maxIdentities bounds the table. A program that is given its limits by others marks
// them as untrusted, so only the program itself can fill the table.
const maxIdentities = 1 << 20

// claim returns an error if another limit has claimed the identity. The error does not
// say which: the limit may be another caller's.
func (t *identityTable) claim(id identity) error {
	if id.mark == untrustedMark {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch check, claimed := t.checks[id.text]; {
	case claimed && check != id.check:
		return errSameIdentity
	case claimed:
		return nil
	case len(t.checks) >= maxIdentities:
		return errTooManyLimits
	case t.checks == nil:
		t.checks = map[string]uint64{}
	}
	t.checks[id.text] = id.check
	return nil
}

var (
	errSameIdentity = &penstock.FieldError{
		Field: "Name", Kind: penstock.ErrBadLimit,
		Problem: "another limit has the same identity in Redis; choose another name",
	}
	errTooManyLimits = &penstock.FieldError{
		Field: "Name", Kind: penstock.ErrBadLimit,
		Problem: fmt.Sprintf("the store knows %d limits already; name limits whose numbers vary, "+
			"and mark those that remote callers choose as Untrusted", maxIdentities),
	}
)

// Claim returns an error if the store cannot decide under one of the limits. Otherwise
// their states are theirs: in the unlikely event that a later limit would share the
// state of one of them, though it is a different limit, the later limit is an error. A
// take claims its limit too, so only programs that know their limits in advance need
// Claim, to have that error early. It does not call Redis.
//
// The error is a [*ClaimError].
func (s *Store) Claim(limits ...penstock.Limit) error {
	for i, l := range limits {
		if _, err := s.limits.get(l); err != nil {
			return &ClaimError{Limit: l, Other: coinciding(limits[:i], l), Err: err}
		}
	}
	return nil
}

// coinciding returns the limit that has the same identity as l, or the zero Limit.
func coinciding(limits []penstock.Limit, l penstock.Limit) penstock.Limit {
	id := identify(l)
	for _, other := range limits {
		if o := identify(other); o.text == id.text && o != id {
			return other
		}
	}
	return penstock.Limit{}
}

// A ClaimError is the error of [Store.Claim].
type ClaimError struct {
	Limit penstock.Limit // that cannot be used
	Other penstock.Limit // with the same identity; zero if it is not one of those to claim
	Err   error
}

// Error does not contain the limits.
func (e *ClaimError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the limit.
func (e *ClaimError) Unwrap() error { return e.Err }
