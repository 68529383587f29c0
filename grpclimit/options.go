package grpclimit

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// A Call is what is charged for.
type Call struct {
	// Method is the method's full name, such as /package.Service/Method.
	Method string

	// Message is the request of a unary call, or one message of a stream. It
	// is nil when a stream begins.
	Message any
}

// A Charge says which limiter a call is charged to, under which key, and how
// much.
type Charge struct {
	// Limiter is charged. Required, unless LimiterFor is set.
	Limiter *penstock.Limiter

	// LimiterFor returns the limiter of a call, such as that of its customer's
	// plan, see package limitercache. Make the limiters once, not for each call; limits with the same
	// name share what a key has used. For nil the call is charged to Limiter,
	// or if that is nil too, not charged by this Charge. Default: Limiter for
	// every call.
	LimiterFor func(context.Context, Call) *penstock.Limiter

	// Key returns the key to charge; for "" the call is charged to its
	// client's address. Default: the client's address. Calls over a Unix
	// socket or an in-memory connection have none: without a key they are
	// undecided and pass, unless Unavailable is set.
	Key func(context.Context, Call) string

	// Cost returns what to take. A cost of 0 takes nothing and always passes.
	// A negative cost is answered with INVALID_ARGUMENT, so that no call can
	// refund units. Default: 1.
	Cost func(context.Context, Call) int64
}

// Options configure the interceptors of a server. The zero Options charge each
// call one unit to its client's address.
type Options struct {
	// LimiterFor, Key and Cost are those of the first limiter's [Charge].
	LimiterFor func(context.Context, Call) *penstock.Limiter
	Key        func(context.Context, Call) string
	Cost       func(context.Context, Call) int64

	// Additional are further limiters. A call that one of them denies is
	// charged to none. Limiters of one store, wrapped once for all of them, are
	// decided as one; several stores are asked one after the other, memory
	// stores first. RetryInfo is the longest of the limiters that were asked. Optional.
	Additional []Charge

	// Rules choose the limits of a call, in place of limiters. Cost is what each descriptor
	// takes; LimiterFor, Key and Additional must not be set. Default: none.
	Rules *Rules

	// Skip returns true for calls that are not limited. Default: none.
	Skip func(context.Context, Call) bool

	// Shadow switches enforcement off: every call passes, and Shadow is called
	// for those that would have been denied. Default: limits are enforced.
	Shadow func(context.Context, Call, []httplimit.Answer)

	// Instead returns the error of a denied call in place of the default one;
	// nil means the default. Default: [Denial].
	Instead func(context.Context, Call, []httplimit.Answer) error

	// Unavailable returns the error of an undecided call, as
	// [ServiceUnavailable] does; or nil, and the call passes, charged to the
	// limiters of other stores that could decide: keep one in memory, and it
	// holds while another store is down. Default: the call passes, unless its
	// client has cancelled it, or the store is up, but calls are too many for it
	// ([penstock.ErrBusy]): then ServiceUnavailable, because a crowd must not lift a limit.
	// A call that costs nothing passes either way.
	Unavailable func(context.Context, Call, error) error

	// OnError is called for each such failure, for negative costs and for
	// failed refunds. Default: they are logged by [slog.Default], at most once
	// a second, unless the client has cancelled the call.
	OnError func(context.Context, Call, error)

	// Proxies are the trusted proxies in front of this server, which append to
	// x-forwarded-for: see [httplimit.PrivateNetworks]. Default: none.
	Proxies []netip.Prefix

	// IPv6Prefix is how many bits of an IPv6 address identify a client, as in
	// [httplimit.Options]. Default: 64.
	IPv6Prefix int
}

// Metadata returns a [Charge.Key] that is a value of the call's metadata, such as
// x-api-key. A client that can choose it freely has any number of keys: verify it
// first, or limit addresses too.
func Metadata(name string) func(context.Context, Call) string {
	return func(ctx context.Context, _ Call) string {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// Global is a [Charge.Key] that is the same for every call: a limit on the whole
// service.
func Global(context.Context, Call) string { return "global" }
