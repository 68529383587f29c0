package ratelimit

import (
	"slices"
	"testing"
)

// Each own variable is one of envoyproxy/ratelimit, and none is listed twice: another spelling would tell nothing.
func TestOwnVariablesAreThoseOfEnvoyRatelimit(t *testing.T) {
	all := Variables()
	for i, name := range ownVariables {
		if !slices.Contains(all, name) || slices.Contains(ownVariables[:i], name) {
			t.Errorf("%s is unknown, or listed twice", name)
		}
	}
}
