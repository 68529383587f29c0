package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// A Charge says which limiter a request is charged to, under which key, and how
// much.
type Charge struct {
	// Limiter is charged. Required, unless LimiterFor is set.
	Limiter *penstock.Limiter

	// LimiterFor returns the limiter of a request, such as that of its
	// customer's plan; see package limitercache. Make the limiters once, not
	// for each request; limits with the same name share what a key has used. For
	// nil the request is charged to Limiter, or if that is nil too, not charged
	// by this Charge. Default: Limiter for every request.
	LimiterFor func(*http.Request) *penstock.Limiter

	// Key returns the key to charge; for "" the request is charged to its
	// client's address, so that no client evades a limit by leaving its key out. To
	// charge only requests with a key, return nil from LimiterFor for others. Default: the client's address. Requests over a Unix
	// socket have no address: without a key they are undecided and pass,
	// unless Unavailable is set.
	Key func(*http.Request) string

	// Cost returns what to take before the request is served. A cost of 0
	// takes nothing and always passes. A negative cost is answered with status
	// 400, so that no request can refund units; mind that ContentLength is -1
	// for a body of unknown length. Default: 1.
	Cost func(*http.Request) int64

	// After returns what the request cost once it was served. Less than was
	// taken is refunded, more is charged as a debt, or as far as units are left
	// if the limit cannot owe, and [penstock.Reset] resets the key. Units that have refilled meanwhile are
	// not refunded: after a request that outlasted its window, or its bucket's
	// refill, nothing is left to settle. The bound of a fixed window holds
	// exactly; other algorithms exceed theirs by at most what concurrent
	// requests refunded. Default: what was taken.
	After func(Response) int64
}

// Options configure [Protect]. The zero Options charge each request one unit to
// its client's address.
type Options struct {
	// LimiterFor, Key, Cost and After are those of the first limiter's
	// [Charge].
	LimiterFor func(*http.Request) *penstock.Limiter
	Key        func(*http.Request) string
	Cost       func(*http.Request) int64
	After      func(Response) int64

	// Additional are further limiters. A request that one of them denies is
	// charged to none. Limiters of one store, wrapped once for all of them, are
	// decided as one; several stores are asked one after the other, memory
	// stores first. Retry-After is the longest of the limiters that were asked:
	// once one store denies, later stores are not asked. Optional.
	Additional []Charge

	// Rules choose the limits of a request, in place of limiters. Cost is what each
	// descriptor takes, and After what it cost, of which more than was taken is charged as
	// far as units are left; LimiterFor, Key and Additional must not be set. Default: none.
	Rules *Rules

	// Headers is the form of the rate limit header fields. Default: [IETF].
	Headers Form

	// Skip returns true for requests that are not limited. Default: none.
	Skip func(*http.Request) bool

	// Shadow switches enforcement off: every request passes without header
	// fields, and Shadow is called for those that would have been denied.
	// Default: limits are enforced.
	Shadow func(*http.Request, []Answer)

	// Instead answers a denied request, after header fields are set. Default:
	// status 429 and a [QuotaExceeded] problem.
	Instead func(http.ResponseWriter, *http.Request, []Answer)

	// Unavailable answers an undecided request, as [ServiceUnavailable] does:
	// the store is unavailable, or the client has no address. Grants of other
	// stores are refunded first. Default: the request passes, unless its
	// client has disconnected, and is charged to the limiters that could
	// decide; keep one in memory, and it holds while another store is down. If
	// the store is up, but requests are too many for it ([penstock.ErrBusy]), the default is
	// ServiceUnavailable: a crowd must not lift a limit.
	// A request that costs nothing passes either way.
	Unavailable func(http.ResponseWriter, *http.Request, error)

	// OnError is called for each such failure, for negative costs and for
	// failed refunds. Default: they are logged by [slog.Default], at most once
	// a second, unless the client has disconnected.
	OnError func(*http.Request, error)

	// Proxies are the trusted proxies in front of this server: see
	// [PrivateNetworks]. Without them, all clients of a proxy are one client.
	// Default: none.
	Proxies []netip.Prefix

	// AddressHeader is the field to which each proxy appends the address that
	// it was connected from. The Forwarded field is not supported. Default:
	// X-Forwarded-For.
	AddressHeader string

	// IPv6Prefix is how many bits of an IPv6 address identify a client,
	// because one client usually has a whole prefix. Addresses derived from
	// IPv4, by 6to4, Teredo or NAT64, are identified by the IPv4 address.
	// Default: 64.
	IPv6Prefix int
}

// Protect returns middleware that charges each request to its client and denies
// those over the limit. A request that a leaky bucket delays is held for that
// long.
//
// Under a [penstock.Concurrent] limit, a request holds a permit until its handler has
// returned or panicked, and its context ends if the permit is lost. Such a limiter, also one
// that LimiterFor returns, cannot have After or Additional.
//
// State belongs to the limiter, not to the middleware: to count two protections
// separately, name their limits. The limiter must not be nil, unless
// Options.LimiterFor chooses one for each request, or Options.Rules do.
func Protect(lim *penstock.Limiter, o *Options) func(http.Handler) http.Handler {
	o = cmp.Or(o, &Options{})
	p := newProtection(lim, o)
	return func(next http.Handler) http.Handler { return &protected{p, next} }
}

// A protection is middleware without its handler.
type protection struct {
	Options
	guard *charge.Guard[*http.Request, extra]
}

// A passage is what was decided about a request.
type passage = charge.Passage[*http.Request, extra]

// extra is what the middleware knows of a limit beside its charge.
type extra struct {
	after func(Response) int64
	body  []byte // of the problem, when the limit alone denies
}

// errPermitBesideOthers means that a request has a concurrent limit among others. What a
// request of several limits was charged is settled, while permits are released.
var errPermitBesideOthers = fmt.Errorf(
	"httplimit: %w: a concurrent limit cannot have After or Additional: protect the handler twice", penstock.ErrBadLimit)

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	given := charges(lim, o)
	g := &charge.Guard[*http.Request, extra]{
		Package: "httplimit", Unnamed: "default", PermitsAlone: errPermitBesideOthers, Address: ClientIP(o),
		Extra: func(i int, name string) extra {
			return extra{given[i].After, QuotaExceeded([]Answer{{Policy: name}}).body()}
		},
		Rules: o.Rules.compile(o), Skip: o.Skip, Shadow: o.Shadow != nil, OnError: o.OnError,
	}
	for _, c := range given {
		g.Charges = append(g.Charges, charge.Charge[*http.Request]{
			Limiter: c.Limiter, LimiterFor: c.LimiterFor, Key: c.Key, Cost: c.Cost, Settles: c.After != nil,
		})
	}
	if o.Unavailable != nil {
		g.Unavailable = func(_ *http.Request, err error) error { return err }
	}
	return &protection{Options: *o, guard: g.Prepare()}
}

// charges returns the charges of the options: none if there are rules.
func charges(lim *penstock.Limiter, o *Options) []Charge {
	if o.Rules == nil {
		first := Charge{Limiter: lim, LimiterFor: o.LimiterFor, Key: o.Key, Cost: o.Cost, After: o.After}
		return append([]Charge{first}, o.Additional...)
	}
	if lim != nil || o.LimiterFor != nil || o.Key != nil || o.Additional != nil {
		panic("httplimit: rules and a limiter, Key or Additional: protect the handler twice") //nolint:forbidigo // no error to return
	}
	return nil
}

// protected is middleware with its handler.
type protected struct {
	*protection
	next http.Handler
}

// ServeHTTP charges the request and serves or denies it.
func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var decided passage
	err := p.guard.Enter(r.Context(), r, &decided)
	if decided.Release != nil {
		defer decided.Release()
		r = r.WithContext(decided.Context)
	}
	if decided.Shown {
		p.setHeaders(w.Header(), &decided)
	}
	switch {
	case err != nil:
		p.refuse(w, r, err)
	case decided.Denied && p.Shadow != nil:
		p.Shadow(r, answers(&decided))
		p.next.ServeHTTP(w, r)
	case decided.Denied:
		p.deny(w, r, &decided)
	default:
		p.serve(w, r, &decided)
	}
}

// refuse answers a request that was not decided.
func (p *protection) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errPermitBesideOthers):
		WriteProblem(w, Problem{Status: http.StatusInternalServerError, Detail: "the limits of this request cannot be combined"})
	case errors.Is(err, penstock.ErrBadCost):
		WriteProblem(w, Problem{Status: http.StatusBadRequest, Detail: badCost(err)})
	case r.Context().Err() != nil, p.Unavailable == nil:
		ServiceUnavailable(w, r, err)
	default:
		p.Unavailable(w, r, err)
	}
}

// badCost says what is wrong with the cost of a request.
func badCost(err error) string {
	const text = "the cost of the request is invalid"
	if field, ok := errors.AsType[*penstock.FieldError](err); ok && field.Field == "Cost" {
		return text + ": " + field.Problem
	}
	return text
}

// ServiceUnavailable, as [Options.Unavailable], answers with status 503 and a
// problem of type [TypeReducedCapacity].
func ServiceUnavailable(w http.ResponseWriter, _ *http.Request, _ error) {
	WriteProblem(w, Problem{
		Type:   TypeReducedCapacity,
		Title:  "Temporary Reduced Capacity",
		Status: http.StatusServiceUnavailable,
	})
}

// setHeaders sets the rate limit header fields.
func (p *protection) setHeaders(h http.Header, decided *passage) {
	if p.Headers >= NoHeaders {
		return
	}
	var room [4]Answer
	p.Headers.SetHeaders(h, slices.DeleteFunc(charge.AppendAnswers(room[:0], decided), func(a Answer) bool { return !a.isKnown() }))
}

// deny answers a denied request.
func (p *protection) deny(w http.ResponseWriter, r *http.Request, decided *passage) {
	if p.Instead != nil {
		p.Instead(w, r, answers(decided))
		return
	}
	if body := bodyOfOnlyDenial(decided); body != nil {
		writeBody(w, http.StatusTooManyRequests, body)
		return
	}
	WriteProblem(w, QuotaExceeded(answers(decided)))
}

// bodyOfOnlyDenial returns the prepared body, if one limiter denies a request that can pass later.
func bodyOfOnlyDenial(decided *passage) (body []byte) {
	for i, part := range decided.Parts() {
		switch {
		case part.Decision.Allowed:
		case body != nil || part.Decision.RetryAfter == penstock.Never:
			return nil
		default:
			body = decided.List.Items[i].Extra.body
		}
	}
	return body
}

// answers returns the decisions in a slice that callbacks may keep.
func answers(decided *passage) []Answer { return charge.AppendAnswers([]Answer(nil), decided) }
