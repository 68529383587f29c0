package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
	"github.com/penstock-io/penstock/internal/lograte"
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
	// client's address. Default: the client's address. Requests over a Unix
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
	// charged to none. Limiters of one store are decided as one; several
	// stores are asked one after the other, memory stores first. Retry-After
	// is the longest of the limiters that were asked: once one store denies,
	// later stores are not asked. Optional.
	Additional []Charge

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
	// decide; keep one in memory, and it holds while another store is down.
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
// Options.LimiterFor chooses one for each request.
func Protect(lim *penstock.Limiter, o *Options) func(http.Handler) http.Handler {
	if o == nil {
		o = &Options{}
	}
	p := newProtection(lim, o)
	return func(next http.Handler) http.Handler { return &protected{p, next} }
}

// A protection is middleware without its handler.
type protection struct {
	Options
	given    []Charge
	fixed    *chargeList // nil if a limiter depends on the request
	chosen   charge.Cache[chargeList]
	errorLog *lograte.Sampler
	address  func(*http.Request) string // of the client
}

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	first := Charge{Limiter: lim, LimiterFor: o.LimiterFor, Key: o.Key, Cost: o.Cost, After: o.After}
	p := &protection{
		Options: *o, given: append([]Charge{first}, o.Additional...), errorLog: lograte.PerSecond(), address: ClientIP(o),
	}
	checkPermits(p.given)
	limiters, fixed := make([]*penstock.Limiter, len(p.given)), true
	for i, c := range p.given {
		if c.Limiter == nil && c.LimiterFor == nil {
			panic("httplimit: no limiter: want one, or LimiterFor") //nolint:forbidigo // no error to return, and no limit would be worse
		}
		limiters[i], fixed = c.Limiter, fixed && c.LimiterFor == nil
	}
	if fixed {
		p.fixed = newChargeList(p.given, limiters)
	}
	return p
}

// chargesFor returns the charges of a request.
func (p *protection) chargesFor(r *http.Request) *chargeList {
	if p.fixed != nil {
		return p.fixed
	}
	var room [inlineParts]*penstock.Limiter
	limiters := room[:0]
	for i := range p.given {
		limiters = append(limiters, p.given[i].limiterOf(r))
	}
	list := p.chosen.Get(limiters)
	if list == nil {
		list = newChargeList(p.given, limiters)
		p.chosen.Put(limiters, list)
	}
	return list
}

// limiterOf returns the limiter that a request is charged to, or nil.
func (c *Charge) limiterOf(r *http.Request) *penstock.Limiter {
	if c.LimiterFor != nil {
		if lim := c.LimiterFor(r); lim != nil {
			return lim
		}
	}
	return c.Limiter
}

// A chargeList is the charges of a request, in the order in which they are taken.
type chargeList struct {
	charges []Charge
	names   []string // of the limits, in header fields
	bodies  [][]byte // problem for each limit, when it alone denies
	set     *charge.Set
	settles bool
	permits bool // requests hold permits of one of the limiters
}

// newChargeList prepares charges to the limiters, without those whose limiter is
// nil.
func newChargeList(given []Charge, limiters []*penstock.Limiter) *chargeList {
	set, order := charge.NewSet(limiters)
	l := &chargeList{set: set}
	for _, i := range order {
		c := given[i]
		c.Limiter = limiters[i]
		l.add(c, len(given) > 1)
	}
	l.permits = set.HasPermits()
	return l
}

// add adds a charge and prepares its name and problem body.
func (l *chargeList) add(c Charge, several bool) {
	limit := c.Limiter.Limit()
	name := (&Answer{Limit: limit}).policy()
	if limit.Name == "" && several {
		name = limit.String()
	}
	l.charges, l.names = append(l.charges, c), append(l.names, name)
	l.bodies = append(l.bodies, QuotaExceeded([]Answer{{Policy: name}}).body())
	l.settles = l.settles || c.After != nil
}

// protected is middleware with its handler.
type protected struct {
	*protection
	next http.Handler
}

// inlineParts is how many charges fit on the stack.
const inlineParts = 4

// ServeHTTP charges the request and serves or denies it.
func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Skip != nil && p.Skip(r) {
		p.next.ServeHTTP(w, r)
		return
	}
	l := p.chargesFor(r)
	if l.permits {
		p.hold(w, r, l)
		return
	}
	var room [inlineParts]charge.Part
	parts := append(room[:0], make([]charge.Part, len(l.charges))...)
	since := l.now()
	decided, allowed, err := p.take(r, l, parts)
	if allowed && err != nil {
		p.fail(w, r, l, parts[:decided], since, err)
		return
	}
	p.report(r, err) // a denial whose refund failed
	switch {
	case p.Shadow != nil && !allowed:
		p.Shadow(r, l.answers(parts[:decided]))
		p.next.ServeHTTP(w, r)
	case p.Shadow != nil:
		p.serve(w, r, l, parts, since)
	case !allowed:
		p.deny(w, r, l, parts[:decided])
	default:
		p.setHeaders(w.Header(), l, parts)
		p.pass(w, r, l, parts, since)
	}
}

// pass serves an allowed request after its delay.
func (p *protected) pass(w http.ResponseWriter, r *http.Request, l *chargeList, parts []charge.Part, since time.Time) {
	if err := l.set.Hold(r.Context(), parts); err != nil {
		ServiceUnavailable(w, r, err)
		return
	}
	p.serve(w, r, l, parts, since)
}

// now returns the time if a later settlement or refund needs it.
func (l *chargeList) now() (t time.Time) {
	if l.settles || len(l.charges) > 1 {
		t = time.Now()
	}
	return t
}

// take determines key and cost for each limiter, and takes.
func (p *protection) take(r *http.Request, l *chargeList, parts []charge.Part) (decided int, allowed bool, err error) {
	for i := range l.charges {
		c := &l.charges[i]
		if parts[i].Key = p.keyOf(c, r); parts[i].Key == "" {
			return 0, true, errUnknownClient
		}
		parts[i].Cost = 1
		if c.Cost != nil {
			parts[i].Cost = c.Cost(r)
		}
	}
	return l.set.Take(r.Context(), parts)
}

// errUnknownClient means that a request has neither a key nor a client address.
// Charging all such requests to one key would let one client block the others.
var errUnknownClient = fmt.Errorf("httplimit: %w: neither a key nor the client's address is known", penstock.ErrBadKey)

// keyOf returns the key to charge, or "" if neither a key nor the client's address is known.
func (p *protection) keyOf(c *Charge, r *http.Request) string {
	if c.Key == nil {
		return p.address(r)
	}
	if key := c.Key(r); charge.IsKey(key) {
		return key
	}
	return charge.AddressKey(p.address(r))
}

// fail handles a request that not all limiters could decide. If it passes, it
// stays charged to those that could: a limit in memory must not fail with a
// remote store. A request whose client has disconnected is not served; otherwise
// sending and cancelling requests would bypass the limits of a slow store.
func (p *protected) fail(w http.ResponseWriter, r *http.Request, l *chargeList, granted []charge.Part, since time.Time, err error) {
	p.report(r, err)
	switch {
	case p.Shadow != nil:
		p.serve(w, r, l, granted, since)
		return
	case p.Unavailable == nil && r.Context().Err() == nil && !errors.Is(err, penstock.ErrBadCost):
		p.pass(w, r, l, granted, since)
		return
	}
	p.report(r, l.set.Refund(r.Context(), granted, since))
	switch {
	case errors.Is(err, penstock.ErrBadCost):
		WriteProblem(w, Problem{Status: http.StatusBadRequest, Detail: badCost(err)})
	case p.Unavailable == nil || r.Context().Err() != nil:
		ServiceUnavailable(w, r, err)
	default:
		p.Unavailable(w, r, err)
	}
}

// badCost says what is wrong with the cost of a request.
func badCost(err error) string {
	const text = "the cost of the request is invalid"
	var field *penstock.FieldError
	if errors.As(err, &field) && field.Field == "Cost" {
		return text + ": " + field.Problem
	}
	return text
}

func (p *protection) report(r *http.Request, err error) {
	switch {
	case err == nil:
	case p.OnError != nil:
		p.OnError(r, err)
	default:
		p.errorLog.LogError(r.Context(), err)
	}
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
func (p *protection) setHeaders(h http.Header, l *chargeList, parts []charge.Part) {
	if p.Headers >= NoHeaders {
		return
	}
	var room [inlineParts]Answer
	p.Headers.SetHeaders(h, l.appendAnswers(room[:0], parts))
}

// deny answers a denied request.
func (p *protection) deny(w http.ResponseWriter, r *http.Request, l *chargeList, parts []charge.Part) {
	p.setHeaders(w.Header(), l, parts)
	if p.Instead != nil {
		p.Instead(w, r, l.answers(parts))
		return
	}
	at := -1
	for i := range parts {
		if parts[i].Decision.Allowed {
			continue
		}
		if at >= 0 || parts[i].Decision.RetryAfter == penstock.Never {
			WriteProblem(w, QuotaExceeded(l.answers(parts)))
			return
		}
		at = i
	}
	writeBody(w, http.StatusTooManyRequests, l.bodies[at])
}

// answers returns the decisions in a slice that callbacks may keep.
func (l *chargeList) answers(parts []charge.Part) []Answer { return l.appendAnswers(nil, parts) }

func (l *chargeList) appendAnswers(answers []Answer, parts []charge.Part) []Answer {
	for i := range parts {
		answers = append(answers, Answer{
			Policy: l.names[i], Limit: l.charges[i].Limiter.Limit(), Decision: parts[i].Decision, Cost: parts[i].Cost,
		})
	}
	return answers
}
