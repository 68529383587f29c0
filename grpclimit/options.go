package grpclimit

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// A Call is what there is to charge for.
type Call struct {
	// Method is the method's full name, such as /package.Service/Method.
	Method string

	// Message is the request of a unary call, or one message of a stream. It
	// is nil when a stream begins.
	Message any
}

// A Charge says of which limiter a call takes, under which key, how much.
type Charge struct {
	// Limiter is what the call takes of. Required.
	Limiter *penstock.Limiter

	// Key says whom to charge. A call for which it returns "" is charged to its
	// client's address. Default: that address. Who comes through a socket of
	// Unix, or through memory, has none, and cannot be told from others there:
	// nothing can be decided about such a call without a key, and it passes
	// unless Unavailable says otherwise.
	Key func(context.Context, Call) string

	// Cost says how much to take. Nothing is taken for 0, and such a call
	// always passes. Less than 0 is refused with INVALID_ARGUMENT, so that no
	// call can be made that undoes limits or passes by them. Default: 1.
	Cost func(context.Context, Call) int64
}

// Options say what the interceptors of a server do. The zero Options charge each
// call one unit of its client's address.
type Options struct {
	// Key and Cost are those of the first limiter's [Charge].
	Key  func(context.Context, Call) string
	Cost func(context.Context, Call) int64

	// Additional are further limiters. A call that one of them denies takes nothing
	// of the others. Limiters of one store are decided as one; of several
	// stores, one store after the other, those within this process first.
	// RetryInfo is that of the one that denies for longest, among those that
	// were asked. Optional.
	Additional []Charge

	// Skip says which calls are not limited at all. Default: none.
	Skip func(context.Context, Call) bool

	// Shadow tries the limits out: every call passes, but it is called for
	// those that would have been denied. Default: limits are enforced.
	Shadow func(context.Context, Call, []httplimit.Answer)

	// Denied returns the error of a call that was denied; for none it is the
	// default. Default: [Denial].
	Denied func(context.Context, Call, []httplimit.Answer) error

	// Unavailable returns the error of a call that nothing could be decided
	// about, such as [Refuse] does; or nil, and the call passes, charged to
	// those limiters of other stores that could decide: keep one in memory, and
	// it holds while a store is away. Default: it passes, unless its client has
	// left.
	Unavailable func(context.Context, Call, error) error

	// OnError is told of each such failure, of costs below 0, and of failures
	// to give back. Default: nobody is told.
	OnError func(context.Context, Call, error)

	// Proxies are the addresses of those in front of this server whose word
	// about their clients' addresses is taken, in x-forwarded-for: see
	// [httplimit.PrivateNetworks]. Default: none.
	Proxies []netip.Prefix

	// IPv6Prefix is how many bits of an IPv6 address tell clients apart, as in
	// [httplimit.Options]. Default: 64.
	IPv6Prefix int
}

// Metadata returns a [Charge.Key] that is the value of a call's metadata, such as
// x-api-key. Whoever may choose it freely has as many keys as it likes: check it
// before, or limit addresses as well.
func Metadata(name string) func(context.Context, Call) string {
	return func(ctx context.Context, _ Call) string {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
}

// Global is a [Charge.Key] that is the same for every call: a limit on what the
// server does for all.
func Global(context.Context, Call) string { return "everybody" }
