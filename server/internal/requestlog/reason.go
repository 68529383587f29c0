package requestlog

import (
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// A Reason is why a request is invalid. There are few, because it is a metric's label.
type Reason string

// The reasons.
const (
	Malformed   Reason = "malformed"   // it cannot be parsed
	BadLimit    Reason = "limit"       // its limit is invalid
	BadKey      Reason = "key"         // its key is empty or too long
	BadCost     Reason = "cost"        // its cost, or a field that modifies it, is invalid
	Descriptors Reason = "descriptors" // it has no domain, no descriptors, or too many
	Forbidden   Reason = "forbidden"   // it needs the token or a caller on this machine, or its limit is refused
	NoRules     Reason = "no_rules"    // it names a domain, and no rules are loaded
	TooLarge    Reason = "too_large"   // it is too long
	ContentType Reason = "content_type"
	NotFound    Reason = "not_found" // there is no such path, method or command
	Arguments   Reason = "arguments" // a command has too few or too many arguments
)

// Reasons are all reasons, for metrics that begin at 0.
var Reasons = []Reason{
	Malformed, BadLimit, BadKey, BadCost, Descriptors, Forbidden, NoRules, TooLarge, ContentType, NotFound, Arguments,
}

// ReasonOf returns why a request is invalid, by an error of the library or the engine. It
// returns "" if the request is not the cause.
func ReasonOf(err error) Reason {
	var refused *requestlimits.Refusal
	if errors.As(err, &refused) {
		return Forbidden
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return ""
}

var causes = []struct {
	err    error
	reason Reason
}{
	{penstock.ErrBadLimit, BadLimit},
	{penstock.ErrBadCost, BadCost},
	{penstock.ErrBadKey, BadKey},
	{engine.ErrNoDomain, Descriptors},
	{engine.ErrNoDescriptors, Descriptors},
	{engine.ErrTooManyDescriptors, Descriptors},
	{engine.ErrNoPermitID, Descriptors},
	{engine.ErrNoRelease, Descriptors},
	{engine.ErrSeveralLimits, Descriptors},
	{engine.ErrNoSettle, Descriptors},
	{engine.ErrNoAtMost, Descriptors},
	{engine.ErrNoRules, NoRules},
}
