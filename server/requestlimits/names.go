package requestlimits

import (
	"strings"

	"github.com/penstock-io/penstock"
)

// Of returns the request limit of a limit that a caller chose, in any API, the overrides of
// Envoy included. Request limits have a name space of their own in the store, so none of them
// can reach the state of a rule. All APIs use this function, so equal limits share their state.
func Of(l penstock.Limit) penstock.Limit {
	l.Untrusted = true
	return l
}

// EnvoyName is the name of limits without one that Envoy's requests bring. They share state by
// that name, so a limit can change from request to request, as long as its period stays the same.
const EnvoyName = "override"

// ThrottlePrefix begins the names of CL.THROTTLE's limits.
const ThrottlePrefix = "cl.throttle"

// HasReservedName reports whether a request limit shares its state with CL.THROTTLE's or
// with overrides of Envoy by name. In the APIs where callers choose names, they need the
// rights of a refund to use one, because another limit of the same name can reduce what was
// counted.
func HasReservedName(l penstock.Limit) bool {
	return l.Name == EnvoyName || strings.HasPrefix(l.Name, ThrottlePrefix)
}
