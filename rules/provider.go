package rules

import "context"

// A Provider is where rules come from: files ([Source]), or a configuration centre (package
// rulesource).
type Provider interface {
	// Load returns the rules as they are now.
	Load(ctx context.Context) (*Set, error)

	// Watch calls use with the rules whenever they have changed since they were loaded
	// last, and with an error if what is there cannot be rules: then the old ones stay in use. Calls do
	// not overlap. Watch returns only when ctx ends.
	Watch(ctx context.Context, use Use)

	// String says where the rules come from, for people and without credentials.
	String() string
}

// Use puts rules in use. It returns an error if they cannot be used, or the one that it was
// given: then there are no rules.
type Use func(set *Set, err error) error

var _ Provider = (*Source)(nil)
